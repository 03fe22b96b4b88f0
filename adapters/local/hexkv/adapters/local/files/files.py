"""Reading and writing one file: the only module that knows how I/O is done."""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from hexkv.adapters.local.files.direct import (
    REFUSALS,
    aligned,
    go_direct,
    go_through_cache,
    read_on,
    try_direct,
)
from hexkv.adapters.local.files.nofollow import ABSENT, open_file
from hexkv.plugins.file_store import OF_ONE_FILE, close_read
from hexkv.ports import (
    PAGE,
    PIECE,
    ChunkKey,
    ConfigError,
    Corrupt,
    Deadline,
    Hit,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    StoreError,
    StoreFull,
    StoreUnreachable,
)

log = logging.getLogger(__name__)

Direct = Literal["auto", "on", "off"]
"""Whether files bypass the page cache: where they can, without exception, or never."""

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""Flags to create a file that must not exist yet."""

_FILLED = os.O_RDWR | os.O_CREAT | os.O_EXCL
"""The same flags for a library, which may read parts that it does not write whole."""

# Non-blocking, for opening a pipe that has been put there must not hang.
_READ = os.O_RDONLY | os.O_NONBLOCK

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class FileIO:
    """Reads and writes files, directly where file system and buffer allow it.

    A buffer or a length that is not made of pages goes through the page cache, whatever the
    setting. Both ways may be used on one file: the system writes cached pages out before it reads a
    file directly, and drops them when it is written directly.
    """

    def __init__(self, mode: Direct, probe: str) -> None:
        """Test direct I/O on the file system.

        Args:
            mode: ``auto`` falls back to the page cache, with one warning, if direct I/O is refused.
            probe: a file on that file system, not empty.

        Raises:
            ConfigError: *mode* is ``on``, and it is refused.
            OSError: *probe* cannot be read.
        """
        if mode not in ("auto", "on", "off"):
            raise ConfigError(f"direct is auto, on or off, not {mode!r}")
        self._mode = mode
        self._probe = probe
        self.direct = mode != "off"
        """True if frames bypass the page cache."""
        if self.direct:
            try:
                try_direct(probe)
            except OSError as error:
                if not self._give_up(error):
                    if error.errno not in REFUSALS:
                        raise
                    refused = ConfigError(
                        f"direct I/O is on, but the file system of {probe} refuses it"
                    )
                    refused.setting = "direct"
                    raise refused from error

    def write(self, path: str, frame: memoryview) -> None:
        """Make a new file of *frame*. It is not synced.

        See :class:`hexkv.adapters.local.disk.DiskStore`.

        Raises:
            OSError: also if a file is there already. A part of the file may be left behind.
        """
        size = frame.nbytes
        file = open_file(path, NEW)
        try:
            if size:
                _reserve(file, size)
            if self._move(os.pwritev, file, frame, 0) < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        finally:
            os.close(file)

    def read(self, path: str, index: int, sink: Sink) -> ReadOutcome:
        """Read all of a file into the buffer that *sink* has for the chunk at *index*.

        Raises:
            OSError: other than that there is no such file.
        """
        return self._read(path, 0, partial(sink.room, index), lambda upto: sink.filled(index, upto))

    def read_range(self, path: str, start: int, into: memoryview) -> ReadOutcome:
        """Fill *into* with a file's bytes from *start* on.

        Raises:
            OSError: other than that there is no such file.
        """
        return self._read(path, start, lambda _size: into)

    def bypasses(self, buffer: memoryview, offset: int) -> bool:
        """Return True if *buffer* bypasses the page cache at *offset* of a file."""
        return self.direct and aligned(buffer, offset)

    def fill(self, file: int, into: memoryview, start: int) -> int:
        """Read into *into* from *start* of an open file. Return the number of bytes read.

        Args:
            file: a descriptor that already bypasses the page cache if :meth:`bypasses` returns
                True.
            into: the buffer to fill.
            start: offset in the file.

        Raises:
            OSError: it cannot be read.
        """
        return self._move(os.preadv, file, into, start, ready=True)

    def refused(self, error: OSError) -> None:
        """Use the page cache from now on after the refusal *error*, if the mode allows it.

        Raises:
            OSError: the mode does not allow it.
        """
        if not self._give_up(error):
            raise error

    def _read(
        self,
        path: str,
        start: int,
        room: Callable[[int], memoryview | None],
        filled: Callable[[int], None] | None = None,
    ) -> ReadOutcome:
        file = open_frame(path)
        if file is None:
            return Miss()
        try:
            size = os.fstat(file).st_size
            into = room(size)
            if into is None:
                return Miss(Reason.REFUSED)
            got = self._move(os.preadv, file, into, start, filled)
            if got < into.nbytes:
                return Corrupt(f"the file ended after {start + got} of {start + into.nbytes} bytes")
            return Hit(got, size)
        finally:
            close_read(file)

    def _move(
        self,
        call: Callable[[int, Sequence[memoryview], int], int],
        file: int,
        buffer: memoryview,
        offset: int,
        filled: Callable[[int], None] | None = None,
        *,
        ready: bool = False,
    ) -> int:
        """Call until all of *buffer* is moved, or a call moves none. Return the bytes moved.

        With *filled*, the CPU copies in pieces, and *filled* is called after each with the bytes
        done so far. A disk that writes to memory itself leaves nothing in the CPU's cache, and is
        faster at one large piece. A *ready* file already bypasses the page cache if it should.
        """
        done, size = 0, buffer.nbytes
        piece = size if filled is None else PIECE
        if not ready and self.bypasses(buffer, offset):
            try:
                go_direct(file)
                piece = size
            except OSError as error:
                self.refused(error)
        if piece < size:
            read_on(file)
        while done < size:
            try:
                moved = call(file, [buffer[done : done + piece]], offset + done)
            except OSError as error:
                if not (error.errno in REFUSALS and go_through_cache(file)):
                    raise
                if not self._give_up(error):
                    raise
                continue
            if not moved:
                break
            done += moved
            if filled is not None and done < size:
                filled(done)
            if done % PAGE and done < size:
                go_through_cache(file)  # direct I/O cannot continue from within a page
        return done

    def _give_up(self, error: OSError) -> bool:
        """Use the page cache from now on, if *error* is a refusal and the mode allows it."""
        if error.errno not in REFUSALS or self._mode == "on":
            return False
        if self.direct:
            self.direct = False
            log.warning(
                "the file system of %s refuses direct I/O (%s): going through the page cache",
                os.path.dirname(self._probe),
                error.strerror,
            )
        return True


def open_frame(path: str) -> int | None:
    """Return a descriptor of a regular file; ``None`` if there is none.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        file = open_file(path, _READ)
    except ABSENT:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    found = None
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            found = file
    finally:
        if found is None:
            close_read(file)
    return found


