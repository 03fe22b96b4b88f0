"""What a store reads into a device past the host is verified there; the rest comes as ever."""

from threading import Event
from zlib import crc32

import pytest

from dict_store import ScanningStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import (
    PAGE,
    CounterName,
    Failed,
    Finished,
    Hit,
    InvalidRequest,
    Miss,
    Reason,
    Span,
    StoreUnreachable,
)
from layered import FULL, PROMPT, computed
from rigging import CHUNK, LAYOUT, tier

DEVICES = {}
"""The memory of rooms, by its address."""


class Room:
    """Memory of a device of one's own, of which the host sees the address alone."""

    def __init__(self, window, owner, memory=None, base=0):
        self.window, self.owner, self.held = window, owner, True
        self.memory, self.base = memory, base
        window.holds += 1

    @property
    def size(self):
        return len(self.memory)

    def bind(self):
        self.window.bound += 1

    def digests(self, checksum, parts, deadline):
        assert checksum == "crc32"
        if self.window.blind:
            return None
        found = [crc32(self.memory[s:e]).to_bytes(4, "little") for s, e in parts]
        return found[1:] if self.window.short else found

    def scatter(self, spans):
        if self.window.refuses:
            raise self.window.refuses
        for start, end, at in spans:
            size = LAYOUT.chunk_bytes(end - start)
            self.window.scatter([Span(start, end, memoryview(self.memory)[at : at + size])])
            self.window.took += 1
        return Finished()

    def share(self, owner):
        assert self.held
        return Room(self.window, owner, self.memory, self.base)

    def release(self):
        self.window.holds -= self.held
        self.held = False


class Window(HeapKV):
    """Lends rooms, and counts what came through them."""

    def __init__(self):
        super().__init__(LAYOUT, len(PROMPT))
        self.holds = self.took = self.bound = 0
        self.blind = self.short = self.refuses = None
        self.lends = True

    def device_room(self, size, owner):
        if isinstance(self.lends, Exception):
            raise self.lends
        if not self.lends:
            return None
        base = 4096 * (len(DEVICES) + 1)
        DEVICES[base] = bytearray(size)
        return Room(self, owner, DEVICES[base], base)


class PastHost(ScanningStore):
    """Reads into devices, and counts; *wrong* is done to what it brought."""

    def __init__(self, medium):
        super().__init__(medium)
        self.reads_to_devices, self.reads, self.wrong = True, 0, None

    def read_to_device(self, key, page, into, deadline):
        self.reads += 1
        frame = self.fetch(key)
        if frame is None:
            return Miss()
        if len(frame) != PAGE + into.length:
            return Miss(Reason.REFUSED)
        page[:] = frame[:PAGE]
        DEVICES[into.base][into.at : into.at + into.length] = frame[PAGE:]
        return Hit(len(frame)) if self.wrong is None else self.wrong(page, into)


def flip(page, into):
    DEVICES[into.base][into.at + into.length // 2] ^= 1
    return Hit(PAGE + into.length)


def flip_the_page(page, into):
    page[60] ^= 1
    return Hit(PAGE + into.length)


def fail(page, into):
    return Failed(StoreUnreachable("no way"))


def leave(page, into):
    raise SystemExit


def answer_nonsense(page, into):
    return Hit(1)


@pytest.fixture
def filled(rig):
    def filled(*tiers):
        store = PastHost({})
        r = rig([*tiers, tier("link", store)])
        r.engine.store(PROMPT, computed())
        return r, store

    yield filled
    DEVICES.clear()


def load(r, window):
    found = r.engine.retrieve(PROMPT, window)
    assert window.agrees(computed(), found.hit_tokens)
    assert "memory" in r.tiers or r.given_back()
    assert window.holds == 0
    return found


def test_a_chunk_that_does_not_come_past_the_host_comes_as_ever(filled):
    r, store = filled()
    window = Window()
    assert load(r, window).hit_tokens == FULL
    assert (window.took, store.reads) == (FULL // CHUNK, FULL // CHUNK)
    assert dict(load(r, Window()).tiers) == {"link": FULL}
    for wrong in (flip, flip_the_page, fail, leave, answer_nonsense):
        store.wrong = wrong
        window = Window()
        assert load(r, window).hit_tokens == FULL
        assert window.took == 0
    store.wrong = None
    for change in (
        {"blind": True},
        {"short": True},
        {"lends": False},
        {"lends": RuntimeError("no memory")},
        {"refuses": RuntimeError("a device that fails")},
    ):
        window = Window()
        for name, value in change.items():
            setattr(window, name, value)
        assert load(r, window).hit_tokens == FULL
        assert window.took == 0
    reads = store.reads
    store.reads_to_devices = False
    assert load(r, Window()).hit_tokens == FULL
    assert store.reads == reads
    assert r.telemetry.total(CounterName.CORRUPT) == 0
    window = Window()
    store.reads_to_devices, window.refuses = True, InvalidRequest("no such slot")
    with pytest.raises(InvalidRequest):
        r.engine.retrieve(PROMPT, window)
    assert window.holds == 0


@pytest.mark.thorough
def test_what_memory_has_comes_from_there_and_what_came_past_it_is_not_promoted(filled):
    r, _ = filled(tier("memory", MemoryStore(ManualClock()), budget=4 << 13))
    window = Window()
    found = load(r, window)
    assert found.hit_tokens == FULL
    assert window.took * CHUNK == found.tiers["link"]
    assert dict(load(r, Window()).tiers) == dict(found.tiers)


@pytest.mark.thorough
def test_a_read_that_is_late_keeps_its_room_until_it_ends(filled):
    r, store = filled()
    inside, go = Event(), Event()

    def late(page, into):
        inside.set()
        r.clock.advance(1e6)
        go.wait(60)
        return flip(page, into)

    store.wrong = late
    window = Window()
    found = r.engine.retrieve(PROMPT, window)
    assert inside.is_set()
    assert found.hit_tokens == 0
    assert window.holds == 1
    go.set()
    assert r.engine.close() is None
    assert r.given_back()
    assert window.holds == 0
