"""The engine that the README shows works."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_engine.py"


def test_an_engine_of_ones_own_computes_only_what_is_not_loaded(capsys):
    assert runpy.run_path(str(EXAMPLE))["main"]() == 0
    assert "stored 768, loaded 768, computed 232 tokens" in capsys.readouterr().out
