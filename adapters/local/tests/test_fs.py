"""The store for shared file systems: the contract, then what such systems do to it."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier, Thread

import pytest

from hexkv.adapters.local import fs
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.files import layout as _layout
from hexkv.adapters.local.files.sweep import PART, PART_AGE, Sweeper
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import (
    ConfigError,
    Failed,
    Hit,
    Item,
    Miss,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from media.chunk_files import File, Files
from media.folder_contract import FolderContract

A, B = chunk_key("a"), chunk_key("b")
FRAME = bytes(range(256)) * 40


def open_fs(root, ttl=None):
    return SharedFileStore(root, ManualClock(), ttl=ttl)


def put(store, key, frame):
    return store.write([Item(key, memoryview(frame))], deadline())[0]


def get(store, key):
    sink = ListSink()
    (outcome,) = store.read([key], sink, deadline())
    return sink.data(0) if isinstance(outcome, Hit) else outcome


@pytest.fixture
def store(tmp_path):
    store = open_fs(tmp_path)
    yield store
    store.close()


@pytest.mark.thorough
class TestSharedFiles(FolderContract):
    largest = 3 << 30

    @pytest.fixture
    def limit(self, tmp_path_factory):
        return File(tmp_path_factory.mktemp("limit") / "file", direct=False)

    @pytest.fixture
    def foreign(self, tmp_path):
        path = tmp_path / "ab" / "notes.txt"
        path.parent.mkdir()
        path.write_bytes(b"somebody's")

        def look():
            return {"notes.txt": path.read_bytes()} if path.exists() else {}

        return look

    @pytest.fixture
    def make(self):
        return open_fs


# --- several at once --------------------------------------------------------------------


def test_what_one_host_writes_another_reads_replaces_and_deletes(store, tmp_path):
    other = open_fs(tmp_path)
    assert put(store, A, FRAME) == Stored(len(FRAME))
    assert get(other, A) == FRAME
    assert put(other, A, FRAME[::-1]) == Stored(len(FRAME))
    assert get(store, A) == FRAME[::-1]
    assert list(other.delete([A], deadline())) == [True]
    assert get(store, A) == Miss()
    assert list(store.contains([A], deadline())) == [False]


def test_the_format_is_the_disk_stores(store, tmp_path):
    put(store, A, FRAME)
    store.close()
    disk = DiskStore(tmp_path)
    assert get(disk, A) == FRAME
    put(disk, B, FRAME)
    disk.close()
    assert get(open_fs(tmp_path), B) == FRAME


_WRITER = """
import sys
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.contracts.doubles import ManualClock, chunk_key, deadline
from hexkv.ports import Item

store = SharedFileStore(sys.argv[1], ManualClock(), ttl=None)
print("ready", flush=True)
turn = 0
while True:
    turn += 1
    for name in ("same", sys.argv[2]):
        frame = bytes([int(sys.argv[2])]) * (4096 + 512 * (turn % 9))
        store.write([Item(chunk_key(name), memoryview(frame))], deadline())
