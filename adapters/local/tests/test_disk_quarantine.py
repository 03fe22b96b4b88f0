"""Damaged chunks that the disk store sets aside for a person: which are kept, and how many."""

from pathlib import Path

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.ports import Item, Miss

A, B, C, D = (chunk_key(name) for name in "abcd")


def put(store: DiskStore, key: bytes, frame: bytes):
    return store.write([Item(key, memoryview(frame))], deadline())[0]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def store(root):
    store = DiskStore(root)
    yield store
    store.close()


def quarantined(root: Path) -> set[str]:
    return {path.name for path in (root / "quarantine").iterdir()}


def test_a_quarantined_chunk_is_unreadable_and_kept_for_a_person(store, root):
    put(store, A, b"damaged")
    store.quarantine([A, B], deadline())
    assert store.read([A], ListSink(), deadline()) == [Miss()]
    assert list(store.scan()) == []
    assert store.used_bytes == 0
    assert (root / "quarantine" / f"{A.hex()}.hexkv").read_bytes() == b"damaged"


def test_the_quarantine_drops_the_oldest_beyond_its_number_of_files(root, tmp_path):
    store = DiskStore(root, quarantine_files=2)
    for key in (C, A, B):
        put(store, key, b"damaged")
        store.quarantine([key], deadline())
        let_time_pass(tmp_path / "probe")
    assert quarantined(root) == {f"{key.hex()}.hexkv" for key in (A, B)}
    store.close()


def test_the_quarantine_drops_the_oldest_beyond_its_bytes(root, tmp_path):
    store = DiskStore(root, quarantine_bytes=10)
    for key, size in ((A, 6), (B, 3), (C, 7), (D, 11)):
        put(store, key, b"x" * size)
        store.quarantine([key], deadline())
        let_time_pass(tmp_path / "probe")
    assert quarantined(root) == {f"{key.hex()}.hexkv" for key in (B, C)}
    assert store.read([D], ListSink(), deadline()) == [Miss()]
    store.close()


def let_time_pass(probe: Path) -> None:
    """Until a file changed now is newer than one changed before: some ticks of the kernel."""
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.chmod(0o600)


def test_a_restart_keeps_the_quarantine_s_bounds_and_order(root, tmp_path):
    store = DiskStore(root)
    for key in (C, A, B):
        put(store, key, b"damaged")
        store.quarantine([key], deadline())
        let_time_pass(tmp_path / "probe")
    store.close()
    for left in ({A, B}, {B}):
        DiskStore(root, quarantine_files=len(left)).close()
        assert quarantined(root) == {f"{key.hex()}.hexkv" for key in left}


def test_no_quarantine_deletes(root):
    store = DiskStore(root, quarantine_files=0)
    put(store, A, b"damaged")
    store.quarantine([A], deadline())
    assert store.read([A], ListSink(), deadline()) == [Miss()]
    assert not (root / "quarantine").exists()
    store.close()


def test_a_chunk_quarantined_twice_is_kept_and_counted_once(root):
    store = DiskStore(root, quarantine_bytes=14)
    for key, frame in ((A, b"first"), (A, b"second"), (B, b"no. 3...")):
        put(store, key, frame)
        store.quarantine([key], deadline())
    assert (root / "quarantine" / f"{A.hex()}.hexkv").read_bytes() == b"second"
    assert quarantined(root) == {f"{key.hex()}.hexkv" for key in (A, B)}
    store.close()
