"""Stores that share a directory: they see each other's chunks and keep one capacity together."""

import os
import re
import signal
import subprocess
import sys
from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.local._check import repair
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.files.directory import SharedDirectory
from hexkv.adapters.local.files.ledger import ENGINES, Books, EngineRow, Ledger
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.ports import (
    Failed,
    Hit,
    Item,
    StoreBusy,
    Stored,
    StoreError,
    StoreFull,
    TimedOut,
)

A, B, C = (chunk_key(name) for name in "abc")


def put(store, key, frame, when=None):
    return store.write([Item(key, memoryview(frame))], when or deadline())[0]


def get(store, key):
    sink = ListSink()
    (outcome,) = store.read([key], sink, deadline())
    return sink.data(0) if isinstance(outcome, Hit) else None


def full(outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, StoreFull)


def bytes_of_chunks(root):
    return sum(path.stat().st_size for path in root.glob("??/*.hexkv"))


@pytest.fixture
def two(tmp_path):
    stores = DiskStore(tmp_path, capacity=10), DiskStore(tmp_path, capacity=10)
    yield stores
    for store in stores:
        store.close()


def test_each_sees_reads_replaces_and_removes_what_the_other_stored(two):
    one, other = two
    assert one.shared
    put(one, A, b"one")
    assert other.contains([A, B], deadline()) == [True, False]
    assert get(other, A) == b"one"
    put(other, A, b"other")
    assert get(one, A) == b"other"
    assert [entry.size for entry in one.scan()] == [5]
    assert one.delete([A], deadline()) == [True]
    assert get(other, A) is None
    assert one.used_bytes == other.used_bytes == 0


def test_the_capacity_holds_for_all_of_them_together(two, tmp_path):
    one, other = two
    assert put(one, A, b"x" * 6) == Stored(6)
    assert full(put(other, B, b"x" * 5))
    assert put(other, A, b"x" * 10) == Stored(10)
    assert full(put(one, B, b"x"))
    other.quarantine([A], deadline())
    assert put(one, B, b"x" * 10) == Stored(10)
    assert one.used_bytes == other.used_bytes == bytes_of_chunks(tmp_path) == 10


def test_what_another_is_writing_counts(two, monkeypatch):
    one, other = two
    real, outcomes = os.pwritev, []

    def meanwhile(file, buffers, offset):
        monkeypatch.setattr(os, "pwritev", real)
        outcomes.extend([put(other, B, b"2" * 5), put(other, C, b"3" * 4)])
        return real(file, buffers, offset)

    monkeypatch.setattr(os, "pwritev", meanwhile)
    assert put(one, A, b"1" * 6) == Stored(6)
    assert full(outcomes[0])
    assert outcomes[1] == Stored(4)


def test_one_that_opens_leaves_alone_what_another_is_writing(two, tmp_path, monkeypatch):
    one, _ = two
    real = os.pwritev

    def meanwhile(file, buffers, offset):
        DiskStore(tmp_path).close()
        return real(file, buffers, offset)

    monkeypatch.setattr(os, "pwritev", meanwhile)
    assert put(one, A, b"1" * 6) == Stored(6)
    assert get(one, A) == b"1" * 6


def test_stores_in_many_threads_keep_one_exact_count(tmp_path):
    stores = [DiskStore(tmp_path, capacity=40) for _ in range(4)]
    keys = [chunk_key(str(i)) for i in range(8)]
    start = Barrier(len(stores))

    def work(number):
        start.wait()
        for turn in range(60):
            key = keys[(turn * (2 * number + 1)) % len(keys)]
            if turn % 4 == 3:
                stores[number].delete([key], deadline())
            else:
                put(stores[number], key, b"x" * (1 + (turn + number) % 9))

    threads = [Thread(target=work, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {store.used_bytes for store in stores} == {bytes_of_chunks(tmp_path)}
    assert bytes_of_chunks(tmp_path) <= 40
    for store in stores:
        store.close()
    assert list(tmp_path.rglob("*.tmp")) + list(tmp_path.rglob(".*.lock")) == []


DIES_WHILE_WRITING = """
import os, signal, sys
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.ports import Item

store = DiskStore(sys.argv[1], capacity=10)
os.pwritev = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
store.write([Item(chunk_key("dead"), memoryview(b"123456789"))], deadline())
"""


def test_what_a_dead_one_was_writing_stops_counting_while_another_lives(tmp_path):
    store = DiskStore(tmp_path, capacity=10)
    put(store, A, b"1")
    subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, str(tmp_path)], check=False)
    assert len(list(tmp_path.rglob("*.tmp"))) == 1
    assert put(store, B, b"x" * 9) == Stored(9)
    assert list(tmp_path.rglob("*.tmp")) == []
    store.close()


