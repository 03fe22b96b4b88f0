"""Peers that die, freeze, crawl and are cut off, while engines read from them."""

import signal
from contextlib import ExitStack
from threading import Event, Thread

import pytest

from configured import CHUNK, hit, prompt
from hexkv.adapters.net.address import Address
from hexkv.contracts.faults.proxy import FaultProxy
from peers.liars import PEERS
from peers.peer_process import PeerProcess
from peers.peering import configuration, directory_of, eventually, free_address, opened, serving
from processes import freeze

pytestmark = pytest.mark.thorough

PROMPTS = range(12)
FORGETS = [{"store": "memory", "promote": False}, {"store": "peers"}]
"""Tiers of an engine that reads from peers each time anew."""


class Fault:
    """A way to break a peer, and to mend it."""

    def __init__(self, kind, peer, proxy):
        self.kind, self.peer, self.proxy = kind, peer, proxy

    def begin(self):
        match self.kind:
            case "stopped":
                freeze(self.peer.process)
            case "a byte a second":
                self.proxy.bandwidth(1.0)
            case "cut off":
                self.proxy.cut()
            case "silent":
                self.proxy.stall()
            case "garbled":
                self.proxy.garbage(64)
            case lie:
                self.peer.lie(lie)

    def end(self):
        if self.kind == "stopped":
            self.peer.process.send_signal(signal.SIGCONT)
        elif self.kind in PEERS:
            self.peer.lie()
        self.proxy.mend()


@pytest.fixture
def opening():
    with ExitStack() as opening:
        yield opening


def started(opening, name):
    """A peer in a process of its own that holds every prompt, and a proxy in front of it."""
    peer = opening.enter_context(PeerProcess(configuration(name, slots=256)))
    for number in PROMPTS:
        peer.store(number)
    place = Address.parse(peer.address)
    return peer, opening.enter_context(FaultProxy((place.host, place.port)))


@pytest.mark.parametrize(
    "kind", ["stopped", "a byte a second", "cut off", "silent", "garbled", *PEERS]
)
@pytest.mark.parametrize("alone", [True, False])
def test_what_is_read_is_right_while_a_peer_is_broken_and_all_comes_afterwards(
    opening, kind, alone
):
    """If another one has it all, at most what was under way is missed."""
    peer, proxy = started(opening, "broken")
    proxies = [proxy] if alone else [proxy, started(opening, "well")[1]]
    section = directory_of(*(one.address for one in proxies)) | {"name": "reader"}
    deadlines = {"lookup": 1.0, "retrieve": 2.0, "store": 60.0, "close": 60.0}
    reader = serving(tiers=FORGETS, directory=section, deadlines=deadlines, slots=128)
    (reader,) = opening.enter_context(opened(reader))
    assert hit(reader, prompt(0)) == len(prompt(0))
    fault, over, rounds, wrong = Fault(kind, peer, proxy), Event(), [0, 0], []

    def read(which):
        try:
            while not over.is_set():
                for number in PROMPTS:
                    hit(reader, prompt(number))  # compares what comes
                rounds[which] += 1
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [Thread(target=read, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: min(rounds) >= 2 or wrong)
    fault.begin()
    before = list(rounds)
    eventually(lambda: all(now > then + 1 for now, then in zip(rounds, before, strict=True)))
    fault.end()
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong

    def all_come():
        return all(hit(reader, prompt(n)) == len(prompt(n)) // CHUNK * CHUNK for n in PROMPTS)

    eventually(all_come)


def test_a_peer_that_is_killed_and_started_again_is_read_again(opening):
    place = free_address()
    section = directory_of(place) | {"name": "reader"}
    (reader,) = opening.enter_context(opened(serving(tiers=FORGETS, directory=section, slots=128)))
    for _ in range(2):
        with PeerProcess(configuration("peer", slots=256, listen=place)) as peer:
            peer.store(1)
            eventually(lambda: hit(reader, prompt(1)) == len(prompt(1)))
            peer.kill()
            assert hit(reader, prompt(1)) == 0
