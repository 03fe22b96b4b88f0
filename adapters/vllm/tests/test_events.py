"""A ledger says what was stored and what went, of chunks that it was told to expect."""

from hexkv.adapters.vllm.metrics.events import BlockInfo, EventBuffer
from hexkv.ports import CacheEvent, Change

CHUNK = BlockInfo((b"h1", b"h2"), None, (1, 2, 3, 4), 2, "")


def test_what_was_expected_is_told_once_with_its_medium():
    ledger = EventBuffer({"fast": "CPU"})
    ledger.expect([b"a"], [CHUNK])
    ledger.emit(CacheEvent(Change.STORED, "fast", [b"a", b"stranger"]))
    ledger.emit(CacheEvent(Change.REMOVED, "slow", [b"a"]))
    told = [(one.stored, one.medium, one.chunk) for one in ledger.take()]
    assert told == [(True, "CPU", CHUNK), (False, "STORAGE", CHUNK)]
    assert ledger.take() == []


def test_a_ledger_that_nobody_reads_does_not_grow_for_ever():
    ledger = EventBuffer({})
    for i in range(70_000):
        ledger.expect([i.to_bytes(4, "big")], [CHUNK])
        ledger.emit(CacheEvent(Change.STORED, "fast", [i.to_bytes(4, "big")]))
    assert len(ledger.take()) == 1 << 14
    ledger.emit(CacheEvent(Change.REMOVED, "fast", [bytes(4), (69_999).to_bytes(4, "big")]))
    assert len(ledger.take()) == 1  # the oldest is forgotten
