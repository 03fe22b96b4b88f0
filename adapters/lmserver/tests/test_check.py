"""``hexkv check`` certifies a server that others use, and leaves it as it was."""

import json

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.plugins.__main__ import main
from servers.lm_servers import SMALL, RawHexkv, served


def card_of(capsys, *arguments):
    code = main(["check", *arguments, "--json"])
    (card,) = json.loads(capsys.readouterr().out)["cards"]
    assert code == 0
    return card


@pytest.mark.thorough
def test_a_live_server_is_certified_and_left_as_it_was(server, capsys):
    door = RawHexkv(server.address)
    door.put(chunk_key("somebody else's"), b"value")
    card = card_of(capsys, f"hexkv://{server.address}", "--level", "L0", "--level", "L2")
    assert card["held"] == ["L0", "L2"]
    missing = [p["number"] for p in card["promises"] if p["verdict"] == "not checked"]
    of_l2 = [number for number in missing if number.startswith("L2.")]
    assert of_l2 == ["L2.5"], "no chunk can be broken from here"
    assert door.keys() == {chunk_key("somebody else's")}
    assert door.get(chunk_key("somebody else's")) == b"value"
    door.close()


@pytest.mark.thorough
def test_a_server_with_a_secret_is_certified_by_who_knows_it(tmp_path, capsys):
    path = tmp_path / "secret"
    path.write_text("a secret of the tests")
    path.chmod(0o600)
    with served(*SMALL, "--secret-file", str(path)) as server:
        secret = ("--set", f"secret_file={path}")
        card = card_of(capsys, f"hexkv://{server.address}", *secret, "--level", "L2")
    missing = [p["number"] for p in card["promises"] if p["verdict"] == "not checked"]
    of_l2 = [number for number in missing if number.startswith("L2.")]
    assert of_l2 == ["L2.5"], "no chunk can be broken from here"
