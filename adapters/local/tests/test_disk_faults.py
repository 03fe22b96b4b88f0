"""The disk store when the system says no: between any two system calls, at any moment."""

import errno
import mmap
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from depth import covering
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import (
    PAGE,
    Failed,
    Hit,
    Item,
    StoreBusy,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from media.mounts import NAMESPACE, needs_mounts

A, B = chunk_key("a"), chunk_key("b")


def put(store: DiskStore, key: bytes, frame: bytes):
    return store.write([Item(key, memoryview(frame))], deadline())[0]


def get(store: DiskStore, key: bytes) -> bytes | None:
    sink = ListSink()
    (outcome,) = store.read([key], sink, deadline())
    return sink.data(0) if isinstance(outcome, Hit) else None


def parts(root: Path) -> list[Path]:
    return list(root.rglob("*.tmp"))


def fail(monkeypatch, call: str, number: int, *, after: bool = False) -> None:
    """Let the system call *call* fail with error *number*, once its work is done or before."""
    real = getattr(os, call)

    def failing(*args, **kwargs):
        if call == "close" and stat.S_ISDIR(os.fstat(args[0]).st_mode):
            return real(*args)  # only what was written to can fail then
        if after:
            real(*args, **kwargs)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, failing)


@pytest.fixture
def store(tmp_path):
    store = DiskStore(tmp_path, capacity=1000)
    yield store
    store.close()


# --- failpoints between system calls ----------------------------------------------------


NUMBERS = {
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EIO: StoreError,
    errno.EROFS: StoreUnreachable,
    errno.EACCES: StoreError,
    errno.EMFILE: StoreUnreachable,
}
CALLS = ["open", "posix_fallocate", "pwritev", "close", "replace", "pread", "pwrite"]
OF_ALL = {"open", "pread", "pwrite"}
"""Calls that fail first for the ledger, which all chunks share: no fault of one chunk."""


@pytest.mark.parametrize(("call", "number", "direct"), covering(CALLS, NUMBERS, ["auto", "off"]))
def test_a_write_that_fails_at_any_call_leaves_everything_as_it_was(
    tmp_path, monkeypatch, call, number, direct
):
    store = DiskStore(tmp_path, capacity=2 * PAGE, direct=direct)
    put(store, A, b"old")
    page = memoryview(mmap.mmap(-1, PAGE))
    with monkeypatch.context() as patch:
        fail(patch, call, number, after=call == "close")
        outcomes = store.write([Item(A, page), Item(B, memoryview(b"b"))], deadline())
    kind = NUMBERS[number]
    if kind is StoreError and call in OF_ALL:
        kind = StoreUnreachable
    assert [type(outcome.error) for outcome in outcomes] == [kind] * 2
    assert os.strerror(number) in str(outcomes[0].error)
    assert get(store, A) == b"old"
    assert get(store, B) is None
    assert parts(tmp_path) == []
    assert store.used_bytes == 3
    # Nothing stays reserved: all of the capacity can still be had.
    rest = 2 * PAGE - 3
    assert put(store, B, b"x" * rest) == Stored(rest)
    store.close()


def test_a_disk_that_fills_up_half_way_leaves_no_part_behind(store, tmp_path, monkeypatch):
    real = os.pwritev

    def half(file, buffers, offset):
        if offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, [buffers[0][:50]], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", half)
        outcome = put(store, A, b"x" * 100)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreFull)
    assert parts(tmp_path) == []
    assert get(store, A) is None


def test_short_writes_and_reads_go_on_where_they_stopped(store, monkeypatch):
    write, read = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda f, b, o: write(f, [b[0][:7]], o))
    monkeypatch.setattr(os, "preadv", lambda f, b, o: read(f, [b[0][:5]], o))
    frame = bytes(range(100))
    assert put(store, A, frame) == Stored(100)
    assert get(store, A) == frame


def test_a_write_that_makes_no_progress_does_not_hang(store, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda file, buffers, offset: 0)
    assert isinstance(put(store, A, b"frame"), Failed)


@pytest.mark.skipif(sys.platform != "linux", reason="blocks are reserved on Linux alone")
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL], ids=errno.errorcode.get)
def test_a_file_system_that_reserves_nothing_is_good_enough(store, monkeypatch, number):
    fail(monkeypatch, "posix_fallocate", number)
    assert put(store, A, b"frame") == Stored(5)
    assert get(store, A) == b"frame"


@each("call", ["open", "preadv"])
def test_a_read_that_fails_says_why_and_spares_the_store(store, monkeypatch, call):
    put(store, A, b"frame")
    with monkeypatch.context() as patch:
        fail(patch, call, errno.EIO)
        (outcome,) = store.read([A], ListSink(), deadline())
    assert isinstance(outcome, Failed)
    assert type(outcome.error) is StoreError
    assert get(store, A) == b"frame"


