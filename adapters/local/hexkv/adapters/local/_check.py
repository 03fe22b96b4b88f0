"""Find the faults of a directory of chunks, and repair them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Protocol

from hexkv.adapters.local.files.account import ByteAccount
from hexkv.adapters.local.files.directory import SharedDirectory, living_engines
from hexkv.adapters.local.files.files import FileIO
from hexkv.adapters.local.files.layout import (
    FOLDERS,
    LEDGER,
    MARKER,
    QUARANTINE,
    WRITING,
    chunks_in,
    file_path,
    folder_path,
    key_of,
    locks_in,
    parts_in,
)
from hexkv.adapters.local.files.ledger import Books
from hexkv.adapters.local.files.nofollow import listed, move, open_file, regular_size
from hexkv.plugins.memory.mapping import MmapMemory, MmapRegion
from hexkv.ports import (
    PAGE,
    ChunkKey,
    CorruptFrame,
    FrameHeader,
    Hit,
    Miss,
    PoolExhausted,
    frame_bytes,
)


class FrameReader(Protocol):
    """Reads frames, and verifies them: the core's codec."""

    def open(self, frame: memoryview, key: ChunkKey | None = None) -> FrameHeader:
        """Return the header of a whole frame; ``CorruptFrame`` if any byte of it has changed."""
        ...

    def peek(self, page: memoryview) -> FrameHeader:
        """Return the header in a header page; ``CorruptFrame`` if it is damaged."""
        ...


class Fault(StrEnum):
    """A kind of fault that a file can have."""

    DAMAGED = "damaged"
    MISPLACED = "misplaced"
    """A whole frame in a place where no lookup finds it."""
    STALE = "stale"
    """Half-written by an engine that died."""
    LEDGER = "ledger"
    """The ledger's count of bytes differs from the sizes of the files."""


@dataclass(slots=True)
class Problem:
    """A faulty file, its fault, and the repair."""

    fault: Fault
    path: str
    """Relative to the directory."""
    detail: str
    done: str = ""
    belongs: ChunkKey | None = None
    """The chunk whose frame a misplaced file holds."""


@dataclass(slots=True)
class Findings:
    """The results of a check."""

    frames: int = 0
    """Whole frames in their places."""
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Files that are not the store's: left alone, and no problem."""
    quarantined: int = 0
    engines: int = 0
    """How many engines use the directory: while they do, the changing count is not checked."""


Watch = Callable[[list[str]], Iterable[str]]


def check(root: str, codec: FrameReader, watch: Watch = iter) -> Findings:
    """Verify every frame in a directory. Changes nothing; engines may use it during the check.

    Args:
        root: the directory.
        codec: knows the checksums that frames may have.
        watch: takes the files to verify, and yields them one by one as they are verified.

    Raises:
        OSError: a folder cannot be listed.
    """
    findings = Findings()
    living = living_engines(root)
    findings.engines = len(living)
    findings.quarantined = _quarantined(root)
    findings.problems += _stale(root, living)
    memory = _Memory()
    try:
        io = FileIO("auto", f"{root}/{MARKER}")
        for path in watch(list(_candidates(root, findings))):
            _verify(root, path, io, codec, memory, findings)
    finally:
        memory.close()
    if not living:
        findings.problems += _wrong_ledger(root)
    return findings


def repair(root: str, codec: FrameReader, watch: Watch = iter) -> Findings:
    """Verify every frame, quarantine damaged ones, and move the others to their places.

    Raises:
        StoreBusy: an engine uses the directory.
        OSError: something cannot be listed.
    """
    mended = [*_stale(root, set()), *_wrong_ledger(root)]
    directory = SharedDirectory(root, exclusive=True)  # which repairs those
    try:
        findings = check(root, codec, watch)
        findings.engines -= 1
        for problem in mended:
            problem.done = "removed" if problem.fault is Fault.STALE else "counted anew"
        findings.problems[:0] = mended
        numbers = count()
        moved: list[tuple[Problem, str, str]] = []
        for problem in findings.problems:
            try:
                if problem.fault is Fault.DAMAGED:
                    _set_aside(root, f"{root}/{problem.path}", problem)
                elif problem.belongs is not None:
                    # Move both aside first: each of two may lie in the other's place.
                    aside = directory.part(next(numbers))
                    move(f"{root}/{problem.path}", aside)
                    moved.append((problem, aside, file_path(root, problem.belongs)))
            except OSError as error:
                problem.done = f"not repaired: {error.strerror}"
        for problem, aside, place in moved:
            _put_right(root, problem, aside, place)
        findings.quarantined = _quarantined(root)
        ByteAccount(directory, None).used()  # writes a right ledger, for the next check
    finally:
        directory.release()
    return findings


