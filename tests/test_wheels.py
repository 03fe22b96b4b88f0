"""What is installed from wheels works by itself, and type checkers see every kind of install."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
INSTALLED = ("hexkv", "hexkv_local", "hexkv_contracts")
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


def run(*command, cwd, fails=False):
    """What a command prints. It sees nothing of this process's Python path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HEXKV"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A wheel of every distribution, by its name."""
    target = tmp_path_factory.mktemp("wheels")
    folders = [ROOT, *ROOT.glob("*/pyproject.toml"), *ROOT.glob("adapters/*/pyproject.toml")]
    folders = [folder if folder.is_dir() else folder.parent for folder in folders]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--wheel-dir", target]
    run(*pip, *offline, *folders, cwd=ROOT)
    found = {wheel.name.partition("-")[0]: wheel for wheel in target.glob("*.whl")}
    assert len(found) == len(folders)
    return found


@pytest.fixture(scope="module")
def clean(wheels, tmp_path_factory):
    """The Python of an environment with our wheels, and of others' what they say they need."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    offline = ["--disable-pip-version-check", "--no-index", "--no-deps"]
    run(*pip, *offline, *(wheels[name] for name in INSTALLED), cwd=home)
    paths = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    ours = list(metadata.distributions(path=[str(packages)]))
    for needed in requirements(ours):
        for top in {file.parts[0] for file in needed.files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(needed.locate_file(top))
    return python


def requirements(distributions):
    """What *distributions* need, and what that needs, as it is installed here."""
    found = {distribution.name: None for distribution in distributions}
    todo = [need for distribution in distributions for need in distribution.requires or ()]
    while todo:
        need = Requirement(todo.pop())
        name = canonicalize_name(need.name)
        if name not in found and (need.marker is None or need.marker.evaluate({"extra": ""})):
            found[name] = metadata.distribution(name)
            todo += found[name].requires or ()
    return [distribution for distribution in found.values() if distribution]


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheels_together_hold_every_module_once_and_nothing_else(wheels):
    packed = [
        name for wheel in wheels.values() for name in contents(wheel) if ".dist-info/" not in name
    ]
    written = [
        path.relative_to(top.parent).as_posix()
        for top in (*ROOT.glob("*/hexkv"), *ROOT.glob("adapters/*/hexkv"))
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
    assert found["store", "disk"] == found["store", "memory"] == found["memory", "mmap"] == "local"
    assert not any(row["distribution"].startswith(("hexkv-hf", "acme")) for row in rows)


def test_wheels_store_and_retrieve(clean):
    said = run(clean, "-I", ROOT / "examples" / "two_tiers.py", cwd=clean.parent)
    assert "the KV is the one that was stored" in said


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
