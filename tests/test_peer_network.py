"""Peers with addresses of their own, in network namespaces: as on machines that can be cut off."""

from contextlib import ExitStack

import pytest

from configured import prompt
from namespaces import Machines, possible
from peer_process import PeerProcess
from peering import configuration, directory_of, eventually

pytestmark = pytest.mark.thorough

PORT = 7272
SECRET = "what all of them know"
DEADLINE = 1.0


@pytest.fixture(scope="module")
def fleet():
    """Three machines with an engine each, which read from each other each time anew."""
    if not possible():
        pytest.skip("no network namespaces can be made here")
    with ExitStack() as opening:
        machines = opening.enter_context(Machines(3))
        places = [f"{machine.address}:{PORT}" for machine in machines]
        peers = []
        for number, machine in enumerate(machines):
            others = [place for place in places if place != places[number]]
            own = {
                "tiers": [{"store": "memory", "promote": False}, {"store": "peers"}],
                "directory": directory_of(*others) | {"name": f"machine {number}"},
                "peers": {
                    "channel": "tcp",
                    "settings": {"listen": places[number], "secret": SECRET},
                },
                "deadlines": {"lookup": 0.5, "retrieve": DEADLINE, "store": 60.0, "close": 60.0},
            }
            peer = PeerProcess(configuration(slots=128) | own, machine.prefix)
            peers.append(opening.enter_context(peer))
            assert peer.address == places[number]
        yield machines, peers


def whole(peer, number):
    """Whether all of a prompt comes."""
    return peer.read(number)[0] == len(prompt(number))


def test_what_one_machine_stores_others_read(fleet):
    _, (a, b, c) = fleet
    a.store(4)
    for reader in (b, c):
        eventually(lambda reader=reader: whole(reader, 4))


@pytest.mark.parametrize("ways", ["both ways", "one way", "the other way"])
def test_who_is_cut_off_costs_hits_only_and_is_read_again(fleet, ways):
    (first, second, _), (a, b, c) = fleet
    a.store(4)
    eventually(lambda: whole(b, 4))
    cut, mend = {
        "both ways": (first.unplug, first.plug),
        "one way": (lambda: first.say_nothing_to(second), lambda: first.speak_to(second)),
        "the other way": (lambda: second.say_nothing_to(first), lambda: second.speak_to(first)),
    }[ways]
    cut()
    try:
        assert [b.read(4)[0] for _ in range(4)] == [0] * 4
        if ways != "both ways":
            assert whole(c, 4)
    finally:
        mend()
    eventually(lambda: whole(b, 4))
