"""A tier that reads from peers: whole engines, over real connections."""

from contextlib import ExitStack, suppress
from threading import Barrier, Event, Thread

import pytest

from configured import CHUNK, FRAME, LAYOUT, PROMPT, computed, hit
from hexkv.adapters.net.peers.session import PeerSession as TcpSession
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.peers.lending.lending import Lending
from hexkv.peers.service import PeerService
from hexkv.plugins.clock import SystemClock
from hexkv.ports import PAGE, CounterName, InvalidRequest
from peers.peering import (
    MOST,
    PATIENT,
    directory_at,
    eventually,
    fleet,
    kept,
    keys_of,
    opened,
    peers_of,
    serving,
    soon,
    stack_of,
    tiers_of,
)
from servers.directory_servers import Served

ALL = len(PROMPT) // CHUNK


def test_what_a_peer_holds_is_a_hit_and_kept():
    with opened(*fleet("a", "b", "c")) as (a, b, c):
        a.store(PROMPT, computed())
        assert c.admin.detach("peers")
        assert hit(c) == 0
        c.admin.attach({"store": "peers"})
        assert b.lookup(PROMPT).hit_tokens == len(PROMPT)
        assert hit(b) == len(PROMPT)
        assert b.telemetry.total(CounterName.HITS, tier="peers") == ALL
        assert hit(b) == len(PROMPT)
        assert b.telemetry.total(CounterName.HITS, tier="memory") == ALL
        assert b.telemetry.total(CounterName.STORED, tier="peers") == 0
        a.close()
        assert hit(c) == len(PROMPT)  # from b
        eventually(lambda: b.telemetry.total(CounterName.LENT_BYTES) == ALL * FRAME)
        c.clear(PROMPT, tiers=["memory"])
        target = HeapKV(LAYOUT, len(PROMPT))
        with c.retrieve_layers(PROMPT, target) as layers:
            assert list(layers) == list(range(LAYOUT.layers))
            assert layers.result().hit_tokens == len(PROMPT)
        assert target.agrees(computed(), len(PROMPT))
        text = PROMPT[:CHUNK]
        c.clear(text, tiers=["memory"])
        assert c.store(text, computed(text)).stored_tokens == CHUNK  # though b has it
        c.admin.attach({"store": "heap", "name": "below"})
        c.store(PROMPT[::-1], computed(PROMPT[::-1]))
        assert c.flush(60.0)
        c.clear(PROMPT[::-1], tiers=["memory"])
        assert hit(c, PROMPT[::-1]) == len(PROMPT)
        assert c.telemetry.total(CounterName.HITS, tier="below") == ALL  # and memory has it again
        assert c.flush(60.0)
        assert c.telemetry.total(CounterName.DROPPED, tier="peers") == 0, "peers take none"


