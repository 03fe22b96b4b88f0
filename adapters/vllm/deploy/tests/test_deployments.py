"""The deployment files are what their formats ask for, and say what hexkv and vLLM understand."""

import configparser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from depth import thorough
from hexkv.contracts.kit.cases import each
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import DType, KVLayout, Namespace

DEPLOY = Path(__file__).parents[1]
CONFIGURATIONS = sorted(DEPLOY.glob("*/hexkv.yaml"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
TINY = Namespace("toy", KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8))


def folder(path):
    return path.parent.name


def objects():
    """Every Kubernetes object."""
    files = [path for path in MANIFESTS if path.name not in ("hexkv.yaml", "kustomization.yaml")]
    return [found for path in files for found in yaml.safe_load_all(path.read_text())]


def kubernetes(kind, name):
    return next(x for x in objects() if (x["kind"], x["metadata"]["name"]) == (kind, name))


def container():
    return kubernetes("StatefulSet", "vllm")["spec"]["template"]["spec"]["containers"][0]


def compose():
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


@each("path", CONFIGURATIONS, ids=folder)
def test_a_configuration_builds_an_engine(path, tmp_path):
    text = path.read_text().replace("/var/cache/hexkv", str(tmp_path / "cache"))
    (tmp_path / "hexkv.yaml").write_text(text)
    small = {"pool": {"bytes": "1MiB"}}
    with build(load(tmp_path / "hexkv.yaml", environ={}, overrides=small), TINY) as engine:
        assert len(engine.health().tiers) == len(yaml.safe_load(text)["tiers"])


@each("found", objects(), ids=lambda x: f"{x['kind']} {x['metadata']['name']}")
def test_a_manifest_is_what_kubernetes_takes(validator, found):
    validator.validate(found, validator.latest_version(), strict=True)


def test_a_wrong_manifest_is_refused(validator):
    """The control: the validator reads what it is given."""
    wrong = kubernetes("StatefulSet", "vllm")
    wrong["spec"]["replica"] = 2
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, validator.latest_version(), strict=True)


@pytest.mark.parametrize("right", [True, *thorough(False)])
def test_the_compose_file_is_what_compose_takes(right, tmp_path):
    file = tmp_path / "compose.yaml"
    content = compose()
    if not right:
        content["services"]["redis"]["imagine"] = "valkey"
    file.write_text(yaml.safe_dump(content))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == right, done.stdout


def commands():
    """What each deployment passes to vLLM."""
    service = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
    service.optionxform = str
    service.read_string((DEPLOY / "one-machine" / "vllm.service").read_text())
    services = compose()["services"]
    return [
        shlex.split(service["Service"]["ExecStart"].replace("\\\n", " ")),
        services["first"]["command"],
        services["second"]["command"],
        container()["args"],
    ]


def transfer(words):
    """What vLLM is told of its connector."""
    [given] = re.findall(r"--kv-transfer-config[ =](\{.*?\})", " ".join(words))
    return json.loads(given)


@each("words", commands(), ids=["systemd", "first", "second", "kubernetes"])
def test_vllm_is_given_the_connector_and_recomputes_what_cannot_be_loaded(words):
    assert transfer(words) == {
        "kv_connector": "HexKVConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }


def test_passwords_reach_the_tier_that_needs_them():
    for place, names in (
        ("compose", compose()["services"]["first"]["environment"]),
        ("kubernetes", [variable["name"] for variable in container()["env"]]),
    ):
        tiers = yaml.safe_load((DEPLOY / place / "hexkv.yaml").read_text())["tiers"]
        number = [tier["store"] for tier in tiers].index("redis")
        assert f"HEXKV_TIERS__{number}__SETTINGS__PASSWORD" in names


def servers_of_charts():
    """By chart, the container's words, its environment, and its volumes."""
    folder = Path(__file__).parents[4] / "examples" / "deploy" / "helm"
    stack = yaml.safe_load((folder / "production-stack.yaml").read_text())
    [model] = stack["servingEngineSpec"]["modelSpec"]
    given = model["vllmConfig"]["extraArgs"], model["env"]
    yield given, model["extraVolumes"], model["extraVolumeMounts"]
    decode = yaml.safe_load((folder / "llm-d.yaml").read_text())["decode"]
    [container] = decode["containers"]
    yield (container["args"], container["env"]), decode["volumes"], container["volumeMounts"]


def test_values_of_charts_configure_an_engine_whose_disk_has_room(tmp_path):
    for (words, environment), [volume], [mount] in servers_of_charts():
        assert transfer(words)["kv_connector"] == "HexKVConnector"
        named = {it["name"]: it["value"].replace("/var/cache", str(tmp_path)) for it in environment}
        links = {"HEXKV_REDIS_SERVICE_HOST": "10.0.0.1", "HEXKV_REDIS_PORT_6379_TCP": "tcp://x:1"}
        loaded = load(environ=named | links)
        _, disk = loaded.settings.tiers
        assert disk.settings["root"] == mount["mountPath"].replace("/var/cache", str(tmp_path))
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]
        assert int(claim["storage"].removesuffix("Gi")) << 30 > disk.budget
        with build(load(environ=named, overrides={"pool": {"bytes": "1MiB"}}), TINY) as engine:
            assert [tier.name for tier in engine.health().tiers] == ["memory", "disk"]
