"""Files that are read in ranges: opened once for a load, closed after it, never served stale."""

import errno
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.files import ranges as _ranges
from hexkv.adapters.local.files.files import FileIO
from hexkv.adapters.local.files.ranges import RangeFiles
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.ports import PAGE, Corrupt, Hit, Item, Miss, Stored

A, B = chunk_key("a"), chunk_key("b")
OLD, NEW = b"o" * (4 * PAGE), b"n" * (4 * PAGE)


@pytest.fixture
def opened(monkeypatch):
    """The paths of files that were opened to read ranges of them."""
    seen = []
    real = _ranges.open_frame

    def spy(path):
        seen.append(path)
        return real(path)

    monkeypatch.setattr(_ranges, "open_frame", spy)
    return seen


def stored(root, frame=OLD, key=A):
    store = DiskStore(root, direct="off")
    assert store.write([Item(key, memoryview(frame))], deadline()) == [Stored(len(frame))]
    return store


def part(store, start=0, size=PAGE, key=A):
    into = bytearray(size)
    outcome = store.read_range(key, start, memoryview(into), deadline())
    return bytes(into) if isinstance(outcome, Hit) else outcome


def test_all_ranges_of_a_load_take_one_descriptor_which_the_last_one_gives_back(tmp_path, opened):
    store = stored(tmp_path)
    for start in range(4):
        assert store._ranges.count == (start > 0)
        assert part(store, start * PAGE) == OLD[:PAGE]
    assert (len(opened), store._ranges.count) == (1, 0)
    assert isinstance(part(store, 3 * PAGE, 2 * PAGE), Corrupt)
    assert store._ranges.count == 0  # nor is what failed kept
    store.close()


@pytest.mark.parametrize("other", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_what_was_deleted_or_replaced_between_two_ranges_is_not_served(tmp_path, other):
    """By another store, as by this one, which also closes the file."""
    store = stored(tmp_path)
    changing = DiskStore(tmp_path, direct="off") if other else store
    assert part(store) == OLD[:PAGE]
    assert changing.write([Item(A, memoryview(NEW))], deadline()) == [Stored(len(NEW))]
    assert store._ranges.count == other
    assert part(store) == NEW[:PAGE]
    assert changing.delete([A], deadline()) == [True]
    assert store._ranges.count == other
    assert part(store) == Miss()
    assert store._ranges.count == 0
    changing.write([Item(A, memoryview(NEW))], deadline())
    assert part(store) == NEW[:PAGE]
    store.quarantine([A], deadline())  # of which the name alone changes
    assert part(store) == Miss()
    changing.close()
    store.close()


def test_files_of_a_load_that_was_given_up_are_closed_and_never_more_than_some_open(tmp_path):
    names = [str(tmp_path / name) for name in "abc"]
    for name in names:
        with open(name, "wb") as file:
            file.write(OLD)
    files = RangeFiles(FileIO("off", names[0]), most=2, idle=1e6)
    into = memoryview(bytearray(PAGE))
    for start in (0, PAGE):
        for name in names:
            assert files.read(name, start, into) == Hit(PAGE)
    assert files.count == 2
    files.sweep()
    files.read(names[0], 0, into)
    files.sweep()  # of the other one nobody has read since the first
    assert files.count == 1
    files.close()
    assert files.read(names[0], 0, into) == Hit(PAGE)
    assert files.count == 0


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which files are open")
def test_a_file_system_that_reports_an_error_at_close_costs_no_read_and_no_descriptor(
    tmp_path, monkeypatch
):
    names = [str(tmp_path / name) for name in "ab"]
    for name in names:
        with open(name, "wb") as file:
            file.write(OLD)
    io, real = FileIO("off", names[0]), os.close
    files, into = RangeFiles(io, idle=1e6), memoryview(bytearray(PAGE))
    before = os.listdir("/proc/self/fd")

    def failing(file):
        folder = stat.S_ISDIR(os.fstat(file).st_mode)
        real(file)
        if not folder:
            raise OSError(errno.ENOTCONN, "the file server has gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", failing)
        assert io.read(names[0], 0, ListSink()) == Hit(len(OLD), len(OLD))
        assert io.read_range(names[0], PAGE, into) == Hit(PAGE, len(OLD))
        for start in range(4):
            assert files.read(names[0], start * PAGE, into) == Hit(PAGE, len(OLD))
        for name in names:
            files.read(name, 0, into)
        files.sweep()
        files.sweep()
        assert files.count == 0
        files.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.thorough
def test_a_thread_closes_what_nobody_reads_and_ends(tmp_path):
    name = str(tmp_path / "a")
    with open(name, "wb") as file:
        file.write(OLD)
    files = RangeFiles(FileIO("off", name), idle=0.01)
    for _ in range(3):
        assert files.read(name, 0, memoryview(bytearray(PAGE))) == Hit(PAGE)
        sweeper = files._sweeper
        if sweeper is not None:  # else it has swept already
            sweeper.join(10)
            assert not sweeper.is_alive()
        assert files.count == 0


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which files are open")
def test_many_threads_that_read_write_and_delete_leave_no_descriptor(tmp_path):
    def open_files():
        links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return [os.readlink(it) for it in links if os.path.islink(it)]

    store = stored(tmp_path)
    keys = [chunk_key(str(number)) for number in range(6)]

    def work(seed):
        random = Random(seed)
        for _ in range(400):
            key, what = random.choice(keys), random.random()
            if what < 0.1:
                store.write([Item(key, memoryview(random.choice([OLD, NEW])))], deadline())
            elif what < 0.2:
                store.delete([key], deadline())
            else:
                found = part(store, random.randrange(4) * PAGE, key=key)
                assert found in (OLD[:PAGE], NEW[:PAGE], Miss())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    store.close()
    assert not [path for path in open_files() if str(tmp_path) in path and ".hexkv" in path]
