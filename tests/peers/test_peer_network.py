"""Peers with addresses of their own, in network namespaces: as on machines that can be cut off."""

from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from configured import FRAME, prompt
from machines.namespaces import Machines, possible
from peers.peer_process import PeerProcess
from peers.peering import configuration, directory_of, eventually

pytestmark = pytest.mark.thorough

PORT = 7272
SECRET = "what all of them know"
DEADLINE = 1.0


@contextmanager
def fleet_over(channel, places, machines, provider="mmap"):
    """An engine on each machine, which read from each other each time anew."""
    with ExitStack() as opening:
        peers = []
        for place, machine in zip(places, machines, strict=True):
            others = [other for other in places if other != place]
            own = {
                "pool": {"bytes": 128 * FRAME, "provider": provider},
                "tiers": [{"store": "memory", "promote": False}, {"store": "peers"}],
                "directory": directory_of(*others) | {"name": machine.name},
                "peers": {"channel": channel, "settings": {"listen": place, "secret": SECRET}},
                "deadlines": {"lookup": 0.5, "retrieve": DEADLINE, "store": 60.0, "close": 60.0},
            }
            # UCX would see that it is one machine, and copy past the network.
            peer = PeerProcess(configuration() | own, machine.prefix, UCX_TLS="tcp")
            peers.append(opening.enter_context(peer))
            assert peer.address == place
        yield machines, peers


@pytest.fixture(scope="module")
def machines():
    """Four of them: nobody hears who is not one of them."""
    if not possible():
        pytest.skip("no network namespaces can be made here")
    with Machines(4) as machines:
        yield machines


@pytest.fixture(scope="module", params=["tcp", "nixl", "mooncake"])
def fleet(request, machines):
    """An engine on each machine, which read from each other over that channel."""
    if request.param == "nixl":
        pytest.importorskip("nixl_cu12")
    places = [f"{machine.address}:{PORT}" for machine in machines]
    with fleet_over(request.param, places, machines) as (machines, peers):
        yield machines, peers, request.param


def whole(peer, number):
    """Whether all of a prompt comes."""
    return peer.read(number)[0] == len(prompt(number))


def foreign(peer):
    """Ports of connections that are not the channel's own, in that machine."""
    lines = Path(f"/proc/{peer.process.pid}/net/tcp").read_text().splitlines()[1:]
    ports = [
        {int(place.split(":")[1], 16) for place in line.split()[1:3]}
        for line in lines
        if line.split()[3] == "01"
    ]
    return [both for both in ports if PORT not in both]


def test_what_one_machine_stores_others_read(fleet):
    """By the library's own connections where the channel has a library."""
    _, (a, *others), channel = fleet
    a.store(4)
    for reader in others:
        eventually(lambda reader=reader: whole(reader, 4))
        assert bool(foreign(reader)) == (channel != "tcp")


def test_containers_read_each_other_over_shared_memory(machines, tmp_path):
    """With networks of their own, and a directory that all of them see."""
    places = [f"{tmp_path}/{number}" for number in range(len(machines))]
    with fleet_over("shm", places, machines, "shared") as (_, (a, *others)):
        a.store(4)
        for reader in others:
            eventually(lambda reader=reader: whole(reader, 4))


@pytest.mark.parametrize("ways", ["both ways", "one way", "the other way"])
def test_who_is_cut_off_costs_hits_only_and_is_read_again(fleet, ways):
    (first, second, *_), (a, b, c, _), _ = fleet
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
            eventually(lambda: whole(c, 4))
    finally:
        mend()
    eventually(lambda: whole(b, 4))
