"""Direct I/O: which frames take it, what happens where it is refused, and that both ways agree."""

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import sys
from itertools import product
from random import Random

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.files.direct import aligned, go_direct
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import PAGE, PIECE, ConfigError, Corrupt, Failed, Hit, Item, Miss, Stored, TimedOut

A = chunk_key("a")


def can_go_direct(path) -> bool:
    with open(path, "wb") as file:
        try:
            go_direct(file.fileno())
        except OSError:
            return False
    return True


@pytest.fixture(autouse=True)
def on_a_disk_that_can(tmp_path):
    if not can_go_direct(tmp_path / "probe"):
        pytest.skip("the file system of the temporary directory refuses direct I/O")


@pytest.fixture
def moves(monkeypatch):
    """For every call that moves bytes: its name, and whether it was direct."""
    seen = []
    for name in ("pwritev", "preadv"):
        real = getattr(os, name)

        def spy(file, buffers, offset, name=name, real=real):
            direct = bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)
            seen.append((name, direct))
            return real(file, buffers, offset)

        monkeypatch.setattr(os, name, spy)
    return seen


def pages(size, offset=0):
    """A writable buffer that starts *offset* bytes after a page's start."""
    room = memoryview(mmap.mmap(-1, PAGE + offset + max(1, size)))[offset : offset + size]
    room[:] = Random(size).randbytes(size)
    return room


def put(store, frame, key=A):
    return store.write([Item(key, frame)], deadline())[0]


@each("direct", ["auto", "on"])
def test_a_frame_of_whole_aligned_pages_is_written_and_read_past_the_cache(
    tmp_path_factory, moves, direct
):
    tmp_path = tmp_path_factory.mktemp("case")
    store = DiskStore(tmp_path, direct=direct)
    assert store.direct
    moves.clear()
    frame, sink = pages(5 * PAGE), ListSink()
    assert put(store, frame) == Stored(5 * PAGE)
    assert store.read([A], sink, deadline()) == [Hit(5 * PAGE)]
    assert sink.data(0) == bytes(frame)
    assert moves == [("pwritev", True), ("preadv", True)]
    store.close()


def test_off_never_goes_past_the_cache(tmp_path, moves):
    store = DiskStore(tmp_path, direct="off")
    assert not store.direct
    put(store, pages(PAGE))
    assert store.read([A], ListSink(), deadline()) == [Hit(PAGE)]
    assert moves == [("pwritev", False), ("preadv", False)]
    store.close()


def test_a_file_system_that_takes_no_advice_is_read_all_the_same(tmp_path, monkeypatch):
    def refuse(*_):
        asked.append(1)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    asked = []
    monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    store = DiskStore(tmp_path, direct="off")
    frame, sink = pages(2 * PIECE), ListSink()
    put(store, frame)
    assert store.read([A], sink, deadline()) == [Hit(2 * PIECE)]
    assert sink.data(0) == bytes(frame)
    assert len(asked) == (sys.platform == "linux")
    store.close()


@each(
    "frame",
    [
        lambda: pages(PAGE, 512),
        lambda: pages(PAGE - 1),
        lambda: pages(3 * PAGE + 512),
        lambda: memoryview(bytes(PAGE)),
        lambda: pages(0),
    ],
    ids=[
        "starts within a page",
        "is no whole page",
        "ends within a page",
        "is read-only",
        "is empty",
    ],
)
def test_what_is_not_aligned_goes_through_the_cache_and_arrives_all_the_same(
    tmp_path_factory, moves, frame
):
    tmp_path = tmp_path_factory.mktemp("case")
    store = DiskStore(tmp_path, direct="on")
    moves.clear()
    frame, sink = frame(), ListSink(offset=1)
    assert put(store, frame) == Stored(len(frame))
    assert store.read([A], sink, deadline()) == [Hit(len(frame))]
    assert sink.data(0) == bytes(frame)
    assert not any(direct for _, direct in moves)
    store.close()


def test_alignment_is_of_address_length_and_offset():
    assert aligned(pages(2 * PAGE), 3 * PAGE)
    assert not aligned(pages(2 * PAGE), 512)


@each(("written", "again", "read"), product(["on", "off"], repeat=3))
def test_either_way_of_reading_sees_what_either_way_wrote(tmp_path, written, again, read):
    root = tmp_path / f"{written} {again} {read}"
    writer, other = DiskStore(root, direct=written), DiskStore(root, direct=again)
    readers = [DiskStore(root, direct=mode) for mode in (read, "off", "on")]
    for turn in range(4):
        frame = pages((1 + turn % 2) * 16 * PAGE)
        frame[:8] = turn.to_bytes(8, "little")
        put((writer, other)[turn % 2], frame)
        for reader in readers:
            sink = ListSink()
            assert reader.read([A], sink, deadline()) == [Hit(len(frame))]
            assert sink.data(0) == bytes(frame)
    for store in (writer, other, *readers):
        store.close()


def test_a_file_that_shrinks_while_it_is_read_directly_is_corrupt(tmp_path):
    class Truncates(ListSink):
        def room(self, index, size):
            os.truncate(next(tmp_path.glob("??/*.hexkv")), PAGE + 2)
            return super().room(index, size)

    store = DiskStore(tmp_path, direct="on")
    put(store, pages(3 * PAGE))
    assert store.read([A], Truncates(), deadline()) == [
        Corrupt(f"the file ended after {PAGE + 2} of {3 * PAGE} bytes")
    ]
    store.close()


