"""Export and import: frames from tiers into an archive, and from an archive to tiers.

Both continue where they were interrupted. An export appends to the file's frames; an import skips
the frames that the tiers have.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from hexkv.archives.format import ArchiveReader, Totals, end_page, head_page
from hexkv.archives.selection import Selection, prefix_of, unfit
from hexkv.core.frames.codec import FrameCodec
from hexkv.ports import (
    PAGE,
    AdapterUnavailable,
    ChunkKey,
    ConfigError,
    FrameHeader,
    InvalidRequest,
    Reason,
    frame_bytes,
    namespace_of,
)

_UNDER_WAY = 4
"""Frames that may be on their way to the tiers at a time."""

_HOPELESS = 6
"""Frames in a row that every tier refused, after which the rest is not tried."""

_LISTED = 20
"""Refused frames that a report lists one by one."""

Progress = Callable[[int, int | None], None]
"""Receives the amount done, and the total if that is known."""


class Taking(Protocol):
    """A frame on its way to the place that will keep it."""

    def settle(self) -> Mapping[str, str | None]:
        """Return, by tier, the reason it is not there; ``None`` if it is. Waits."""
        ...


class FrameHome(Protocol):
    """Where frames are kept: the tiers of a configuration, or a node."""

    @property
    def listed(self) -> bool:
        """True if everything stored there can be listed."""
        ...

    @property
    def evicted(self) -> int:
        """The number of chunks evicted for others."""
        ...

    @property
    def serdes(self) -> Collection[str]:
        """Names of the serdes that are installed."""
        ...

    def namespaces(self) -> Mapping[bytes, str]:
        """Return the namespaces of its chunks: by prefix, the identity; empty if unreadable."""
        ...

    def keys(self, prefixes: Sequence[bytes]) -> list[ChunkKey]:
        """Return every chunk of some namespaces."""
        ...

    def frames(self, keys: Sequence[ChunkKey]) -> Iterator[tuple[ChunkKey, memoryview | Reason]]:
        """Yield each frame, verified, valid until the next one; or why there is none."""
        ...

    def take(
        self, header: FrameHeader, page: bytes, fill: Callable[[memoryview], bool]
    ) -> Taking | Reason | None:
        """Keep a frame: *page* was read, and *fill* reads the rest. ``None``: it is stored already.

        Return the reason of a refusal if the frame does not verify, or there is no memory for it.
        """
        ...


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    frames: int = 0
    """Frames written now."""

    bytes: int = 0
    before: int = 0
    """Frames that the archive had already."""

    lost: int = 0
    """Chunks that were listed, and could not be read whole."""

    namespaces: dict[str, int] = field(default_factory=dict)
    """Frames written now, by namespace."""


@dataclass(slots=True)
class Imported:
    """The result of an import."""

    frames: int = 0
    """Frames that are on every tier now, and were not before."""

    bytes: int = 0
    present: int = 0
    """Frames that were on every tier already."""

    passed: int = 0
    """Frames that are not of the selection."""

    refused: dict[str, int] = field(default_factory=dict)
    """Frames that do not verify, or for which there is no memory, by reason."""

    first_refused: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of the first of them."""

    failed: dict[str, int] = field(default_factory=dict)
    """Frames that a tier did not take, by tier and reason."""

    damage: list[tuple[int, str]] = field(default_factory=list)
    cut: bool = False
    stopped: bool = False
    """True if the rest was not tried, because every tier refused."""

    evicted: int = 0
    """Chunks that the tiers evicted."""

    @property
    def well(self) -> bool:
        """True if the archive was whole, and all of it is stored."""
        return not (self.refused or self.failed or self.damage or self.cut or self.stopped)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open the file of an archive, new or begun, for this process alone.

    Raises:
        InvalidRequest: it cannot be written, or another process writes to it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be written: {error.strerror}") from error
    with open(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidRequest(f"{path}: another process writes to it") from error
        yield file


def export(
    place: FrameHome,
    selection: Selection,
    file: BinaryIO,
    codec: FrameCodec,
    progress: Progress,
    identity: str = "",
    *,
    pipe: bool = False,
) -> Exported:
    """Write the frames of *selection* to an archive, after those that it has.

    Args:
        place: has them.
        selection: which ones.
        file: the archive, empty or of the same selection.
        codec: for the headers of frames in the archive.
        progress: receives counts of chunks.
        identity: of the only namespace, for places that cannot list their chunks.
        pipe: True if *file* can only be written to.

    Raises:
        InvalidRequest: the file is another archive, or a damaged one; the selection matches nothing
            there; the place's chunks cannot be listed.
        OSError: the file cannot be read or written; its whole frames stay.
    """
    wanted = _wanted(place, selection, identity)
    report = Exported()
    had, totals = _begun(file, selection, codec, pipe=pipe)
    report.before = totals.frames
    todo = [key for key in wanted if key not in had]
    progress(0, len(todo))
    try:
        for done, (key, frame) in enumerate(place.frames(todo), start=1):
            if isinstance(frame, Reason):
                report.lost += frame is not Reason.ABSENT
            else:
                file.write(frame)
                totals.add(codec.peek(frame))
                report.frames += 1
                report.bytes += len(frame)
                _count(report.namespaces, namespace_of(key).hex())
            progress(done, len(todo))
        file.write(end_page(totals))
    finally:
        file.flush()
    if not pipe:
        os.fsync(file.fileno())
    return report


def bring_in(
    place: FrameHome,
    selection: Selection,
    archive: ArchiveReader,
    progress: Progress,
) -> Imported:
    """Store the frames of *selection* in an archive that are not stored yet.

    Raises:
        OSError: the archive cannot be read.
    """
    report = Imported()
    under_way: deque[tuple[FrameHeader, Taking]] = deque()
    in_a_row = 0

    def settle() -> None:
        nonlocal in_a_row
        header, taking = under_way.popleft()
        missing = {tier: why for tier, why in taking.settle().items() if why is not None}
        for tier, why in missing.items():
            _count(report.failed, f"{tier}: {why}")
        in_a_row = in_a_row + 1 if missing else 0
        if not missing:
            report.frames += 1
            report.bytes += frame_bytes(header.payload_bytes)

    wanted = _Wanted(selection)
    for header, page in archive:
        progress(archive.at, archive.size)
        if not wanted(header):
            report.passed += 1
            continue
        taken = unfit(header, place.serdes) or place.take(header, page, archive.fill)
        if taken is None:
            report.present += 1
        elif isinstance(taken, str):
            _refuse(report, header, str(taken))
        else:
            under_way.append((header, taken))
            if len(under_way) > _UNDER_WAY:
                settle()
        if in_a_row >= _HOPELESS:
            report.stopped = True
            break
    while under_way:
        settle()
    progress(archive.at, archive.size)
    report.damage = archive.damage
    report.cut = archive.cut
    report.evicted = place.evicted
    return report


class _Wanted:
    """Matches frames with a selection; each namespace is looked up once."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._known: dict[bytes, bool | frozenset[ChunkKey]] = {}

    def __call__(self, header: FrameHeader) -> bool:
        prefix = namespace_of(header.key)
        found = self._known.get(prefix)
        if found is None:
            found = self._selection.takes(prefix, header.identity)
            if found and self._selection.prompt is not None:
                found = self._named(header.identity)
            self._known[prefix] = found
        return found if isinstance(found, bool) else header.key in found

    def _named(self, identity: str) -> frozenset[ChunkKey]:
        """Return the prompt's chunks in a namespace; none if they cannot be named."""
        try:
            return frozenset(self._selection.keys(identity))
        except (ConfigError, AdapterUnavailable):
            return frozenset()


def _wanted(place: FrameHome, selection: Selection, identity: str) -> list[ChunkKey]:
    """Return the chunks of a selection, each once."""
    if identity:
        spaces: Mapping[bytes, str] = {prefix_of(identity): identity}
    elif place.listed:
        spaces = place.namespaces()
    else:
        raise InvalidRequest(
            "--tier: not all tiers can list what they hold: name others, or give --identity and"
            " --tokens"
        )
    chosen = {prefix: text for prefix, text in spaces.items() if selection.takes(prefix, text)}
    if not chosen:
        raise InvalidRequest("nothing that is there was selected")
    if selection.prompt is None:
        return place.keys(list(chosen))
    keys: list[ChunkKey] = []
    cannot = []
    for text in chosen.values():
        try:
            keys += selection.keys(text)
        except (ConfigError, AdapterUnavailable) as error:
            cannot.append(str(error))
    if len(cannot) == len(chosen):
        raise InvalidRequest(f"--tokens: {cannot[0]}")
    return keys


def _begun(
    file: BinaryIO, selection: Selection, codec: FrameCodec, *, pipe: bool
) -> tuple[set[ChunkKey], Totals]:
    """Return the chunks in an archive; the file is then behind them, without its end page."""
    head = head_page(selection.about)
    if not pipe:
        begun = file.read(PAGE)
        file.seek(0)
        if len(begun) == PAGE or not head.startswith(begun):
            return _continue(file, selection, codec)
    file.write(head)
    return set(), Totals()


def _continue(
    file: BinaryIO, selection: Selection, codec: FrameCodec
) -> tuple[set[ChunkKey], Totals]:
    reader = ArchiveReader(file, codec)
    if reader.about != selection.about:
        raise InvalidRequest(f"the file is an archive of something else: {reader.about}")
    had = {header.key for header, _ in reader}
    if reader.damage:
        at, what = reader.damage[0]
        raise InvalidRequest(f"the file is damaged at byte {at}: {what}: write another one")
    file.seek(reader.whole)
    file.truncate()
    return had, reader.totals


def _refuse(report: Imported, header: FrameHeader, why: str) -> None:
    _count(report.refused, why)
    if len(report.first_refused) < _LISTED:
        report.first_refused.append((header.key.hex(), why))


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
