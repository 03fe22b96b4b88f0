"""A server is certified from outside, and every flaw is called by its name."""

import inspect
import json
from pathlib import Path

import pytest

from hexkv.adapters.lmcache.blackbox import BlackBoxContract
from hexkv.contracts.kit.promise import Promise
from hexkv.plugins.__main__ import main
from servers import broken_servers
from servers.lm_servers import SMALL, served

pytest_plugins = ["pytester"]

CAUGHT = {
    "DropsTheLastByte": "wire.2",
    "FoldsCase": "wire.7",
    "CutsLongKeys": "wire.7",
    "ForgetsTheTensor": "wire.6",
    "KeepsTheLongerEnd": "wire.5",
    "PublishesBeforeItHasAll": "wire.11",
    "AnswersAMissWithSilence": "wire.3",
    "ServesOneAfterTheOther": "wire.31",
    "AnswersUnderALock": "wire.33",
    "DiesOfAMalformedRequest": "wire.30",
    "IgnoresWhatItDoesNotKnow": "wire.30",
    "EmptiesBeforeItKeeps": "wire.22",
}
"""Which server is caught by which promise."""

SUITE = """
    import pytest
    from servers import broken_servers
    from hexkv.adapters.lmcache.blackbox import Address, BlackBoxContract

    class ServerCase(BlackBoxContract):
        @pytest.fixture
        def server(self, monkeypatch):
            name = type(self).__name__.removeprefix("Test")
            if name != "Server":  # which is given all the time that it may need
                monkeypatch.setattr("hexkv.adapters.lmcache.blackbox._wire.PATIENCE", 1.5)
            with getattr(broken_servers, name)() as server:
                yield Address(*server.address)
"""


def promises():
    """The test that checks each promise."""
    found = {}
    for name, test in inspect.getmembers(BlackBoxContract, inspect.isfunction):
        if promise := Promise.of(getattr(test, "pytestmark", [])):
            found[promise.number] = name
    return found


@pytest.fixture
def certified(pytester, monkeypatch):
    """What became of the promises: each broken server's one, and all of the sound one's."""
    monkeypatch.setenv("PYTHONPATH", str(Path(broken_servers.__file__).parents[1]))
    classes = ["Server", *CAUGHT]
    bodies = [f"    class Test{name}(ServerCase): pass\n" for name in classes]
    file = pytester.makepyfile(SUITE + "\n" + "\n".join(bodies))
    tests = [f"{file}::Test{name}::{promises()[number]}" for name, number in CAUGHT.items()]
    options = ["-p", "no:cacheprovider", "--hexkv-scorecard", "card.json", "--tb=line"]
    pytester.runpytest_subprocess(*options, f"{file}::TestServer", *tests)
    cards = json.loads((pytester.path / "card.json").read_text())["cards"]
    return {card["subject"]["name"].rpartition("::Test")[2]: card["promises"] for card in cards}


@pytest.mark.thorough
def test_a_sound_server_keeps_every_promise_and_each_flaw_is_caught_by_its_own(certified):
    sound = {promise["number"]: promise["verdict"] for promise in certified.pop("Server")}
    assert sound == dict.fromkeys(promises(), "kept")
    caught = {
        name: [promise["number"] for promise in found if promise["verdict"] == "broken"]
        for name, found in certified.items()
    }
    assert caught == {name: [number] for name, number in CAUGHT.items()}


def test_every_broken_server_is_tried():
    broken = {found.__name__ for found in broken_servers.Server.__subclasses__()}
    assert broken == CAUGHT.keys()


@pytest.mark.thorough
def test_our_own_server_is_certified_by_the_command(capsys):
    with served(*SMALL, "--patience", "60") as server:  # one of the promises trickles a request
        code = main(["check", "--black-box", f"lm://{server.address}", "--json"])
        foreign = main(["check", "--black-box", f"lm://{server.address}", "--level", "L5"])
    out, err = capsys.readouterr()
    assert (code, foreign, err) == (0, 0, ""), out
    (card,) = json.JSONDecoder().raw_decode(out)[0]["cards"]
    assert card["held"] == ["L0", "L1", "L2", "L3", "L4", "L5"]
    assert card["subject"]["name"] == f"lm://{server.address}"


def test_a_server_that_is_not_there_is_one_line_of_error(capsys):
    assert main(["check", "--black-box", "lm://127.0.0.1:1", "--level", "L0"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "refused" in err
