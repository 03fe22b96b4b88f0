"""L4: the service behind the store dies, hangs, lies, fills up and comes back."""

from __future__ import annotations

from functools import partial
from threading import Event

from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.store._base import promptly
from hexkv.contracts.store.faulty._enduring import (
    ENOUGH,
    FIRST,
    FRAMES,
    GRACE,
    LARGE,
    NEW,
    OLD,
    RETURN,
    SECOND,
    SHORT,
    TRICKLE,
    Break,
    Breakable,
    Watch,
    comes_back,
    deleted,
    endures,
    found_of,
    lists,
    old_or_new,
    read_some,
    soon,
    until_written,
    write_some,
)
from hexkv.contracts.store.faulty._lasting import left_open, open_things
from hexkv.contracts.store.faulty._late import written_from_reused_memory
from hexkv.ports import Deadline

FAILURES = 16
"""Failing calls, to see their leftovers: more than a pool has connections."""


class Faults(Breakable):
    """Promises about a store with a faulty service."""

    @promise(
        "L4.1",
        "answers in time while its service is down, and works again once it is back",
        clause="ChunkStore, every call",
        why="a cache server that crashed would stop the serving engine as well",
        hint="raise StoreUnreachable, or answer Failed; connect anew with the next call",
    )
    def test_outlives_a_service_that_is_killed(self, broken: Break) -> None:
        store, service = broken("kill")
        service.kill()
        try:
            endures(store)
            endures(store)
            lists(store)
        finally:
            service.start()
        comes_back(store)

    @promise(
        "L4.2",
        "works again after its service was restarted between calls",
        clause="ChunkStore, every call",
        why="after each upgrade of the server the first requests would fail, or load wrong KV",
        hint="a connection that waited in a pool may be dead: try a fresh one before you fail",
    )
    def test_outlives_a_service_that_is_restarted(self, broken: Break) -> None:
        store, service = broken("kill")
        service.kill()
        service.start()
        endures(store, seconds=10.0)
        comes_back(store)

    @promise(
        "L4.3",
        "gives nothing wrong when its service is killed in the middle of calls",
        clause="ChunkStore.read, ChunkStore.write",
        why="half a chunk that counts as whole makes a model answer from another's KV",
        hint="Hit only after the last byte; Stored only after the service confirmed it",
    )
    def test_outlives_a_service_that_dies_amid_calls(self, broken: Break) -> None:
        store, service = broken("kill")
        answered = [Event()]
        """For the newest phase and those before: set when a round of calls begun in it ends."""
        over = Event()

        def traffic() -> None:
            while not over.is_set():
                phase = answered[-1]
                write_some(store, LARGE, soon())
                read_some(store, LARGE, soon())
                phase.set()

        with UnderWay({"one": traffic, "another": traffic}, over.set, patience=RETURN):
            for _ in range(2):
                assert answered[-1].wait(RETURN), "no call was answered"
                service.kill()
                answered.append(Event())
                try:
                    assert answered[-1].wait(RETURN), "no call was answered after the service died"
                finally:
                    service.start()
                answered.append(Event())
        comes_back(store)

    @promise(
        "L4.4",
        "keeps its deadlines while its service hangs, and works again once it goes on",
        clause="ChunkStore, every call's deadline",
        why="a server that swaps or is suspended would hang every request of the engine",
        hint="give Deadline.remaining() to whatever waits, locks and pools of connections as well",
    )
    def test_outlives_a_service_that_hangs(self, broken: Break) -> None:
        store, service = broken("stall")
        watch = Watch()
        limit = Deadline.after(watch, 600.0)
        service.stall()
        watch.looked_at.clear()
        patient = {
            "a patient reader": lambda: read_some(store, OLD, limit),
            "a patient writer": lambda: write_some(store, NEW, limit),
        }
        with UnderWay(patient, service.resume, patience=RETURN):
            assert watch.looked_at.wait(RETURN), "no call looked at its deadline"
            self.endures(store)
        comes_back(store)

    @promise(
        "L4.5",
        "is right with a slow service for a long deadline, and in time for a short one",
        clause="ChunkStore, every call's deadline",
        why="a slow server costs each request its deadline at most, or it costs without limit",
        hint="a time-out per receive, or per chunk, is no deadline: a byte now and then renews it",
    )
    def test_outlives_a_slow_service(self, broken: Break) -> None:
        store, service = broken("slow")
        service.slow(0.1)
        write_some(store, NEW, soon(ENOUGH))
        found = read_some(store, FRAMES, soon(ENOUGH))
        assert set(OLD) <= found, "a chunk was not found in 30 seconds because of 0.1"
        for seconds in (SHORT * TRICKLE, SHORT + GRACE + 1):
            service.slow(seconds)
            self.endures(store)
        if "trickle" in service.can:
            service.trickle()
            self.endures(store)
        service.mend()
        comes_back(store)

    @promise(
        "L4.6",
        "fails as a store does while every connection is cut: no failure is a miss",
        clause="ChunkStore, every call",
        why="a firewall ends connections at any moment; a chunk that is there would be given up",
        hint="map what your client raises to StoreUnreachable, in one place; contains raises, too",
    )
    def test_outlives_cut_connections(self, broken: Break) -> None:
        store, service = broken("cut")
        service.cut()
        self.endures(store)
        absent = deleted(store, soon())
        lists(store)
        before = open_things()
        for _ in range(FAILURES):
            read_some(store, OLD, soon())
        left = left_open(before, FAILURES)
        service.mend()
        assert left < FAILURES, f"{left} more files and threads after {FAILURES} calls that failed"
        comes_back(store)
        assert not read_some(store, absent, soon(ENOUGH)), (
            "a chunk is there after an answer of delete"
        )

    @promise(
        "L4.7",
        "takes garbage from its service for a failure, and never uses that connection again",
        clause="ChunkStore, every call",
        why="an answer that belongs to nothing shifts all later ones: other chunks' bytes",
        hint="check the head of every answer; close the connection when it makes no sense",
    )
    def test_outlives_garbage(self, broken: Break) -> None:
        store, service = broken("garbage")
        service.garbage()
        self.endures(store)
        service.mend()
        comes_back(store)

    @promise(
        "L4.8",
        "reports a frame that there is no room for as not stored, and keeps the others whole",
        clause="ChunkStore.write",
        why="chunks that are counted as stored and are not there make every budget wrong",
        hint="answer Failed(StoreFull(...)) for the chunk; the others of the batch go on",
    )
    def test_outlives_a_full_service(self, broken: Break) -> None:
        store, service = broken("full")
        until_written(store, FIRST)
        service.fill()
        replaced = written_from_reused_memory(store, SECOND, soon(ENOUGH))
        old_or_new(found_of(store, list(FIRST)), FIRST, SECOND, replaced)
        here = read_some(store, OLD, soon(ENOUGH))
        stored = write_some(store, LARGE, soon(ENOUGH))
        found = read_some(store, FRAMES, soon(ENOUGH))
        assert found & set(LARGE) <= stored, "a chunk that was not stored is there"
        if not self.loses:
            assert stored <= found, "a chunk that was stored is not there"
            assert here <= found, "a chunk that was there had to go for another one"
        endures(store, seconds=10.0)
        service.mend()
        comes_back(store)

    @promise(
        "L4.9",
        "closes at once while its service hangs, and lets go of everybody who waits for it",
        clause="ChunkStore.close",
        why="the serving engine could not be stopped as long as a cache server hangs",
        hint="closing a socket does not wake a thread that waits on it: shut it down first",
    )
    def test_can_be_closed_while_its_service_hangs(self, broken: Break) -> None:
        store, service = broken("stall")
        watch = Watch()
        limit = Deadline.after(watch, 600.0)
        service.stall()
        watch.looked_at.clear()
        waiting = partial(read_some, store, OLD, limit)
        try:
            with UnderWay({"one call": waiting, "another": waiting}, patience=15.0):
                assert watch.looked_at.wait(RETURN), "no call looked at its deadline"
                promptly(store.close)
        finally:
            service.resume()
