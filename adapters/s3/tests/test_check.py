"""``hexkv check s3://...`` certifies a server that others use, and leaves it as it was."""

import json

import pytest

from hexkv.plugins.__main__ import main
from servers.s3_double import BUCKET


@pytest.mark.thorough
def test_a_live_server_is_certified_and_left_as_it_was(double, prefix, capsys):
    objects = double.objects(f"{prefix}/")
    objects.put_name(f"{prefix}/somebody else's", b"value")
    settings = [word for pair in double.settings.items() for word in ("--set", "=".join(pair))]
    target = ["check", f"s3://{BUCKET}/{prefix}", *settings, "--json"]
    code = main([*target, "--level", "L0", "--level", "L2", "--level", "L4"])
    (card,) = json.loads(capsys.readouterr().out)["cards"]
    assert code == 0
    assert card["held"] == ["L0", "L2", "L4"]
    missing = [p["number"] for p in card["promises"] if p["verdict"] == "not checked"]
    of_l2 = [number for number in missing if number.startswith("L2.")]
    assert of_l2 == ["L2.5"], "no chunk can be broken from here"
    kept = card["levels"]["L4"]["kept"]
    assert kept == 7, "slow, cut, also amid an answer, stalled, garbage and clear, by a proxy"
    assert objects.names() == {f"{prefix}/somebody else's"}
    objects.clear()
