"""What ``hexkv new-adapter`` makes keeps its contract as it is."""

import json
import os
import subprocess
import sys

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.new_adapter import AdapterKind, make
from hexkv.plugins.__main__ import main

TARGETS = {
    "store": "{name}",
    "serde": "{name}",
    "policy": "{name}",
    "memory": "{name}",
    "checksum": "{name}",
    "directory": "{name}",
    "device": "{module}.check:candidate",
    "chunker": "{module}.check:candidate",
    "channel": "{module}.check:candidate",
    "events": "{module}.check:candidate",
    "telemetry": "{module}.check:candidate",
}
"""What ``hexkv check`` is given of each kind that has a contract."""

TOLD = {"chunker", "events", "telemetry"}
"""Kinds that programs are given by hand: no plugin offers them."""

PYTHON = [sys.executable, "-m"]


def run(*command, cwd, path):
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def passes(root, kind, path):
    """Run the package's own tests; each class of a contract holds all that it tries."""
    card = root.parent / f"{kind}.json"
    run(*PYTHON, "pytest", "-q", "--hexkv-scorecard", card, cwd=root, path=path)
    suites = json.loads(card.read_text())["cards"]
    assert len(suites) == (kind in TARGETS) + (kind not in TOLD)
    assert all(suite["held"] for suite in suites)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", AdapterKind)
def test_a_new_adapter_is_installed_and_passes_its_tests_and_the_check(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, module = f"toy-{kind}", f"toy_{kind}"
    assert main(["new-adapter", kind, name]) == 0
    root, site = tmp_path / name, tmp_path / "site"
    pip = [*PYTHON, "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--target", site]
    run(*pip, "install", *offline, root, cwd=tmp_path, path=[])
    passes(root, kind, [site])
    listed = json.loads(
        run(*PYTHON, "hexkv.plugins", "adapters", "--json", cwd=tmp_path, path=[site])
    )
    offered = [row["kind"] for row in listed if row["name"] == name]
    assert offered == ([] if kind in TOLD else [kind])
    if target := TARGETS.get(kind):
        words = ["check", target.format(name=name, module=module), "--level", "L0"]
        assert "broken" in run(*PYTHON, "hexkv.plugins", *words, cwd=tmp_path, path=[site])
    quality = ["ruff", "check", "--isolated", "--line-length=100", "--select=E,F,I,UP,B,RUF", "."]
    run(*PYTHON, *quality, cwd=root, path=[site])
    formatted = ["ruff", "format", "--isolated", "--line-length=100", "--check"]
    run(*PYTHON, *formatted, cwd=root, path=[site])
    typed = ["mypy", "--strict", "--cache-dir", os.devnull, module]
    run(*PYTHON, *typed, cwd=root, path=[])


def test_a_new_adapter_passes_its_tests(tmp_path):
    """Of one kind; of all of them, from wheels, in ``make test-thorough``."""
    root, site = tmp_path / "toy-command", tmp_path / "site"
    make("toy-command", AdapterKind.COMMAND, root)
    info = site / "toy_command-0.1.0.dist-info"  # as after `pip install --editable`
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-command\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[hexkv]\ntoy-command = toy_command\n")
    passes(root, "command", [root, site])


def test_a_new_adapter_can_be_built_and_brings_ci(tmp_path):
    import tomllib

    import yaml

    for kind in AdapterKind:
        root = tmp_path / kind
        make("acme-thing", kind, root)
        project = tomllib.loads((root / "pyproject.toml").read_text())
        assert project["build-system"]["build-backend"] == "hatchling.build"
        offers = {} if kind in TOLD else {"hexkv": {"acme-thing": "acme_thing"}}
        assert project["project"].get("entry-points", {}) == offers
        workflow = yaml.safe_load((root / ".github/workflows/contract.yml").read_text())
        steps = [step.get("run", "") for step in workflow["jobs"]["contract"]["steps"]]
        target = TARGETS.get(kind, "").format(name="acme-thing", module="acme_thing")
        checks = [f"hexkv check {target} --badge contract.svg"] if target else []
        assert [step for step in steps if step.startswith("hexkv check")] == checks
        made = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        assert made == {
            ".github/workflows/contract.yml",
            "README.md",
            "acme_thing/__init__.py",
            f"acme_thing/{kind}.py",
            "acme_thing/py.typed",
            "pyproject.toml",
            "tests/test_contract.py",
            *(["acme_thing/check.py"] if ":" in target else []),
        }


@each("name", ["", "Upper", "two words", "-a", "a_b", "1a", "json", "class", "hexkv"])
def test_a_name_that_no_package_can_have_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-adapter", "--", name]) == 2
    assert "Usage: hexkv new-adapter" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (["disk"], ["store", "disk"], ["disk", "--kind", "store"]):
        assert main(["new-adapter", *words]) == 2
        assert "has a store of this name" in " ".join(capsys.readouterr().err.split())
    assert main(["new-adapter", "command", "check"]) == 2
    assert "has a command of this name" in " ".join(capsys.readouterr().err.split())
    for words in (["stoer", "thing"], ["store", "a", "b"], ["store", "a", "--kind", "serde"]):
        assert main(["new-adapter", *words]) == 2
        assert "Usage: hexkv new-adapter" in capsys.readouterr().err
    assert main(["new-adapter", "thing", "--into", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err
