"""Engines that serve each other over TCP, for tests."""

import time
from contextlib import ExitStack, contextmanager
from threading import Event

from configured import CHUNK, FRAME, NAMESPACE, PROMPT
from configured import PATIENT as DEADLINES
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import Deadline, Peer
from processes import held_port
from servers.directory_servers import SECRET

MOST = 60.0
"""Seconds after which what is to happen counts as not happening."""


def soon(seconds=MOST):
    return Deadline.after(SystemClock(), seconds)


def serving(name="", *, slots=64, tiers=None, listen="127.0.0.1:0", **sections):
    """An engine that serves peers."""
    wanted = configuration(name, slots=slots, tiers=tiers, listen=listen) | sections
    return build(load(None, {}, wanted), NAMESPACE)


def configuration(name="", *, slots=64, tiers=None, listen="127.0.0.1:0"):
    """That of an engine that serves peers."""
    return {
        "chunk": {"size": CHUNK},
        "pool": {"bytes": slots * FRAME},
        "tiers": tiers or [{"store": "memory"}],
        "deadlines": DEADLINES,
        "directory": {"name": name},
        "peers": {"channel": "tcp", "settings": {"listen": listen}},
    }


def directory_of(*addresses):
    """A section that asks all of these nodes over their channels."""
    return {"adapter": "static", "settings": {"peers": addresses, "over_channel": True}}


def free_address():
    """Where nothing listens but what is told of it."""
    return f"127.0.0.1:{held_port()}"


def peers_of(engine):
    return engine.admin.peers


def address_of(engine):
    member = peers_of(engine).member
    return Peer(member.address, member.generation)


def keys_of(engine, tokens=PROMPT):
    return list(engine.chunk_keys(tokens))


def leases(engine):
    """What is leased, but for what tiers keep."""
    held = engine.health().leases
    return {owner: count for owner, count in held.items() if not owner.endswith(" store")}


def eventually(what, seconds=MOST):
    """Wait until *what* gives something true, and return that."""
    end, pause = time.monotonic() + seconds, Event()
    while not (found := what()):
        assert time.monotonic() < end, f"{what} did not come true"
        pause.wait(0.005)
    return found


@contextmanager
def opened(*engines):
    """Closes engines at the end, and sees that nothing of theirs was left leased."""
    with ExitStack() as closing:
        for engine in engines:
            closing.enter_context(engine)
        yield engines
        for engine in engines:
            eventually(lambda engine=engine: not leases(engine))


TIERS = ({"store": "memory"}, {"store": "peers"})
PATIENT = {"locate": 60.0, "patience": 60.0}
"""Settings of the store ``peers`` where nothing is to hang."""


def tiers_of(settings):
    return [{"store": "memory"}, {"store": "peers", "settings": settings}]


def stack_of(engine):
    return engine._chunks.stack


@contextmanager
def kept(engine, key):
    """A lease on what the memory tier keeps of a chunk."""
    (memory,) = [tier for tier in stack_of(engine).tiers if tier.name == "memory"]
    (lease,) = memory.calls.get_lease([key], "test")
    with lease:
        yield lease


def fleet(*names, tiers=TIERS, **sections):
    """Engines that read from each other, each asked by the others for what it has."""
    places = {name: free_address() for name in names}
    found = []
    for name in names:
        others = [place for other, place in places.items() if other != name]
        section = directory_of(*others) | {"name": name}
        found.append(serving(tiers=tiers, listen=places[name], directory=section, **sections))
    return found


def directory_at(served):
    """A section for the directory that *served* is."""
    settings = {"address": str(served.address), "secret": SECRET.decode()}
    return {"adapter": "embedded", "settings": settings}