def test_files_that_somebody_removed_by_hand_are_noticed_before_a_refusal(tmp_path):
    clock = ManualClock()
    store = DiskStore(tmp_path, capacity=10)
    for _ in range(2):
        assert put(store, A, b"x" * 10, deadline(1, clock)) == Stored(10)
        next(tmp_path.glob("??/*.hexkv")).unlink()
        assert put(store, B, b"x" * 10, deadline(1, clock)) == Stored(10)
        store.delete([B], deadline())
        clock.advance(60)
    store.close()


def test_a_full_store_does_not_count_again_for_every_refusal(tmp_path, monkeypatch):
    clock = ManualClock()
    store = DiskStore(tmp_path, capacity=10)
    put(store, A, b"x" * 10, deadline(1, clock))
    assert full(put(store, B, b"x", deadline(1, clock)))
    scans = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scans.append(path) or real(path))
    for _ in range(5):
        assert full(put(store, B, b"x", deadline(1, clock)))
    assert len(scans) <= 5 * 3  # looks for dead engines only
    store.close()


def test_only_so_many_share_a_directory(tmp_path):
    directories = [SharedDirectory(tmp_path) for _ in range(ENGINES)]
    with pytest.raises(StoreBusy, match=f"{ENGINES} engines"):
        DiskStore(tmp_path)
    for directory in directories:
        directory.release()
    DiskStore(tmp_path, exclusive=True).close()


def test_a_forked_child_can_neither_use_nor_close_its_parent_s_store(tmp_path):
    code = """
import os, sys
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.ports import StoreBusy, StoreError

store = DiskStore(sys.argv[1])
child = os.fork()
if not child:
    try:
        store.contains([chunk_key("a")], deadline())
    except StoreError as error:
        store.close()
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
try:
    DiskStore(sys.argv[1], exclusive=True)
except StoreBusy:
    print("still joined")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("still joined\n", "")


# --- a process that was stopped while it had the books ----------------------------------

STOPPED = """
import os, signal, sys
from hexkv.adapters.local.disk import DiskStore

store = DiskStore(sys.argv[1])
with store._directory.ledger.held():
    os.kill(os.getpid(), signal.SIGSTOP)
