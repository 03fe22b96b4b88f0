"""The documentation site: what it is made of is there, and Sphinx has nothing to complain about."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hexkv.ports import Reason

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.thorough
def test_sphinx_makes_the_site_without_a_warning(tmp_path):
    options = ["-q", "-W", "--keep-going", "-c", DOCS / "site", "-d", tmp_path / "trees"]
    command = [sys.executable, "-m", "sphinx", *options, ROOT, tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    ports = (tmp_path / "site" / "docs" / "reference" / "ports.html").read_text()
    assert 'id="hexkv.ports.store.ChunkStore"' in ports


def test_an_operator_finds_each_reason_for_a_miss_among_the_symptoms():
    elsewhere = {Reason.PRESENT, Reason.CLEARED, Reason.MOVED, Reason.CLOSED, Reason.FAILURES}
    named = set(re.findall(r"`([a-z ]+)`", (DOCS / "symptoms.md").read_text()))
    assert set(Reason) - elsewhere <= named


def test_each_key_of_lmcache_has_its_place_beside_ours():
    """Those of the published package, which the tests install."""
    (source,) = ROOT.glob(".venv/lmcache/lmcache/v1/config.py")
    tree = ast.parse(source.read_text())
    (keys,) = (
        [key.value for key in node.value.keys]
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign | ast.Assign)
        and any(getattr(t, "id", "") == "_CONFIG_DEFINITIONS" for t in targets(node))
    )
    assert len(keys) > 100
    text = (DOCS / "from-lmcache.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(keys)


def targets(node):
    return node.targets if isinstance(node, ast.Assign) else [node.target]