def make_file(path: str, size: int, fill: Callable[[int], None], *, reserves: bool = True) -> None:
    """Make a new file; *fill* takes its descriptor and fills it.

    Raises:
        OSError: also if the file exists already, or does not have *size* bytes at the end. A part
            of it may be left behind.
    """
    file = open_file(path, _FILLED)
    try:
        if size and reserves:
            _reserve(file, size)
        fill(file)
        there = os.fstat(file).st_size
    except BaseException:
        os.close(file)
        raise
    os.close(file)  # over a network, closing reports whether the bytes arrived
    if there != size:
        raise OSError(errno.EIO, f"the file has {there} bytes, not {size}", path)


def in_time(keys: Sequence[ChunkKey], deadline: Deadline, doing: str) -> Iterator[ChunkKey]:
    """Yield *keys*; *doing* names the operation in the message of an error.

    Raises:
        StoreUnreachable: the deadline passed, so nothing is known of the next ones.
    """
    for key in keys:
        if deadline.expired:
            raise StoreUnreachable(f"{doing}: no answer in time")
        yield key


def store_error(error: OSError, doing: str) -> StoreError:
    """Return *error* as a store error of the core; *doing* names the operation in its message."""
    kind = StoreFull if error.errno in _FULL else StoreUnreachable
    return kind(f"{doing}: {error.strerror or error}")


def chunk_error(error: OSError, doing: str, path: str) -> StoreError:
    """Return *error* of a call about one file; *doing* names the operation in its message."""
    kind = StoreError if error.errno in OF_ONE_FILE else type(store_error(error, doing))
    return kind(f"{doing}: {error.strerror or error}: {path}")


def _reserve(file: int, size: int) -> None:
    """Allocate the file's blocks at once.

    So a full disk is found before anything is written, and ext4 buffers 32 MiB at 8.6 GB/s instead
    of 5.4, for it need not reserve each block by itself. Direct writes are as fast with it as
    without.
    """
    if sys.platform != "linux":
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV}:
            raise
