"""``hexkv check redis://...`` certifies a server that others use, and leaves it as it was."""

import json

import pytest

from hexkv.plugins.__main__ import main


@pytest.mark.thorough
def test_a_live_server_is_certified_and_left_as_it_was(valkey, capsys):
    with valkey.admin() as admin:
        admin.set("somebody else's", "value")
        admin.set("hexkv:somebody else's", "value")
        before = sorted(admin.keys())
        code = main(["check", valkey.url, "--level", "L0", "--level", "L2", "--json"])
        (card,) = json.loads(capsys.readouterr().out)["cards"]
        assert code == 0
        assert card["held"] == ["L0", "L2"]
        missing = [p["number"] for p in card["promises"] if p["verdict"] == "not checked"]
        of_l2 = [number for number in missing if number.startswith("L2.")]
        assert of_l2 == ["L2.5"], "no chunk can be broken from here"
        assert sorted(admin.keys()) == before
        admin.unlink("somebody else's", "hexkv:somebody else's")