def test_a_chunk_that_eight_want_at_once_leaves_its_holder_twice():
    """The others read it from these two, or from those who read it from them."""
    with Served(SystemClock()) as served, ExitStack() as opening:
        names = [f"reader {n}" for n in range(8)]
        # However busy the machine is: nobody is given up, and who was given a chunk still counts.
        tiers = tiers_of(PATIENT)
        peers = {"channel": "tcp", "serve": {"settle": 60.0}}

        def start(name):
            directory = directory_at(served) | {"name": name}
            return serving(tiers=tiers, directory=directory, peers=peers)

        holder, *readers = opening.enter_context(opened(*map(start, ["holder", *names])))
        holder.store(PROMPT, computed())
        eventually(lambda: all(peers_of(holder).directory.locate(keys_of(holder), soon())))
        together, found = Barrier(len(readers)), []

        def read(engine):
            together.wait()
            found.append(hit(engine))

        threads = [Thread(target=read, args=(engine,)) for engine in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [len(PROMPT)] * len(readers)

        def lent():
            engines = holder, *readers
            return [engine.telemetry.total(CounterName.LENT_BYTES) for engine in engines]

        eventually(lambda: sum(lent()) == len(readers) * ALL * FRAME)
        assert max(lent()) <= 2 * ALL * FRAME


def test_chunks_that_several_requests_want_are_read_once(monkeypatch):
    asked = Event()  # by all of them

    def lend(self, keys, who, deadline):
        assert asked.wait(MOST)
        return Lending.lend(self._lending, keys, who, deadline)

    monkeypatch.setattr(PeerService, "lend", lend)
    with opened(*fleet("a", "b", tiers=tiers_of(PATIENT))) as (a, b):
        a.store(PROMPT, computed())
        found = []
        threads = [Thread(target=lambda: found.append(hit(b))) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: sum(who.startswith("call-") for who in b.health().leases) == 4)
        asked.set()
        for thread in threads:
            thread.join()
        assert found == [len(PROMPT)] * 4
        eventually(lambda: a.telemetry.total(CounterName.LENT_BYTES) == ALL * FRAME)


class AllHaveAll:
    """A directory's answers, made wrong."""

    def __init__(self, directory):
        self._directory = directory

    def __getattr__(self, name):
        return getattr(self._directory, name)

    def locate(self, keys, deadline):
        return [self._directory.members(deadline)] * len(keys)


def test_a_question_never_goes_further_than_to_one_process(monkeypatch):
    """Each believes that all others have everything: nobody asks others on behalf of somebody."""
    asked = []

    def lend(self, keys, who, deadline):
        asked.append(who)
        return Lending.lend(self._lending, keys, who, deadline)

    monkeypatch.setattr(PeerService, "lend", lend)
    with opened(*fleet("a", "b", "c")) as engines:
        for engine in engines:
            (store,) = [tier.store for tier in stack_of(engine).tiers if tier.name == "peers"]
            monkeypatch.setattr(store, "_directory", AllHaveAll(store._directory))
        for engine in engines:
            asked.clear()
            assert hit(engine) == 0
            assert {*asked} == {peers_of(engine).member.name}
        engines[0].store(PROMPT, computed())
        eventually(lambda: hit(engines[1]) == len(PROMPT))


def test_what_a_peer_damages_is_a_miss_and_then_another_one_is_asked(monkeypatch):
    with opened(*fleet("a", "b", "c", tiers=tiers_of(PATIENT))) as (a, b, c):
        a.store(PROMPT, computed())
        lent = TcpSession._give

        def damaged(session, before, parts, deadline):
            """As of a process whose memory is broken: the header is right, one byte is not."""
            if session._served is peers_of(a):
                for key, _, _ in parts:
                    with suppress(InvalidRequest), kept(a, key) as lease:
                        stack_of(a).writer.sealed(key, lease)
                        lease.frame[PAGE + 7] ^= 1
            return lent(session, before, parts, deadline)

        monkeypatch.setattr(TcpSession, "_give", damaged)
        got = hit(c)  # which compares what came
        assert got < len(PROMPT)
        assert c.telemetry.total(CounterName.CORRUPT, tier="peers") > 0
        b.store(PROMPT, computed())
        eventually(lambda: hit(c) == len(PROMPT))


@pytest.mark.parametrize(
    ("channel", "provider"),
    [("shm", "shared"), pytest.param("nixl", "mmap", marks=pytest.mark.thorough)],
)
def test_a_channel_that_reads_memory_in_place_is_shown_the_pools(channel, provider):
    if channel == "nixl":
        pytest.importorskip("nixl_cu12", reason="NIXL cannot be installed here")
    with Served(SystemClock()) as served, ExitStack() as opening:
        directory = directory_at(served)
        a, b = (
            opening.enter_context(
                serving(
                    pool={"bytes": 64 * FRAME, "provider": provider},
                    tiers=tiers_of(PATIENT),
                    directory=directory | {"name": name},
                    peers={"channel": channel},
                )
            )
            for name in "ab"
        )
        a.store(PROMPT, computed())
        eventually(lambda: all(peers_of(b).directory.locate(keys_of(b), soon())))
        with kept(a, keys_of(a)[0]) as lease:
            assert peers_of(a)._channel._memory.find(lease.frame) is not None
        assert hit(b) == len(PROMPT)
        # Counted when the lease ends, which is after the reader has it.
        eventually(lambda: a.telemetry.total(CounterName.LENT_BYTES) == ALL * FRAME)
