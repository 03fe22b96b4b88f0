"""Pages by name on a real engine: runs, pieces, and what moved."""

import hashlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.sglang.pages.page_store import PageStore, digest_of_name
from hexkv.adapters.sglang.pages.pools import memory_of, window_on
from hexkv.contracts.chunk_cache.double import HeapChunkCache, HeapHold
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.schema import Calls
from hexkv.ports import Deadline, DType, KeySpace, KVLayout, Namespace

PAGE = 4
PATIENT = Calls(lookup=60.0, retrieve=60.0, store=60.0)
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)


@pytest.fixture
def engine():
    settings = {"chunk": {"size": PAGE, "seeded": False}, "pool": {"bytes": "4MiB"}}
    with build(load(environ={}, overrides=settings), Namespace("m", LAYOUT)) as engine:
        yield engine


def names(*numbers):
    return [hashlib.sha256(bytes([number])).hexdigest() for number in numbers]


def window(count, seed=0):
    made = torch.Generator().manual_seed(seed)
    planes = [torch.randn(count, 2, PAGE, 1, 8, generator=made).half() for _ in "kv"]
    return window_on(memory_of(LAYOUT, planes), range(count)), planes


def test_a_name_is_its_digest_and_any_other_name_has_one():
    [name] = names(1)
    assert digest_of_name(name).hex() == name
    others = {digest_of_name(text) for text in ("abcd", "ukv1-ab_L0-16", "x" * 64, "")}
    assert len(others) == 4
    assert {len(digest) for digest in others} == {32}


def test_holes_are_seen_by_presence_and_end_a_prefix(engine):
    store = PageStore(engine, PAGE, PATIENT)
    assert store.save(names(0, 1, 4), window(3)[0])
    assert store.find(names(0, 1, 2, 4)) == 2
    assert store.present(names(0, 1, 2, 3, 4, 5)) == [True, True, False, False, True, False]
    target, planes = window(4, seed=1)
    before = planes[0][2:].clone()
    assert store.load(names(0, 1, 2, 4), target) == 2
    assert torch.equal(planes[0][2:], before)
    assert torch.equal(planes[0][:2], window(3)[1][0][:2])


def test_a_page_in_pieces_is_there_only_as_a_whole(engine):
    store = PageStore(engine, PAGE, PATIENT, pieces=2)
    assert store.save(names(7, 8), window(4)[0])
    engine.chunks.forget(store.keys(names(8))[1:], Deadline.after(SystemClock(), 60.0))
    assert store.find(names(7, 8)) == 1
    assert store.present(names(8, 7)) == [False, True]
    assert store.load(names(7, 8), window(4, seed=2)[0]) == 1


def test_traffic_is_told_once(engine):
    store = PageStore(engine, PAGE, PATIENT)
    store.save(names(0, 1), window(2)[0])
    store.load(names(0, 1, 2), window(3)[0])
    loaded, saved = store.traffic()
    assert (loaded[0], saved[0]) == ([2], [2])
    assert all(rate > 0 for rate in loaded[1] + saved[1])
    assert store.traffic() == (([], []), ([], []))


def test_pages_are_held_all_or_not_at_all(engine):
    store = PageStore(engine, PAGE, PATIENT)
    store.save(names(0, 1), window(2)[0])
    hold = store.hold(names(1, 0), "request")
    assert hold is not None
    expected = window(2)[1][0]
    for lease, number in zip(hold.leases, (1, 0), strict=True):
        keys = torch.frombuffer(bytearray(lease.payload), dtype=torch.float16).view(2, 2, PAGE, 8)
        assert torch.equal(keys[:, 0], expected[number, :, :, 0])
    assert engine.health().leases["request"] == 2
    hold.release()
    assert store.hold(names(0, 2, 1), "request") is None
    assert "request" not in engine.health().leases


def test_a_hold_that_fails_while_it_is_waited_for_is_released():
    class Failing(HeapHold):
        released = False

        def wait(self, deadline):
            raise ZeroDivisionError

        def release(self):
            self.released = True

    failing = Failing([], [])
    keyed = SimpleNamespace(
        chunks=SimpleNamespace(hold=lambda *_: failing),
        key_space=lambda _: KeySpace("{}", bytes(16), LAYOUT),
    )
    with pytest.raises(ZeroDivisionError):
        PageStore(keyed, PAGE, PATIENT).hold(names(0), "request")
    assert failing.released


@given(
    stored=st.sets(st.integers(0, 9)),
    asked=st.lists(st.integers(0, 9), max_size=12),
    pieces=st.integers(1, 3),
)
def test_pages_are_found_as_in_a_set_of_names(stored, asked, pieces):
    chunks = HeapChunkCache(blocks=64)
    keyed = SimpleNamespace(chunks=chunks, key_space=lambda _: KeySpace("{}", bytes(16), LAYOUT))
    store = PageStore(keyed, PAGE, PATIENT, pieces=pieces)
    assert store.save(names(*stored), window(len(stored) * pieces)[0])
    there = [number in stored for number in asked]
    assert store.present(names(*asked)) == there
    run = there.index(False) if False in there else len(there)
    assert store.find(names(*asked)) == run
    assert store.load(names(*asked), window(len(asked) * pieces, seed=1)[0]) == run
    assert chunks.ledger() == {}
