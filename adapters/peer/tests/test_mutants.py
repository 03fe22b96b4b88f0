"""The tests of the tier catch what would break its promises."""

import importlib.util
from inspect import signature
from pathlib import Path

import pytest

from hexkv.adapters.peer.remotes import Remote
from hexkv.adapters.peer.sinks import CallersSink
from hexkv.adapters.peer.store import PeerStore
from hexkv.contracts.doubles import ListSink
from hexkv.peers.lending.copies import Copies
from hexkv.peers.service import PeerService
from hexkv.ports import Peer
from peers.holders import Holders

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent


def module(path):
    """The tests in a file, as functions to call."""
    spec = importlib.util.spec_from_file_location(f"mutated_{path.stem}", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


STORE = module(HERE / "test_store.py")
TIER = module(HERE.parents[2] / "tests" / "peers" / "test_peer_tier.py")


def caught(test, *arguments):
    with pytest.raises(AssertionError):
        test(*arguments)


def test_frames_of_other_chunks(monkeypatch):
    init = CallersSink.__init__
    monkeypatch.setattr(
        CallersSink, "__init__", lambda self, sink, which: init(self, sink, which[::-1])
    )
    with Holders("ada", "bob") as two:
        one, other = two.put("1", "ada"), two.put("2", "ada")
        _, data = STORE.read(two.store(), two, one, other)
        assert data == [STORE.frame_of("2"), STORE.frame_of("1")]  # so it does break that
        two["ada"].source.clear()
        two["bob"].source.clear()
        caught(STORE.test_frames_and_ranges_come_from_those_who_have_them, two)


def any_life(self, member, clock, patience, *, near, real=Remote.__init__):
    real(self, member, clock, patience, near=near)
    self.peer = Peer(member.address)


WRONG = {
    "lives that are over are asked": (
        STORE.test_a_former_life_of_a_peer_is_not_asked,
        (Remote, "__init__", any_life),
    ),
    "peers that lie are believed again at once": (
        STORE.test_who_gave_damaged_frames_is_left_alone,
        (PeerStore, "quarantine", lambda self, keys, deadline: None),
    ),
    "the directory is believed more than a peer": (
        STORE.test_who_is_said_to_have_everything_costs_three_questions_and_a_miss,
        (PeerStore, "_note_lacking", lambda self, key, remote: None),
    ),
    "any number of peers is given a chunk": (
        TIER.test_a_chunk_that_eight_want_at_once_leaves_its_holder_twice,
        (Copies, "_full", lambda self, given, now: False),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_seen(name, monkeypatch):
    test, change = WRONG[name]
    monkeypatch.setattr(*change)
    with Holders("ada", "bob") as two:
        caught(test, *[two][: len(signature(test).parameters)])


def test_others_are_asked_on_behalf_of_somebody(monkeypatch):
    lend = PeerService.lend

    def passes_on(self, keys, who, deadline):
        for tier in self._exchange._lending._stack.tiers:
            if tier.name == "peers" and who != self.member.name:
                tier.store.read(keys, ListSink(), deadline)
        return lend(self, keys, who, deadline)

    class Patched(pytest.MonkeyPatch):
        """The test's own patch of the same method, around ours."""

        def setattr(self, owner, name, value):
            if owner is PeerService and name == "lend":

                def both(service, keys, who, deadline):
                    value(service, keys, who, deadline)
                    return passes_on(service, keys, who, deadline)

                super().setattr(owner, name, both)
            else:
                super().setattr(owner, name, value)

    with Patched.context() as patch:
        caught(TIER.test_a_question_never_goes_further_than_to_one_process, patch)