def _candidates(root: str, findings: Findings) -> Iterator[str]:
    """Yield the files that are or should be frames; note the others in *findings*."""
    locks = {path for _, path in locks_in(root)}
    parts = {path for _, path in parts_in(root)}
    known = {f"{root}/{name}" for name in (MARKER, LEDGER)} | locks | parts
    folders = {folder_path(root, folder) for folder in range(FOLDERS)}
    pending = [root]
    while pending:
        folder = pending.pop()
        with listed(folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if path in known:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if path in folders or path == f"{root}/{WRITING}":
                        pending.append(path)
                    elif path != f"{root}/{QUARANTINE}":
                        findings.foreign.append(_relative(root, path))
                elif key_of(entry.name) is not None and entry.is_file(follow_symlinks=False):
                    yield path
                else:
                    findings.foreign.append(_relative(root, path))


def _verify(
    root: str, path: str, io: FileIO, codec: FrameReader, memory: _Memory, findings: Findings
) -> None:
    name = _relative(root, path)
    try:
        found = _open(path, io, codec, memory)
    except (CorruptFrame, PoolExhausted) as error:
        findings.problems.append(Problem(Fault.DAMAGED, name, str(error)))
        return
    except OSError as error:
        detail = f"cannot be read: {error.strerror}"
        findings.problems.append(Problem(Fault.DAMAGED, name, detail))
        return
    if found is None:
        return
    place = file_path(root, found.key)
    if place == path:
        findings.frames += 1
        findings.bytes += frame_bytes(found.payload_bytes)
    else:
        detail = f"belongs to {_relative(root, place)}"
        findings.problems.append(Problem(Fault.MISPLACED, name, detail, belongs=found.key))


def _open(path: str, io: FileIO, codec: FrameReader, memory: _Memory) -> FrameHeader | None:
    """Return the header of a file's verified frame; ``None`` if the file has been evicted."""
    size = regular_size(path)
    if size is None:
        return None
    page = memory.room(min(size, PAGE))
    if isinstance(io.read_range(path, 0, page), Miss):
        return None
    expected = frame_bytes(codec.peek(page).payload_bytes)
    if size != expected:  # so no memory is taken on the word of the file alone
        raise CorruptFrame(f"{size} bytes, but the header gives {expected}")
    frame = memory.room(size)
    outcome = io.read_range(path, 0, frame)
    if isinstance(outcome, Miss):
        return None
    if not isinstance(outcome, Hit):
        raise CorruptFrame("it became shorter while it was read")
    return codec.open(frame)


def _put_right(root: str, problem: Problem, aside: str, place: str) -> None:
    try:
        if os.path.lexists(place):
            _set_aside(root, aside, problem)
            problem.done += ", for its place is taken"
        else:
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            move(aside, place)
            problem.done = f"moved to {_relative(root, place)}"
    except OSError as error:
        with suppress(OSError):
            move(aside, f"{root}/{problem.path}")
        problem.done = f"not repaired: {error.strerror}"


def _set_aside(root: str, path: str, problem: Problem) -> None:
    name = os.path.basename(problem.path)
    os.makedirs(f"{root}/{QUARANTINE}", mode=0o700, exist_ok=True)
    move(path, f"{root}/{QUARANTINE}/{name}")
    problem.done = f"moved to {QUARANTINE}/{name}"


def _stale(root: str, living: set[int]) -> list[Problem]:
    return [
        Problem(Fault.STALE, _relative(root, path), "its writer is dead")
        for engine, path in parts_in(root)
        if engine not in living
    ]


def _wrong_ledger(root: str) -> list[Problem]:
    """Return a problem if a complete count is wrong. Skip one that is unfinished or in doubt."""
    try:
        with open(open_file(f"{root}/{LEDGER}", os.O_RDONLY | os.O_NONBLOCK), "rb") as ledger:
            books = Books.unpack(ledger.read(PAGE + 1))
    except FileNotFoundError:
        return []
    if books.counted < FOLDERS or books.changing:
        return []
    size = sum(entry.size for folder in range(FOLDERS) for entry in chunks_in(root, folder))
    if size == books.used:
        return []
    return [Problem(Fault.LEDGER, LEDGER, f"it counts {books.used} bytes, the files have {size}")]


def _quarantined(root: str) -> int:
    with listed(f"{root}/{QUARANTINE}") as entries:
        return sum(key_of(entry.name) is not None for entry in entries)


def _relative(root: str, path: str) -> str:
    return path[len(root) + 1 :]


class _Memory:
    """One buffer for all frames, as large as the largest so far."""

    def __init__(self) -> None:
        self._region: MmapRegion | None = None

    def room(self, size: int) -> memoryview:
        """Return *size* bytes; ``PoolExhausted`` if the machine has too little."""
        if self._region is None or len(self._region.buffer) < size:
            self.close()
            self._region = MmapMemory().allocate(max(size, PAGE))
        return self._region.buffer[:size]

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            self._region = None
