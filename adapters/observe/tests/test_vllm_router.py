"""The example: vllm-router sends requests to the engine whose cache has their beginning."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROUTER = ROOT / ".venv/routers/bin/vllm-router"


@pytest.mark.thorough
def test_requests_go_where_their_prefix_is(tmp_path):
    if not ROUTER.exists():
        pytest.skip("needs vllm-router: make routers")
    example = ROOT / "examples" / "routing" / "run.py"
    command = [sys.executable, example, "--router", ROUTER, "--logs", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    logs = "".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs}"
    assert done.stdout.endswith("12 of 12 went to where their beginning is\n")
