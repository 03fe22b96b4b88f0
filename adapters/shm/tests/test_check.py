"""``hexkv check`` certifies a channel that is installed, with peers in other processes."""

import json

import pytest

from hexkv.plugins.__main__ import main


@pytest.mark.thorough
def test_an_installed_channel_is_certified(capsys):
    code = main(["check", "shm", "--level", "L4", "--json"])
    (card,) = json.loads(capsys.readouterr().out)["cards"]
    assert code == 0
    assert card["held"] == ["L4"]
    assert card["levels"]["L4"]["kept"] >= 6, "peers that are stopped and killed are tried"
