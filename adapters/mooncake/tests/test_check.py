"""``hexkv check mooncake://...`` certifies a store that others use, and leaves it as it was."""

import json

import pytest

from hexkv.plugins.__main__ import main

pytestmark = pytest.mark.thorough


def test_a_live_store_is_certified_and_left_as_it_was(master, client, capsys):
    client.put("hexkv:somebody else's", b"value")
    before = sorted(master.names())
    code = main(["check", f"mooncake://{master.address}", "--level", "L2", "--json"])
    (card,) = json.loads(capsys.readouterr().out)["cards"]
    assert code == 0
    assert card["held"] == ["L2"]
    missing = [p["number"] for p in card["promises"] if p["verdict"] == "not checked"]
    of_l2 = [number for number in missing if number.startswith("L2.")]
    assert of_l2 == ["L2.5"], "no chunk can be broken from here"
    assert sorted(master.names()) == before
    client.remove("hexkv:somebody else's", True)
