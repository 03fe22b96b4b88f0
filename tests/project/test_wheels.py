"""What is installed from wheels works by itself, and type checkers see every kind of install."""

import json
import os
import re
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from hexkv.contracts.new_adapter import AdapterKind
from hexkv.plugins.discovery.distributions import COMMANDS
from operating.installing import ROOT, attempt, environment, made, run

ALONE = """\
from hexkv.api import DType, Finished, InvalidRequest, KVLayout, open_cache

class Window:
    def __init__(self, tokens):
        self.layout, self.tokens, self.kv = layout, tokens, {}

    def gather(self, spans, layers=None):
        for start, end, data in spans:
            data[:] = self.kv[start, end] = bytes([end // 256]) * data.nbytes
        return Finished()

    def scatter(self, spans, layers=None):
        self.kv |= {(start, end): bytes(data) for start, end, data in spans}
        return Finished()

layout = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)
prompt = list(range(600))
with open_cache({"pool": {"bytes": "16MiB"}}, model="toy", layout=layout) as cache:
    computed, loaded = Window(len(prompt)), Window(len(prompt))
    cache.store(prompt, computed)
    print(cache.retrieve(prompt, loaded).tiers, loaded.kv == computed.kv)
    try:
        cache.admin
    except InvalidRequest as error:
        print(error)
"""
INSTALLED = ("hexkv[local]", "hexkv-contracts")
CONSUMER = """\
from hexkv.adapters.local.disk import DiskStore
from hexkv.api import open_cache
from hexkv.core.engine.engine import Deadlines
from hexkv.ports import ChunkKey, ChunkStore

store: ChunkStore = DiskStore("cache")
key: ChunkKey = 1
late: str = Deadlines().store
hits: str = open_cache().lookup([1]).hit_tokens
"""
WRONG = [7, 8, 9]
"""Lines that a type checker complains about, if it sees the types."""


@pytest.fixture(scope="module")
def wheels(pytestconfig, tmp_path_factory):
    """Wheels of what is installed, by name."""
    folders = [ROOT, ROOT / "contracts", ROOT / "adapters" / "local"]
    return made(pytestconfig, tmp_path_factory.mktemp("wheels"), folders)


