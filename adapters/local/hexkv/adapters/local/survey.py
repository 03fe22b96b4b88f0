"""The content of a directory of frames.

Frames are found by their first bytes, not by their names: they describe themselves, so this works
for any directory they are in, whichever store wrote it, and while the store continues to write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hexkv.adapters.local._check import FrameReader
from hexkv.ports import (
    KEY_BYTES,
    MAGIC,
    PAGE,
    CorruptFrame,
    FrameHeader,
    InvalidRequest,
    frame_bytes,
)


class FoundFrame(NamedTuple):
    """One frame."""

    path: str
    header: FrameHeader


@dataclass(slots=True)
class Contents:
    """The content of a directory."""

    frames: list[FoundFrame] = field(default_factory=list)

    damaged: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason: torn, flipped, under another chunk's name, or quarantined by a store."""

    unfinished: int = 0
    """Files that a store is or was writing."""

    foreign: int = 0
    """Files that are no frames."""


def frame_summary(root: Path, codec: FrameReader, *, verify: bool = False) -> Contents:
    """Read every file below *root*. A file that vanishes during it was evicted, and is left out.

    Args:
        root: a directory.
        codec: knows the checksums that frames may have.
        verify: read the payloads as well.

    Raises:
        InvalidRequest: *root* cannot be listed.
    """
    if not root.is_dir():
        raise InvalidRequest(f"{root}: is not a directory")
    contents = Contents()
    for path in _files(root, contents.damaged):
        name = path.relative_to(root).as_posix()
        if path.suffix == ".tmp":
            contents.unfinished += 1
            continue
        try:
            found = _look(path, codec, verify)
        except FileNotFoundError:
            continue
        except CorruptFrame as error:
            contents.damaged.append((name, str(error)))
            continue
        except OSError as error:
            contents.damaged.append((name, f"cannot be read: {error.strerror}"))
            continue
        if found is None:
            contents.foreign += not path.name.startswith((".hexkv-", "hexkv-"))
        elif "quarantine" in path.relative_to(root).parts[:-1]:
            contents.damaged.append((name, "set aside by the store"))
        else:
            contents.frames.append(FoundFrame(name, found))
    contents.frames.sort(key=lambda frame: frame.header.created, reverse=True)
    return contents


def _files(root: Path, unknown: list[tuple[str, str]]) -> Iterator[Path]:
    """Yield every file; put folders that cannot be listed into *unknown*, with the reason."""

    def refuse(error: OSError) -> None:
        if error.filename == os.fspath(root):
            raise InvalidRequest(f"{root}: cannot be listed: {error.strerror}") from error
        if not isinstance(error, FileNotFoundError):
            name = Path(error.filename).relative_to(root).as_posix()
            unknown.append((name, f"cannot be listed: {error.strerror}"))

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():  # a pipe would block us
                yield path


def _look(path: Path, codec: FrameReader, verify: bool) -> FrameHeader | None:
    """Return the header of the frame in a file; ``None`` if it holds no frame."""
    with path.open("rb", buffering=0) as file:
        page = file.read(PAGE)
        if not page.startswith(MAGIC):
            if _stem_key(path) is not None:
                raise CorruptFrame("named as a chunk, but does not start as a frame")
            return None
        header = codec.peek(memoryview(page))
        size = os.fstat(file.fileno()).st_size
        if size != frame_bytes(header.payload_bytes):
            raise CorruptFrame(
                f"{size} bytes, but the header gives {frame_bytes(header.payload_bytes)}"
            )
        if _stem_key(path) not in (None, header.key):
            raise CorruptFrame("under another chunk's name")
        if verify:
            frame = bytearray(size)
            file.seek(0)
            got = 0
            while step := file.readinto(memoryview(frame)[got:]):
                got += step
            codec.open(memoryview(frame)[:got])
        return header


def _stem_key(path: Path) -> bytes | None:
    """Return the key in a file's name, if stores name files so."""
    try:
        key = bytes.fromhex(path.stem)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None