"""


def test_processes_that_write_one_chunk_and_are_killed_leave_whole_frames(store, tmp_path):
    for _ in range(2):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _WRITER, str(tmp_path), name], stdout=subprocess.PIPE
            )
            for name in "12"
        ]
        for writer in writers:
            assert writer.stdout.readline() == b"ready\n"
        names = [chunk_key(name) for name in ("same", "1", "2")]
        seen = dict.fromkeys(names, 0)
        while min(seen.values()) < 20:
            assert [writer.poll() for writer in writers] == [None, None]
            for name in names:
                frame = get(store, name)
                if isinstance(frame, bytes):
                    seen[name] += 1
                    assert len(set(frame)) == 1
                    assert len(frame) % 512 == 0
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    assert {entry.key for entry in store.scan()} == set(names)


def test_hosts_that_open_a_new_directory_at_once_agree(tmp_path):
    root, failures = tmp_path / "new", []

    def begin():
        try:
            put(open_fs(root), A, FRAME)
        except BaseException as error:  # noqa: BLE001 - looked at by the test's own thread
            failures.append(error)

    threads = [Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert get(open_fs(root), A) == FRAME


# --- what such file systems say ---------------------------------------------------------


def fail(monkeypatch, call, number, times=1, after=False):
    """Let a system call fail that often, once its work is done or before."""
    real, left = getattr(os, call), [times]

    def failing(*args, **kwargs):
        if not left[0] or (call == "close" and stat.S_ISDIR(os.fstat(args[0]).st_mode)):
            return real(*args, **kwargs)
        left[0] -= 1
        if after:
            real(*args, **kwargs)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, failing)


@each(
    ("call", "number"),
    [
        *[
            (call, number)
            for call in ("open", "fstat", "preadv")
            for number in (errno.ESTALE, errno.EIO)
        ],
        ("fstat", errno.ENOENT),  # where an open file goes by its name, and that was taken away
    ],
)
def test_a_file_that_went_stale_once_is_read_at_the_second_try(store, monkeypatch, call, number):
    put(store, A, FRAME)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        fail(patch, call, number)
        assert get(store, A) == FRAME
    assert len(os.listdir("/proc/self/fd")) == len(before), "the first file is closed"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOENT])
def test_what_is_stale_twice_is_a_miss(store, monkeypatch, number):
    put(store, A, FRAME)
    fail(monkeypatch, "preadv", number, times=2)
    assert get(store, A) == Miss()


def test_a_file_that_another_host_replaces_while_it_is_read_is_read_anew(store, monkeypatch):
    put(store, A, FRAME)
    real, other = os.preadv, open_fs(store._root)

    def replaced(file, views, offset):
        monkeypatch.setattr(os, "preadv", real)
        put(other, A, FRAME[:5000])
        os.truncate(f"/proc/self/fd/{file}", 5000)  # the file that was opened
        return real(file, views, offset)

    monkeypatch.setattr(os, "preadv", replaced)
    assert get(store, A) == FRAME[:5000]


def test_a_server_that_cannot_read_is_a_failure(store, monkeypatch):
    put(store, A, FRAME)
    fail(monkeypatch, "preadv", errno.EIO, times=2)
    outcome = get(store, A)
    assert isinstance(outcome, Failed)
    assert type(outcome.error) is StoreError


@each(
    ("call", "number", "kind"),
    [
        ("pwrite", errno.ENOSPC, StoreFull),
        ("pwrite", errno.EDQUOT, StoreFull),
        ("pwrite", errno.EIO, StoreError),
        ("close", errno.EIO, StoreError),
        ("close", errno.EDQUOT, StoreFull),
        ("replace", errno.EIO, StoreError),
        ("replace", errno.ESTALE, StoreUnreachable),
    ],
)
def test_a_write_that_fails_leaves_what_was_there_and_no_rubbish(
    store, tmp_path, monkeypatch, call, number, kind
):
    put(store, A, FRAME)
    with monkeypatch.context() as patch:
        fail(patch, call, number, after=call == "close")
        outcome = put(store, A, b"new")
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, kind)
    assert get(store, A) == FRAME
    assert not list(tmp_path.rglob(f"{PART}*"))


def test_a_rename_whose_answer_was_lost_counts_as_done(store, monkeypatch):
    with monkeypatch.context() as patch:
        fail(patch, "replace", errno.ENOENT, after=True)
        assert put(store, A, FRAME) == Stored(len(FRAME))
    assert get(store, A) == FRAME


def test_a_listing_that_names_a_file_twice_or_breaks_off_is_scanned_once(store, monkeypatch):
    put(store, A, FRAME)
    real, broken = _layout.chunks_in, [errno.ESTALE]

    def lagging(root, folder):
        entries = real(root, folder)
        if entries and broken:
            raise OSError(broken.pop(), "stale")
        return entries * 2

    monkeypatch.setattr(fs, "chunks_in", lagging)
    assert [entry.key for entry in store.scan()] == [A]


def test_a_listing_that_lags_hides_nothing_from_reads(store, monkeypatch):
    put(store, A, FRAME)
    monkeypatch.setattr(fs, "chunks_in", lambda root, folder: iter(()))
    assert list(store.scan()) == []
    assert list(store.contains([A], deadline())) == [True]
    assert get(store, A) == FRAME


def test_another_format_is_refused(tmp_path):
    (tmp_path / "hexkv-format.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="99"):
        open_fs(tmp_path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises((ConfigError, StoreError)):
        open_fs(tmp_path / "file")


# --- sweeping ---------------------------------------------------------------------------


def age(path, seconds):
    now = os.stat(path).st_mtime
    os.utime(path, (now - seconds, now - seconds))


def test_a_sweep_removes_old_chunks_and_what_the_dead_left_and_nothing_else(store, tmp_path):
    files = Files(tmp_path)
    put(store, A, FRAME)
    folder = files.path(A).parent
    left = folder / f"{PART}0123456789abcdef-7"
    fresh = folder / f"{PART}fedcba9876543210-1"
    foreign = folder / "notes.txt"
    for path in (left, fresh, foreign):
        path.write_bytes(b"x")
    age(left, PART_AGE + 10)
    age(foreign, PART_AGE * 1000)
    sweeper = Sweeper(str(tmp_path), ManualClock(), 100.0)
    number = int(folder.name, 16)
    sweeper.sweep(number)
    assert files.path(A).exists()
    assert not left.exists()
    assert fresh.exists()
    age(files.path(A), 110)
    sweeper.sweep(number)
    assert not files.path(A).exists()
    assert foreign.exists()


def test_writers_sweep_folder_by_folder_and_never_fail_by_it(tmp_path, monkeypatch):
    clock, swept = ManualClock(), []
    store = SharedFileStore(tmp_path, clock, ttl=10.0)

    def sweep(folder):
        swept.append(folder)
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(store._sweeper, "sweep", sweep)
    for _ in range(600):
        clock.advance(6.0)
        assert put(store, A, b"frame") == Stored(5)
    assert set(swept) == set(range(256))
    assert len(swept) <= 400


def test_threads_that_find_the_directory_gone_make_it_again_and_store(tmp_path):
    """One marker for each thread on its way: none is renamed before it is written whole."""
    root, frame = tmp_path / "shared", memoryview(FRAME)
    with closing(open_fs(root)) as store, ThreadPoolExecutor(8) as threads:
        for turn in range(40):
            shutil.rmtree(root)
            start = Barrier(8)

            def write(number, turn=turn, start=start):
                start.wait(60)
                return store.write([Item(chunk_key(f"{turn} {number}"), frame)], deadline(60.0))

            for (outcome,) in threads.map(write, range(8)):
                assert outcome == Stored(len(FRAME))