@pytest.fixture(scope="module")
def clean(wheels, tmp_path_factory):
    """The Python of an environment with our wheels, and of others' what they say they need."""
    return environment(tmp_path_factory.mktemp("clean"), wheels, *INSTALLED)


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.thorough
def test_the_wheels_together_hold_every_module_once_and_nothing_else(pytestconfig, tmp_path):
    wheels = made(pytestconfig, tmp_path)
    packed = [
        name for wheel in wheels.values() for name in contents(wheel) if ".dist-info/" not in name
    ]
    written = [
        path.relative_to(top.parent).as_posix()
        for pattern in ("*/hexkv", "*/*/hexkv")
        for top in ROOT.glob(pattern)
        for path in top.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sorted(packed) == sorted(written)


def test_code_comes_from_the_wheels(clean):
    modules = [f"hexkv.{part}" for part in ("adapters.local", "contracts", "core", "ports")]
    code = (
        f"import importlib, json; modules = map(importlib.import_module, {modules});"
        "print(json.dumps([module.__file__ for module in modules]))"
    )
    home = clean.parent.parent
    for file in json.loads(run(clean, "-I", "-c", code, cwd=home)):
        assert Path(file).is_relative_to(home)


def test_the_command_finds_the_adapters_of_the_wheels(clean):
    rows = json.loads(run(clean.parent / "hexkv", "adapters", "--json", cwd=clean.parent))
    states = {row["name"]: row["state"] for row in rows}
    assert "copier" in states.pop("new-adapter")  # an extra: no contract needs it
    assert set(states.values()) == {"ready"}
    found = {(row["kind"], row["name"]): row["plugin"] for row in rows}
    assert found["store", "disk"] == found["store", "heap"] == "local"
    assert found["store", "memory"] == found["memory", "mmap"] == "builtin"
    assert not any(row["distribution"].startswith(("hexkv-hf", "acme")) for row in rows)


def test_wheels_store_and_retrieve(clean):
    said = run(clean, "-I", ROOT / "examples" / "two_tiers.py", cwd=clean.parent)
    assert "the KV is the one that was stored" in said


@pytest.fixture(scope="module")
def authors(wheels, tmp_path_factory):
    """The Python of an environment in which adapters are written."""
    wanted = "hexkv-contracts[new-adapter]", "pip", "hatchling"
    return environment(tmp_path_factory.mktemp("authors"), wheels, *wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", AdapterKind)
def test_a_new_adapter_of_each_kind_is_built_installed_and_keeps_its_contract(
    kind, authors, tmp_path
):
    """As its author does it, from wheels alone; the check leaves no file behind."""
    hexkv, name, empty = authors.parent / "hexkv", f"toy-{kind}", tmp_path / "empty"
    empty.mkdir()
    run(hexkv, "new-adapter", kind, name, cwd=tmp_path)
    readme = (tmp_path / name / "README.md").read_text()
    pip = [authors, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    run(*pip, "wheel", *offline, f"--wheel-dir={tmp_path}", tmp_path / name, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    run(*pip, "install", *offline, wheel, cwd=tmp_path)
    if kind == AdapterKind.COMMAND:  # it has no contract but a plugin's, which its tests check
        assert "hexkv check" not in readme
        run(hexkv, name, cwd=empty)
    else:
        target = re.search(r"hexkv check (\S+)", readme)[1]
        patient = "--limit", "900"  # on a busy machine
        done = attempt(hexkv, "check", target, *patient, "--json", tmp_path / "card", cwd=empty)
        assert done.returncode == 0, done.stdout + done.stderr
        (card,) = json.loads((tmp_path / "card").read_text())["cards"]
        verdicts = Counter(line["verdict"] for line in card["promises"])
        assert verdicts["kept"] >= 3, verdicts
        assert not verdicts["broken"], verdicts
    assert [*empty.iterdir()] == []


@pytest.mark.thorough
def test_hexkv_alone_is_a_cache_in_memory_and_names_what_a_command_lacks(wheels, tmp_path):
    python = environment(tmp_path, wheels, "hexkv")
    found, without = run(python, "-I", "-c", ALONE, cwd=tmp_path).splitlines()
    assert found == "{'memory': 512} True"
    assert without == "no operate adapter 'verbs': pip install hexkv-operate"
    for command in ("explain", "export", "fleet", "fsck", "plan", "top"):
        done = attempt(python.parent / "hexkv", command, cwd=tmp_path)
        assert done.returncode == 1
        assert f"(pip install {COMMANDS[command]})" in done.stderr
    rows = json.loads(run(python.parent / "hexkv", "adapters", "--json", cwd=tmp_path))
    assert {row["distribution"].partition(" ")[0] for row in rows} == {"hexkv"}
    assert {row["state"] for row in rows} == {"ready"}
    hexkv = python.parent / "hexkv"
    done = attempt(hexkv, "config", "from-lmcache", "lmcache.yaml", cwd=tmp_path)
    assert (done.returncode, "(pip install hexkv-lmcache)" in done.stderr) == (1, True)
    (tmp_path / "c.yaml").write_text("pool: {bytes: 64MiB}\n")
    assert run(hexkv, "config", "check", "c.yaml", "--open", cwd=tmp_path) == "no problem\n"
    assert json.loads(run(hexkv, "config", "schema", cwd=tmp_path))["title"]


def complaints(output):
    """The lines of the consumer's file that *output* complains about."""
    lines = [line for line in output.splitlines() if "error:" in line]
    return [int(line.partition("consumer.py:")[2].partition(":")[0]) for line in lines]


@pytest.mark.thorough
@pytest.mark.parametrize("install", ["editable", "wheels"])
def test_mypy_sees_the_types_of_an_install(install, request, tmp_path):
    python = sys.executable if install == "editable" else request.getfixturevalue("clean")
    (tmp_path / "consumer.py").write_text(CONSUMER)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull]
    options = ["--python-executable", python, "--cache-dir", tmp_path / "cache"]
    said = run(*command, *options, "consumer.py", cwd=tmp_path, fails=True)
    assert complaints(said) == WRONG, said


@pytest.mark.thorough
def test_pyright_sees_the_types_of_an_editable_install(tmp_path):
    (tmp_path / "consumer.py").write_text(CONSUMER)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "consumer.py"]
    said = run(*command, cwd=tmp_path, fails=True)
    assert complaints(said.replace(" - error", ": error")) == WRONG, said
