"""The engine that the README shows works."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_engine.py"


def test_an_engine_of_ones_own_computes_only_what_is_not_loaded():
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stored 768, loaded 768, computed 232 tokens" in done.stdout
