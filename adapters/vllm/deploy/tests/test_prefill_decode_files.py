"""The files of examples/prefill-decode are what their formats ask for, and are understood."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hexkv.adapters.vllm.configuration.configuration import verify
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "prefill-decode"


def transfers(words):
    """What servers are told of their connector."""
    flag = "--kv-transfer-config="
    found = [json.loads(word.removeprefix(flag)) for word in words if word.startswith(flag)]
    assert all(one["kv_load_failure_policy"] == "recompute" for one in found)
    return found


def test_the_manifest_is_what_kubernetes_takes_and_its_servers_are_those_of_the_proxy(validator):
    deployment, service = yaml.safe_load_all((EXAMPLE / "kubernetes.yaml").read_text())
    for found in (deployment, service):
        validator.validate(found, validator.latest_version(), strict=True)
    pod = deployment["spec"]["template"]["spec"]
    containers = {one["name"]: one for one in pod["containers"]}
    for name, port in (("prefill", 8100), ("decode", 8200)):
        args = containers[name]["args"]
        assert f"--port={port}" in args
        assert len(transfers(args)) == 1
        assert containers["proxy"]["args"][-1 if name == "decode" else 1].endswith(str(port))
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for one in containers.values() for mount in one["volumeMounts"]
    }


def test_the_compose_file_is_what_compose_takes():
    file = EXAMPLE / "compose.yaml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    services = yaml.safe_load(file.read_text())["services"]
    for name in ("prefill", "decode"):
        assert len(transfers(services[name]["command"])) == 1
        assert f"http://{name}:8000" in services["proxy"]["command"]


def test_the_configurations_are_understood():
    node = load(EXAMPLE / "node.yaml", environ={})
    assert not node.settings.node
    engine = verify({"config": str(EXAMPLE / "engine.yaml")}, discover()).engine
    assert engine.settings.node == "/run/hexkv/node.sock"