@pytest.mark.parametrize("step", [512, PAGE, PAGE + 512])
def test_short_direct_transfers_go_on_where_they_stopped(tmp_path, monkeypatch, step):
    write, read = os.pwritev, os.preadv
    store = DiskStore(tmp_path, direct="on")
    monkeypatch.setattr(os, "pwritev", lambda f, b, o: write(f, [b[0][:step]], o))
    monkeypatch.setattr(os, "preadv", lambda f, b, o: read(f, [b[0][:step]], o))
    frame, sink = pages(3 * PAGE), ListSink()
    assert put(store, frame) == Stored(len(frame))
    assert store.read([A], sink, deadline()) == [Hit(len(frame))]
    assert sink.data(0) == bytes(frame)
    store.close()


# --- where it is refused ----------------------------------------------------------------


def refuse(monkeypatch):
    real = fcntl.fcntl

    def refusing(file, command, argument=0):
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(file, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", refusing)


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_auto_falls_back_with_one_warning_where_the_file_system_refuses(
    tmp_path, monkeypatch, caplog
):
    refuse(monkeypatch)
    store = DiskStore(tmp_path)
    assert not store.direct
    for _ in range(3):
        assert put(store, pages(PAGE)) == Stored(PAGE)
        assert store.read([A], ListSink(), deadline()) == [Hit(PAGE)]
    assert len(warnings_in(caplog)) == 1
    assert "refuses direct I/O" in warnings_in(caplog)[0]
    store.close()


def test_on_refuses_to_open_where_the_file_system_refuses(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        refuse(patch)
        with pytest.raises(ConfigError, match="direct I/O is on"):
            DiskStore(tmp_path, direct="on")
    DiskStore(tmp_path, exclusive=True).close()


def test_an_unknown_mode_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="auto, on or off"):
        DiskStore(tmp_path, direct="maybe")
    DiskStore(tmp_path, exclusive=True).close()


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_refusal_that_comes_with_the_first_frame_costs_nothing_but_a_warning(
    tmp_path, monkeypatch, caplog, call
):
    real = getattr(os, call)

    def picky(file, buffers, offset):
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(file, buffers, offset)

    store, strict = DiskStore(tmp_path), DiskStore(tmp_path, direct="on")
    monkeypatch.setattr(os, call, picky)
    frame, sink = pages(2 * PAGE), ListSink()
    put(strict, frame)
    (outcome,) = strict.read([A], ListSink(), deadline())
    assert isinstance(outcome, Miss | Failed)  # on means on
    assert put(store, frame) == Stored(len(frame))
    assert store.read([A], sink, deadline()) == [Hit(len(frame))]
    assert sink.data(0) == bytes(frame)
    assert not store.direct
    assert len(warnings_in(caplog)) == 1
    store.close()
    strict.close()


@each("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_disk_error_is_no_refusal(tmp_path_factory, monkeypatch, number):
    tmp_path = tmp_path_factory.mktemp("case")

    def failing(file, buffers, offset):
        raise OSError(number, os.strerror(number))

    store = DiskStore(tmp_path, capacity=2 * PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        assert isinstance(put(store, pages(PAGE)), Failed)
    assert store.direct
    assert list(tmp_path.rglob("*.tmp")) == []
    assert put(store, pages(2 * PAGE)) == Stored(2 * PAGE)
    store.close()


# --- ranges -----------------------------------------------------------------------------


@each(
    ("start", "size", "direct"),
    [(PAGE, 2 * PAGE, True), (0, 4 * PAGE, True), (PAGE + 1, PAGE, False), (PAGE, 100, False)],
)
def test_a_range_of_whole_pages_is_read_past_the_cache(
    tmp_path_factory, moves, start, size, direct
):
    tmp_path = tmp_path_factory.mktemp("case")
    store = DiskStore(tmp_path, direct="on")
    frame, into = pages(4 * PAGE), pages(size)
    put(store, frame)
    moves.clear()
    assert store.read_range(A, start, into, deadline()) == Hit(size)
    assert bytes(into) == bytes(frame[start : start + size])
    assert moves == [("preadv", direct)]
    store.close()


def test_a_range_that_is_not_all_there_is_corrupt_or_a_miss(tmp_path):
    store = DiskStore(tmp_path)
    put(store, pages(PAGE))
    assert store.read_range(A, 0, pages(2 * PAGE), deadline()) == Corrupt(
        f"the file ended after {PAGE} of {2 * PAGE} bytes"
    )
    assert isinstance(store.read_range(A, 5 * PAGE, pages(PAGE), deadline()), Corrupt)
    assert store.read_range(chunk_key("b"), 0, pages(PAGE), deadline()) == Miss()
    assert store.read_range(A, 0, pages(PAGE), deadline(0)) == TimedOut()
    store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is looked at as Linux shows it")
def test_direct_frames_leave_no_pages_in_the_cache(tmp_path):
    store = DiskStore(tmp_path, direct="on")
    put(store, pages(64 * PAGE))
    store.read([A], ListSink(), deadline())
    assert cached(next(tmp_path.glob("??/*.hexkv"))) == 0
    store.close()


def cached(path) -> int:
    """How many pages of a file are in the page cache, without reading any of it."""
    size = path.stat().st_size
    resident = (ctypes.c_ubyte * (size // PAGE))()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
        start = ctypes.c_char.from_buffer(view)
        assert ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(size), resident) == 0
        del start
    return sum(flags & 1 for flags in resident)