store.close()
"""


def test_a_process_stopped_in_the_ledgers_lock_costs_a_deadline_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Ledger, "patience", 0.01)
    store, leaving = DiskStore(tmp_path, capacity=10), DiskStore(tmp_path)
    put(store, A, b"frame")
    process = subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)])
    try:
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        soon = deadline(0.01)
        (refused,) = store.write([Item(B, memoryview(b"more"))], soon)
        assert isinstance(refused.error, StoreBusy)
        said = [str(refused.error)]
        for call in (
            lambda: store.delete([A, B], soon),
            lambda: store.quarantine([A, B], soon),
            lambda: store.used_bytes,
            lambda: DiskStore(tmp_path),
            lambda: repair(str(tmp_path), None),
        ):
            with pytest.raises(StoreBusy) as busy:
                call()
            said.append(str(busy.value))
        assert all(re.search(rf"by process ({process.pid}|\?)$", text) for text in said), said
        leaving.close()
        assert get(store, A) == b"frame"
        assert not list(tmp_path.rglob("*.tmp"))
    finally:
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0
    assert put(store, B, b"x" * 5) == Stored(5), "nothing stayed reserved"
    assert store.delete([A], deadline()) == [True]
    assert store.used_bytes == 5
    store.close()


# --- opening, and counting --------------------------------------------------------------


def fill(root, chunks):
    for number in range(chunks):
        path = root / f"{number % 256:02x}" / f"{'0' * 32}{number % 256:02x}{number:062x}.hexkv"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")


def test_opening_looks_at_no_chunk_and_reading_needs_no_count(tmp_path, monkeypatch):
    DiskStore(tmp_path).close()
    fill(tmp_path, 600)
    scans = []
    real = os.scandir
    with monkeypatch.context() as patch:
        name = "/proc/self/fd/{}".format
        patch.setattr(os, "scandir", lambda at: scans.append(os.readlink(name(at))) or real(at))
        store = DiskStore(tmp_path, capacity=1000)
        key = bytes.fromhex("0" * 94 + "00")
        assert get(store, key) == b"x"
        assert store.contains([key], deadline()) == [True]
    assert not [path for path in scans if len(path) == len(f"{tmp_path}/00")]
    assert store.used_bytes == 600
    store.close()


def test_a_write_waits_for_the_count_no_longer_than_its_deadline(tmp_path, monkeypatch):
    DiskStore(tmp_path).close()
    fill(tmp_path, 600)
    clock = ManualClock()
    store = DiskStore(tmp_path, capacity=600)
    real = os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: clock.advance(0.01) or real(path))
        assert put(store, A, b"1", deadline(1, clock)) == TimedOut()
        # The next one goes on where that one stopped.
        for _ in range(2):
            put(store, A, b"1", deadline(1, clock))
        assert full(put(store, A, b"1", deadline(1, clock)))
    store.close()


def test_changes_while_the_count_goes_on_are_counted_once(tmp_path):
    DiskStore(tmp_path).close()
    fill(tmp_path, 600)
    store = DiskStore(tmp_path, capacity=10_000)
    frame, clock = b"y" * 3, ManualClock()
    keys = [bytes(16) + bytes([folder]) + b"\1" * 31 for folder in (0, 90, 200, 255)]
    with store._directory.ledger.held() as books:
        store._account._count_on(books)
        assert 0 < books.counted < 256
    unlimited = DiskStore(tmp_path)  # writes without waiting for the count
    for key in keys:
        assert put(unlimited, key, frame, deadline(1, clock)) == Stored(3)
    unlimited.delete([keys[0], keys[2]], deadline())
    assert store.used_bytes == unlimited.used_bytes == bytes_of_chunks(tmp_path) == 606
    store.close()
    unlimited.close()


def test_a_scan_of_a_store_that_is_closed_meanwhile_does_not_end_as_if_it_were_whole(tmp_path):
    DiskStore(tmp_path).close()
    fill(tmp_path, 3)
    store = DiskStore(tmp_path)
    entries = store.scan()
    next(entries)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        list(entries)


# --- the ledger's page ------------------------------------------------------------------

ROWS = st.builds(EngineRow, st.integers(0, 2**32 - 1), st.booleans(), st.integers(0, 2**63 - 1))
BOOKS = st.builds(
    Books,
    st.integers(0, 2**63 - 1),
    st.integers(0, 256),
    st.booleans(),
    st.dictionaries(st.integers(0, 2**64 - 1), ROWS, max_size=ENGINES),
)


@given(BOOKS)
def test_books_come_back_from_their_page(books):
    assert len(books.pack()) == 4096
    assert Books.unpack(books.pack()) == books


@given(st.one_of(st.binary(max_size=100), st.binary(min_size=4096, max_size=4096)))
def test_any_other_page_is_an_uncounted_ledger(page):
    assert Books.unpack(page) == Books()


@pytest.mark.parametrize("damage", [b"", b"junk", b"\xff" * 4096])
def test_a_damaged_ledger_is_counted_anew_even_while_others_use_it(two, tmp_path, damage):
    one, other = two
    put(one, A, b"12345")
    (tmp_path / ".hexkv-ledger").write_bytes(damage)
    assert full(put(other, B, b"x" * 6))
    assert put(one, B, b"x" * 5) == Stored(5)
    assert one.used_bytes == other.used_bytes == 10
