"""What the disk store promises beside the contract of every store."""

import json
import os
from pathlib import Path

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import (
    ConfigError,
    Corrupt,
    Failed,
    Hit,
    InvalidRequest,
    Item,
    Miss,
    StoreBusy,
    Stored,
    StoreFull,
    SupportsQuarantine,
    SupportsScan,
)

A, B, C, D = (chunk_key(name) for name in "abcd")


def file_of(root: Path, key: bytes) -> Path:
    return root / key[16:17].hex() / f"{key.hex()}.hexkv"


def put(store: DiskStore, key: bytes, frame: bytes):
    return store.write([Item(key, memoryview(frame))], deadline())[0]


def get(store: DiskStore, key: bytes) -> bytes | None:
    sink = ListSink()
    (outcome,) = store.read([key], sink, deadline())
    return sink.data(0) if isinstance(outcome, Hit) else None


def engine_of(store: DiskStore) -> int:
    return store._directory.engine


def bytes_of_chunks(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("??/*.hexkv"))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def store(root):
    store = DiskStore(root)
    yield store
    store.close()


def test_it_scans_and_quarantines(store):
    assert isinstance(store, SupportsScan)
    assert isinstance(store, SupportsQuarantine)


def test_one_file_holds_the_frame_and_nothing_else(store, root):
    assert put(store, A, b"frame") == Stored(5)
    assert file_of(root, A).read_bytes() == b"frame"
    lock = f".hexkv-{engine_of(store):016x}.lock"
    assert {p.name for p in root.iterdir()} == {
        ".hexkv-ledger",
        lock,
        "hexkv-format.json",
        "writing",
        A[16:17].hex(),
    }
    assert list((root / "writing").iterdir()) == []
    store.close()
    assert not (root / lock).exists()


def test_a_key_of_another_length_is_refused(store):
    with pytest.raises(InvalidRequest, match="3 bytes"):
        put(store, b"abc", b"frame")


# --- starting again -------------------------------------------------------------------


def test_a_restart_counts_the_bytes_from_the_files_alone(store, root):
    put(store, A, b"1" * 10)
    put(store, B, b"2" * 20)
    assert store.used_bytes == 30
    store.close()
    file_of(root, A).write_bytes(b"1" * 7)
    file_of(root, C).parent.mkdir(exist_ok=True)
    file_of(root, C).write_bytes(b"3" * 5)
    again = DiskStore(root)
    assert again.used_bytes == 32
    assert {entry.key: entry.size for entry in again.scan()} == {A: 7, B: 20, C: 5}
    again.close()


def test_a_scan_tells_when_a_chunk_was_stored(store, root):
    put(store, A, b"frame")
    os.utime(file_of(root, A), (1_600_000_000, 1_600_000_000))
    (entry,) = store.scan()
    assert entry.stored == 1_600_000_000


def test_a_start_removes_what_a_dead_process_was_writing(store, root):
    put(store, A, b"frame")
    part = root / "writing" / f"{12345:016x}-0.tmp"
    part.write_bytes(b"half a fr")
    store.close()
    again = DiskStore(root)
    assert not part.exists()
    assert again.used_bytes == 5
    again.close()


def test_foreign_files_are_ignored_and_left_alone(root):
    folder = root / A[16:17].hex()
    elsewhere = root / ("00" if A[16] else "01")
    for path in (
        root / "README",
        root / "notes" / f"{A.hex()}.hexkv",
        folder / "short.hexkv",
        folder / f"{A.hex().upper()}.hexkv",
        folder / f"{A.hex()}.hexkv.bak",
        folder / "mine.tmp",
        root / "writing" / "mine.tmp",
        elsewhere / f"{A.hex()}.hexkv",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"foreign")
    file_of(root, B).parent.mkdir(exist_ok=True)
    file_of(root, B).symlink_to(root / "README")
    file_of(root, C).mkdir(parents=True)
    file_of(root, D).parent.mkdir(exist_ok=True)
    os.mkfifo(file_of(root, D))
    before = sorted(root.rglob("*"))

    store = DiskStore(root)
    assert list(store.scan()) == []
    assert store.used_bytes == 0
    assert store.contains([A, B, C, D], deadline()) == [False] * 4
    assert store.read([A, B, C, D], ListSink(), deadline()) == [Miss()] * 4
    store.close()
    ours = {root / ".hexkv-ledger", root / "hexkv-format.json"}
    assert sorted(set(root.rglob("*")) - ours) == before


def test_a_folder_in_the_way_of_a_chunk_fails_that_chunk_alone(store, root):
    file_of(root, A).mkdir(parents=True)
    assert isinstance(put(store, A, b"frame"), Failed)
    assert put(store, B, b"frame") == Stored(5)
    assert store.used_bytes == 5


def test_files_that_vanish_during_a_scan_are_passed_over(store, root):
    keys = [chunk_key(str(i)) for i in range(50)]
    for key in keys:
        put(store, key, b"frame")
    entries = store.scan()
    next(entries)
    for key in keys:
        file_of(root, key).unlink()
    assert list(entries) == []


# --- capacity -------------------------------------------------------------------------


def test_a_write_beyond_the_capacity_is_refused_before_it_takes_room(root):
    store = DiskStore(root, capacity=10)
    assert put(store, A, b"1" * 6) == Stored(6)
    outcome = put(store, B, b"2" * 5)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreFull)
    assert "5 bytes do not fit: 6 are stored" in str(outcome.error)
    assert not file_of(root, B).exists()
    assert put(store, B, b"2" * 4) == Stored(4)
    assert store.used_bytes == bytes_of_chunks(root) == 10
    store.close()


