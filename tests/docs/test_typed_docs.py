"""All code of the documents and the examples has types that checkers accept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")])
QUOTED = re.compile(r"^`examples/[^`]+`:\n\n```\w+\n.*?^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """A module of each page, with its code from top to bottom, beside the examples."""
    folder = tmp_path_factory.mktemp("code")
    for path in PAGES:
        if parts := PYTHON.findall(QUOTED.sub("", path.read_text())):
            (folder / f"of_{path.stem.replace('-', '_').lower()}.py").write_text("".join(parts))
    for path in EXAMPLES:
        (folder / path.name).write_text(path.read_text())
    return folder


def run(*command, cwd):
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_mypy_accepts_all_of_it_as_strict_code(code):
    options = ["--strict", "--config-file", os.devnull, "--cache-dir", ".cache"]
    done = run("mypy", *options, ".", cwd=code)
    assert done.returncode == 0, done.stdout


def test_pyright_accepts_all_of_it(code):
    done = run("pyright", "--pythonpath", sys.executable, "--outputjson", cwd=code)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [f"{it['file']}: {it['message']}" for it in found if it["severity"] == "error"] == []