def test_a_deletion_that_fails_counts_what_is_still_there(store, monkeypatch):
    put(store, A, b"frame")
    with monkeypatch.context() as patch:
        fail(patch, "unlink", errno.EROFS)
        with pytest.raises(StoreUnreachable, match="Read-only"):
            store.delete([A], deadline())
    assert store.used_bytes == 5
    assert store.delete([A], deadline()) == [True]


@each("call", ["pwrite", "stat"])
def test_a_count_that_could_not_be_written_down_is_made_anew(store, monkeypatch, call):
    put(store, A, b"frame")
    assert store.used_bytes == 5
    real, calls = getattr(os, call), []

    def last_fails(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:  # the first comes before the file is removed
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, last_fails)
        with pytest.raises(StoreUnreachable):
            store.delete([A], deadline())
    assert store.used_bytes == 0


def test_what_cannot_be_set_aside_is_removed(store, tmp_path, monkeypatch):
    put(store, A, b"damaged")
    with monkeypatch.context() as patch:
        fail(patch, "replace", errno.ENOSPC)
        store.quarantine([A], deadline())
    assert get(store, A) is None
    assert store.used_bytes == 0


@pytest.mark.parametrize(
    ("call", "number"),
    covering(
        ["makedirs", "open", "pread", "pwrite", "replace", "scandir"],
        [errno.EROFS, errno.EACCES, errno.ENOSPC],
    ),
)
def test_a_directory_that_cannot_be_used_is_refused_at_start_and_given_back(
    tmp_path, monkeypatch, call, number
):
    with monkeypatch.context() as patch:
        fail(patch, call, number)
        with pytest.raises(NUMBERS[number], match=re.escape(f"{tmp_path} cannot be used")):
            DiskStore(tmp_path)
    DiskStore(tmp_path).close()


# --- a real full disk, a real read-only disk ----------------------------------------------

ON_A_SMALL_DISK = """
import subprocess, sys
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.ports import HexKVError, Item

def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", *options, "none", sys.argv[1]], check=True)

mount("-o", "size=1m")
store = DiskStore(sys.argv[1])
frame = memoryview(bytes(300 << 10))
keys = [chunk_key(str(i)) for i in range(4)]
outcomes = store.write([Item(key, frame) for key in keys], deadline())
print(*(type(getattr(o, "error", o)).__name__ for o in outcomes))
print(store.used_bytes == 3 * len(frame), store.contains(keys, deadline()))
subprocess.run(["find", sys.argv[1], "-name", "*.tmp"], check=True)
store.close()
mount("-o", "remount,ro")
try:
    DiskStore(sys.argv[1])
except HexKVError as error:
    print(type(error).__name__, "cannot be used" in str(error))
"""


@needs_mounts
def test_a_real_disk_that_is_full_refuses_a_chunk_and_one_that_is_read_only_a_store(tmp_path):
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "Stored Stored Stored StoreFull",
        "True [True, True, True, False]",
        "StoreUnreachable True",
    ]


# --- other processes --------------------------------------------------------------------

CAPACITY = 2 << 20

WRITES_FOREVER = """
import sys
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.ports import Item, Stored

store = DiskStore(sys.argv[1], capacity=int(sys.argv[2]))
for number in range(1_000_000):
    name = number % 12
    frame = number.to_bytes(8, "little") * (4096 * (1 + number % 9))
    (outcome,) = store.write([Item(chunk_key(str(name)), memoryview(frame))], deadline())
    if isinstance(outcome, Stored):
        print(name, number, flush=True)
    else:
        store.delete([chunk_key(str((name + 1) % 12))], deadline())
        print("full", number, flush=True)
"""


def writer(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITES_FOREVER, str(root), str(CAPACITY)],
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_after(process: subprocess.Popen[str], lines: int) -> list[str]:
    """Everything the process acknowledged before the kill reached it."""
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    return [line for line in said if line.endswith("\n")]


@pytest.mark.thorough
def test_a_killed_writer_leaves_whole_files_within_the_capacity(tmp_path):
    for acknowledged in range(1, 40, 4):
        said = kill_after(writer(tmp_path), acknowledged)

        store = DiskStore(tmp_path, capacity=CAPACITY)
        assert parts(tmp_path) == []
        total = 0
        for entry in store.scan():
            frame = get(store, entry.key)
            assert frame is not None
            number = int.from_bytes(frame[:8], "little")
            assert frame == number.to_bytes(8, "little") * (4096 * (1 + number % 9))
            assert entry.key == chunk_key(str(number % 12))
            total += len(frame)
        assert total == store.used_bytes <= CAPACITY
        name, last = said[-1].split()
        if name != "full":
            newest = get(store, chunk_key(name))
            assert newest is not None
            # The kill may have met the writer at a later number of the same chunk.
            assert int.from_bytes(newest[:8], "little") >= int(last)
        store.close()


def test_a_directory_is_in_use_while_its_process_lives_and_free_once_it_is_killed(tmp_path):
    process = writer(tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(StoreBusy, match=f"in use by process {process.pid}"):
        DiskStore(tmp_path, exclusive=True)
    kill_after(process, 1)
    DiskStore(tmp_path, exclusive=True).close()
