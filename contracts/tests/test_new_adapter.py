"""What ``hexkv new-adapter`` makes keeps its contract as it is."""

import json
import os
import subprocess
import sys

import pytest

from hexkv.contracts.cases import each
from hexkv.contracts.new_adapter import Kind, make
from hexkv.plugins.__main__ import main


def run(*command, cwd, site):
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (cwd, site)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(site, name):
    """As after ``pip install --editable``: the entry point can be found."""
    info = site / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[hexkv]\n{name} = {name.replace('-', '_')}\n")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", Kind)
def test_a_new_adapter_passes_its_tests_and_the_check(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = f"toy-{kind}"
    assert main(["new-adapter", name, "--kind", kind]) == 0
    capsys.readouterr()
    root, site = tmp_path / name, tmp_path / "site"
    installed(site, name)
    card = tmp_path / "card.json"
    python = [sys.executable, "-m"]
    run(*python, "pytest", "-q", "--hexkv-scorecard", card, cwd=root, site=site)
    suites = json.loads(card.read_text())["cards"]
    assert len(suites) == 2
    assert all(suite["held"] for suite in suites)
    checked = run(*python, "hexkv.plugins", "check", name, "--level", "L0", cwd=root, site=site)
    assert f"adapter: {name} of {name} ({name} 0.1.0)" in checked
    quality = ["ruff", "check", "--isolated", "--line-length=100", "--select=E,F,I,UP,B,RUF", "."]
    run(*python, *quality, cwd=root, site=site)
    run(
        *python, "ruff", "format", "--isolated", "--line-length=100", "--check", cwd=root, site=site
    )
    run(
        *python,
        "mypy",
        "--strict",
        "--cache-dir",
        os.devnull,
        name.replace("-", "_"),
        cwd=root,
        site=site,
    )


def test_a_new_adapter_can_be_built_and_brings_ci(tmp_path):
    import tomllib

    import yaml

    for kind in Kind:
        root = tmp_path / kind
        make("acme-thing", kind, root)
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        assert project["entry-points"]["hexkv"] == {"acme-thing": "acme_thing"}
        workflow = yaml.safe_load((root / ".github/workflows/contract.yml").read_text())
        steps = [step.get("run") for step in workflow["jobs"]["contract"]["steps"]]
        assert "hexkv check acme-thing --badge contract.svg" in steps
        made = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        assert made == {
            ".github/workflows/contract.yml",
            "README.md",
            "acme_thing/__init__.py",
            f"acme_thing/{kind}.py",
            "acme_thing/py.typed",
            "pyproject.toml",
            "tests/test_contract.py",
        }


@each("name", ["", "Upper", "two words", "-a", "a_b", "1a", "json", "class", "hexkv"])
def test_a_name_that_no_package_can_have_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-adapter", "--", name]) == 2
    assert "Usage: hexkv new-adapter" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-adapter", "disk"]) == 2
    assert "has a store of this name" in " ".join(capsys.readouterr().err.split())
    assert main(["new-adapter", "thing", "--into", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err
