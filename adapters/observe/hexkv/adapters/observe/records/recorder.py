"""Writes a record of calls: off their path, in files of bounded size, readable by the owner only.

A call is put into a queue that is bounded in bytes; a thread names, encodes and writes it within
about a second. Calls that do not fit the queue or the disk are counted as lost, also in the record.
Recording never delays a call or makes it fail.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from threading import Event as Flag
from threading import Lock, Thread
from typing import TYPE_CHECKING

from hexkv.adapters.observe.records.format import (
    PATTERN,
    VERSION,
    Names,
    encode_call,
    encode_state,
    seal,
)
from hexkv.plugins.discovery.discovery import installed_version
from hexkv.ports import CallSink, Clock, ConfigError, RecordedCache, RecordedCall, TierHealth

log = logging.getLogger(__name__)

QUEUE_BYTES = 16 << 20
"""Bytes of memory of the calls that wait to be written."""

_CALL_BYTES = 1024
_KEY_BYTES = 96
"""Bytes of memory of a call, and of each key in it; at most, as measured with CPython."""

_LONGEST = 1 << 20
"""Keys of a call; a call with more is lost."""

_BEAT = 0.5
"""Seconds between two checks of the queue."""

_STATE = 10.0
"""Seconds between two records of the tiers' usage."""

_AGAIN = 60.0
"""Seconds after which a disk that failed is tried again."""

_CLOSING = 0.5


class Recorder:
    """See :class:`hexkv.ports.CallSink`."""

    def __init__(
        self, folder: str, cache: RecordedCache, clock: Clock, *, most: int, files: int
    ) -> None:
        """Begin a record in *folder*, which is created if missing.

        Args:
            folder: its oldest records are deleted to make room for this one.
            cache: the cache to record.
            clock: of the calls.
            most: bytes of all records in *folder*.
            files: the number of files in *folder*.

        Raises:
            ConfigError: no file can be written there.
        """
        self._folder = Path(folder)
        self._cache = cache
        self._clock = clock
        self._size = most // files
        """Bytes of a file."""

        self._most = most
        self._files = files
        self._names = Names(secrets.token_bytes(32))
        self._record = secrets.token_hex(4)
        self._wall, self._began = clock.wall(), clock.now()
        self._number = 0
        self._file = -1
        self._written = 0
        """Bytes in the file."""

        self._again = self._began
        self._stated = self._began - _STATE
        self._lock = Lock()
        """Guards the queue."""

        self._waiting: deque[RecordedCall] = deque()
        self._held = 0
        self._missed = 0
        """Calls lost that the record does not count yet."""

        self._writing = Lock()
        """Guards the files."""

        self.calls = 0
        self.lost = 0
        self.bytes = 0
        """Calls written, calls lost, and bytes written."""

        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._begin_file()
        except OSError as error:
            raise ConfigError(f"no record can be written in {folder}: {error.strerror}") from error
        self._ending = Flag()
        self._thread = Thread(target=self._run, name="hexkv record", daemon=True)
        self._thread.start()

    def record(self, call: RecordedCall) -> None:
        size = _size_of(call)
        with self._lock:
            if self._held + size > QUEUE_BYTES or len(call.keys) > _LONGEST:
                self._missed += 1
                self.lost += 1
                return
            self._held += size
            self._waiting.append(call)

    def close(self) -> None:
        """Write the waiting calls, and end, within a second."""
        self._ending.set()
        self._thread.join(_CLOSING)
        if not self._writing.acquire(timeout=_CLOSING):
            log.warning("the disk of %s hangs: the last calls are not recorded", self._folder)
            return
        try:
            self._write_waiting()
            self._end_file()
            self._again = inf
        finally:
            self._writing.release()

    def flush(self) -> None:
        """Write the waiting calls, and the tiers' usage if that is due."""
        now = self._clock.now()
        tiers: Sequence[TierHealth] = ()
        if now >= self._stated + _STATE and not self._ending.is_set():
            tiers = self._cache.tiers()  # may wait for a node: so hold no lock
        with self._writing:
            self._write_waiting()
            if tiers:
                self._stated = now
                self._put(encode_state(tiers, now - self._began))

    def _write_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting, self._held = self._waiting, deque(), 0
            missed, self._missed = self._missed, 0
        if missed and not self._put(seal({"do": "lost", "calls": missed})):
            with self._lock:
                self._missed += missed
        for call in waiting:
            if self._put(encode_call(call, self._names, self._began)):
                self.calls += 1
            else:
                with self._lock:
                    self._missed += 1
                    self.lost += 1

    def _run(self) -> None:
        while not self._ending.wait(_BEAT):
            try:
                self.flush()
            except Exception:
                log.exception("calls are no longer recorded")
                return

    def _put(self, line: bytes) -> bool:
        """Write *line* whole. False if that is not possible."""
        if len(line) > self._size // 2:
            return False
        try:
            if self._file >= 0 and self._written + len(line) > self._size:
                self._end_file()
            if self._file < 0:
                if self._clock.now() < self._again:
                    return False
                self._begin_file()
            self._write(line)
        except OSError as error:
            log.warning("calls are not recorded for a minute: %s", error)
            self._end_file()
            self._again = self._clock.now() + _AGAIN
            return False
        return True

    def _write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            done = os.write(self._file, view)
            self._written += done
            self.bytes += done
            view = view[done:]

    def _begin_file(self) -> None:
        self._make_room()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._wall))
        path = self._folder / f"hexkv-{stamp}-{self._record}-{self._number:06}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        # So that another process does not delete a file that is being written.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._written = 0
        head = {
            "do": "record",
            "version": VERSION,
            "record": self._record,
            "file": self._number,
            "began": self._wall,
            "model": self._cache.model,
            "chunk_tokens": self._cache.chunk_tokens,
            "chunk_bytes": self._cache.chunk_bytes,
            "compute_rate": self._cache.compute_rate,
            "hexkv": installed_version("hexkv"),
        }
        self._number += 1
        self._write(seal(head))

    def _end_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)

    def _make_room(self) -> None:
        """Delete the oldest files of records until one more fits; not those being written."""
        found = [path for path in self._folder.iterdir() if PATTERN.fullmatch(path.name)]
        sizes = {path: _bytes_of(path) for path in found}
        oldest = sorted(sizes, key=_age)
        while oldest and (
            len(sizes) >= self._files or sum(sizes.values()) + self._size > self._most
        ):
            path = oldest.pop(0)
            if _delete(path):
                del sizes[path]


def _size_of(call: RecordedCall) -> int:
    return _CALL_BYTES + _KEY_BYTES * len(call.keys)


def _bytes_of(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _age(path: Path) -> tuple[float, str]:
    with suppress(OSError):
        return path.stat().st_mtime, path.name
    return 0.0, path.name


def _delete(path: Path) -> bool:
    """Delete a file. True unless another recorder is writing it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


if TYPE_CHECKING:

    def _is_a_sink(recorder: Recorder) -> CallSink:
        return recorder