def test_writing_in_place_of_a_chunk_counts_the_difference(root):
    store = DiskStore(root, capacity=10)
    for size in (8, 10, 3):
        assert put(store, A, b"x" * size) == Stored(size)
        assert store.used_bytes == bytes_of_chunks(root) == size
    assert store.delete([A, A], deadline()) == [True, False]
    assert store.used_bytes == 0
    store.close()


def test_what_is_being_written_counts(root, monkeypatch):
    store = DiskStore(root, capacity=10)
    real, outcomes = os.pwritev, []

    def meanwhile(file, buffers, offset):
        monkeypatch.setattr(os, "pwritev", real)
        outcomes.extend([put(store, B, b"2" * 5), put(store, C, b"3" * 4)])
        return real(file, buffers, offset)

    monkeypatch.setattr(os, "pwritev", meanwhile)
    assert put(store, A, b"1" * 6) == Stored(6)
    assert isinstance(outcomes[0], Failed)
    assert outcomes[1] == Stored(4)
    assert store.used_bytes == bytes_of_chunks(root) == 10
    store.close()


def test_a_refused_write_leaves_the_chunk_that_was_there(root):
    store = DiskStore(root, capacity=10)
    put(store, A, b"old")
    assert isinstance(put(store, A, b"x" * 11), Failed)
    assert get(store, A) == b"old"
    store.close()


def test_a_directory_over_its_capacity_opens_and_takes_nothing_more(root):
    store = DiskStore(root)
    put(store, A, b"x" * 20)
    store.close()
    store = DiskStore(root, capacity=10)
    assert isinstance(put(store, B, b"1"), Failed)
    assert get(store, A) == b"x" * 20
    store.delete([A], deadline())
    assert put(store, B, b"1") == Stored(1)
    store.close()


# --- reading --------------------------------------------------------------------------


def test_a_file_that_shrinks_while_it_is_read_is_corrupt(store, root):
    class Truncates(ListSink):
        def room(self, index, size):
            os.truncate(file_of(root, A), 2)
            return super().room(index, size)

    put(store, A, b"frame")
    assert store.read([A], Truncates(), deadline()) == [
        Corrupt("the file ended after 2 of 5 bytes")
    ]


def test_a_chunk_deleted_while_it_is_read_is_read_whole(store):
    class Deletes(ListSink):
        def room(self, index, size):
            store.delete([A], deadline())
            return super().room(index, size)

    put(store, A, b"frame")
    sink = Deletes()
    assert store.read([A], sink, deadline()) == [Hit(5)]
    assert sink.data(0) == b"frame"


# --- opening and closing --------------------------------------------------------------


@each(("first", "second"), [(True, False), (False, True), (True, True)])
def test_a_store_that_must_be_alone_is_alone_and_tells_who_has_the_directory(root, first, second):
    store = DiskStore(root, exclusive=first)
    assert store.shared is not first
    with pytest.raises(StoreBusy, match=f"in use by process {os.getpid()}"):
        DiskStore(root, exclusive=second)
    store.close()
    DiskStore(root, exclusive=second).close()


def test_a_call_under_way_keeps_the_directory_joined_until_it_ends(store, root):
    class Closes(ListSink):
        def room(self, index, size):
            store.close()
            with pytest.raises(StoreBusy):
                DiskStore(root, exclusive=True)
            return super().room(index, size)

    put(store, A, b"frame")
    assert store.read([A], Closes(), deadline()) == [Hit(5)]
    DiskStore(root, exclusive=True).close()


@each(
    "text", ['{"format": 3}', '{"format": "2"}', "{}", "[1]", "", "\xff", '{"format": 2, "x": 1}']
)
def test_another_format_is_refused_and_the_directory_given_back(store, root, text):
    store.close()
    (root / "hexkv-format.json").write_text(text)
    with pytest.raises(ConfigError, match="format 2 only"):
        DiskStore(root)
    (root / "hexkv-format.json").unlink()
    DiskStore(root).close()


def test_the_format_is_written_where_there_is_none(store, root):
    assert json.loads((root / "hexkv-format.json").read_text()) == {"format": 2}


def test_chunks_of_a_former_format_are_left_alone_with_a_line_in_the_log(store, root, caplog):
    put(store, A, b"a frame of version 1")
    store.close()
    (root / "hexkv-format.json").write_text('{"format": 1}')
    again = DiskStore(root)
    assert [entry.key for entry in again.scan()] == [A]
    again.close()
    assert json.loads((root / "hexkv-format.json").read_text()) == {"format": 2}
    assert "format 1" in caplog.text
    caplog.clear()
    DiskStore(root).close()
    assert caplog.text == ""


@each("below", ["", "/below"])
def test_a_root_that_is_a_file_is_a_configuration_error(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is not a directory"):
        DiskStore(f"{tmp_path}/file{below}")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_root_without_a_name_is_a_configuration_error():
    with pytest.raises(ConfigError):
        DiskStore("")


@each("bound", ["quarantine_files", "quarantine_bytes"])
def test_a_negative_bound_is_a_configuration_error(root, bound):
    with pytest.raises(ConfigError):
        DiskStore(root, **{bound: -1})
    DiskStore(root).close()


def test_the_directory_stays_the_same_when_the_process_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = DiskStore("cache")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    put(store, A, b"frame")
    assert file_of(tmp_path / "cache", A).exists()
    store.close()
