"""The units of systemd, and the chart, of ``examples/deploy``."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from urllib.request import urlopen

import pytest
import yaml

from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.checking import check
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from operating.charts import DEPLOY, rendered
from processes import PATIENCE, held_port, until

UNITS = sorted(DEPLOY.glob("*.service"))
HARDENED = {
    "CapabilityBoundingSet": "",
    "NoNewPrivileges": "true",
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}


def test_the_units_of_a_node_are_notified_and_hardened(capsys):
    assert len(UNITS) == 2
    for path in UNITS:
        unit = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
        unit.optionxform = str
        unit.read_string(path.read_text())
        service = dict(unit["Service"])
        assert HARDENED.items() <= service.items()
        assert (service["Type"], service["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
        flags = set(re.findall(r"--[a-z-]+", service["ExecStart"]))
        assert main(["node", "--help"]) == 0
        assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        if shutil.which("systemd-analyze"):
            rate = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(path)]
            done = subprocess.run(rate, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout.splitlines()[-1]


FLEET = {
    "secretName": "hexkv",
    "directory": {"enabled": True},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}, "runbooks": "https://x/y"},
    "node": {"memory": {"sizeGB": 2}, "uids": [0], "config": {"log": {"format": "json"}}},
}


def flags_of(command, capsys):
    assert main([command, "--help"]) == 0
    return set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.thorough
def test_the_chart_renders_what_kubernetes_and_hexkv_take(tmp_path, capsys):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    alone, fleet = rendered({}, tmp_path), rendered(FLEET, tmp_path)
    assert {kind for kind, _ in alone} == {"ConfigMap", "DaemonSet"}
    assert {kind for kind, _ in fleet} == {
        *("ConfigMap", "DaemonSet", "Deployment", "Service", "ServiceMonitor", "PrometheusRule")
    }
    for (kind, _), manifest in [*alone.items(), *fleet.items()]:
        if "monitoring.coreos.com" not in manifest["apiVersion"]:
            kubernetes_validate.validate(manifest, "1.30", strict=True)
        assert manifest["metadata"]["labels"]["app.kubernetes.io/name"] == "hexkv", kind
    for manifests, has_peers in ((alone, False), (fleet, True)):
        text = manifests["ConfigMap", "kv-node"]["data"]["node.yaml"]
        file = tmp_path / "node.yaml"
        file.write_text(text.replace("/run/secrets/hexkv", str(tmp_path)))
        (tmp_path / "secret").write_text("x" * 32)
        (tmp_path / "secret").chmod(0o600)
        check(loaded := load(file, {}, defaults={"pool": {"provider": "shared"}}), discover())
        assert ("peers" in [tier.name for tier in loaded.settings.tiers]) == has_peers
        spec = manifests["DaemonSet", "kv-node"]["spec"]["template"]["spec"]
        [node] = spec["containers"]
        limit = int(node["resources"]["limits"]["memory"].removesuffix("G")) * 10**9
        assert limit > loaded.settings.pool.bytes
        assert {word.partition("=")[0] for word in node["args"]} <= flags_of("node", capsys)
        environment = [it["name"] for it in node["env"]]
        load(file, dict.fromkeys(environment, "10.0.0.1"))
    assert loaded.settings.log.format == "json"
    [directory] = fleet["Deployment", "kv-directory"]["spec"]["template"]["spec"]["containers"]
    assert {word.partition("=")[0] for word in directory["args"]} <= flags_of("directory", capsys)
    port, _ = fleet["Service", "kv-directory"]["spec"]["ports"]
    assert loaded.settings.directory.settings["address"] == f"kv-directory:{port['port']}"
    for name in ("DaemonSet", "kv-node"), ("Deployment", "kv-directory"):
        pod = fleet[name]["spec"]["template"]["spec"]
        assert pod["securityContext"]["fsGroup"] == 1000
        [secret] = [it["secret"] for it in pod["volumes"] if "secret" in it]
        assert secret["secretName"] == "hexkv"


@pytest.mark.thorough
def test_node_and_directory_of_the_chart_start_as_it_runs_them_and_can_be_scraped(tmp_path):
    """With other ports and folders: each answers at the address that the chart gives it."""
    manifests = rendered(FLEET, tmp_path)
    ports = {number: held_port() for number in ("9464", "7272", "9470", "7171")}
    (tmp_path / "secret").write_text("x" * 32)
    (tmp_path / "secret").chmod(0o600)

    def here(text):
        for number, port in ports.items():
            text = re.sub(rf"([:=]){number}\b", rf"\g<1>{port}", text)
        for folder in ("/run/secrets/hexkv", "/etc/hexkv", "/run/hexkv", "/var/lib/hexkv"):
            text = text.replace(folder, str(tmp_path))
        return text.replace("kv-directory:", "127.0.0.1:")

    file = tmp_path / "node.yaml"
    file.write_text(here(manifests["ConfigMap", "kv-node"]["data"]["node.yaml"]))
    runs = {"directory": ("Deployment", "9470"), "node": ("DaemonSet", "9464")}
    own = {"HEXKV_DIRECTORY__NAME": "a", "HEXKV_PEERS__SETTINGS__ADVERTISE": "127.0.0.1"}
    with ExitStack() as opened:
        for command, (kind, port) in runs.items():
            [container] = manifests[kind, f"kv-{command}"]["spec"]["template"]["spec"]["containers"]
            words = [sys.executable, "-m", "hexkv.plugins", command, *map(here, container["args"])]
            log = opened.enter_context((tmp_path / command).open("w"))
            process = subprocess.Popen(
                words, env=os.environ | (own if command == "node" else {}), stdout=log, stderr=log
            )
            opened.callback(process.wait, PATIENCE)
            opened.callback(process.terminate)

            def ready(process=process, command=command, port=ports[port]):
                assert process.poll() is None, (tmp_path / command).read_text()
                with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
                    return answer.read() == b"ok\n"
                return False

            until(ready, 5 * PATIENCE)
        with urlopen(f"http://127.0.0.1:{ports['9470']}/metrics") as answer:
            assert "hexkv_directory_members 1" in answer.read().decode()


def scraped(manifests, monitor):
    """The services that a ServiceMonitor selects, each with the port of the pods behind it."""
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    found = set()
    for (kind, name), service in manifests.items():
        if kind != "Service" or not wanted <= service["metadata"]["labels"].items():
            continue
        [port] = [it for it in service["spec"]["ports"] if it["name"] == endpoint["port"]]
        [pods] = [
            it["spec"]["template"]
            for (kind, _), it in manifests.items()
            if kind in ("DaemonSet", "Deployment")
            and service["spec"]["selector"].items()
            <= it["spec"]["template"]["metadata"]["labels"].items()
        ]
        [container] = pods["spec"]["containers"]
        ports = {it["name"]: it["containerPort"] for it in container["ports"]}
        found.add((name, ports[port["targetPort"]]))
    return found


@pytest.mark.thorough
def test_the_chart_brings_the_rules_and_the_dashboard_and_refuses_other_values(tmp_path):
    fleet = rendered(FLEET, tmp_path)
    rules, monitor = fleet["PrometheusRule", "kv"], fleet["ServiceMonitor", "kv"]
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    made = yaml.safe_load((DEPLOY / "monitoring" / "rules.yaml").read_text())
    moved = json.loads(json.dumps(made).replace("docs/symptoms.md", "https://x/y"))
    assert rules["spec"] == moved
    shown = fleet["ConfigMap", "kv-dashboard"]["data"]["hexkv.json"]
    assert json.loads(shown) == json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
    assert scraped(fleet, monitor) == {("kv-node", 9464), ("kv-directory", 9470)}
    [directory] = fleet["Deployment", "kv-directory"]["spec"]["template"]["spec"]["containers"]
    assert {"--observe=0.0.0.0:9470", "--exposed"} <= {*directory["args"]}
    shown = yaml.safe_load(fleet["ConfigMap", "kv-node"]["data"]["node.yaml"])["observe"]
    assert shown == {"address": "0.0.0.0:9464", "exposed": True}
    for wrong, why in (
        ({"node": {"memory": {"sizeGb": 1}}}, "sizeGb"),
        ({"directory": {"enabled": True}}, "secretName"),
    ):
        with pytest.raises(Exception, match=why):  # Helm's, or that of its library
            rendered(wrong, tmp_path)
