"""Lines of records read back; ``hexkv-observe`` writes them, and its tests read them from here."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple
from zlib import crc32

from hexkv.ports import KEY_BYTES, ChunkKey, RecordedCall, RecordedKind, RecordedStep

VERSION = 1
"""Of the format that is read: ``hexkv.adapters.observe.records.format`` describes it."""

NAME_BYTES = 8
"""Of a chunk's name."""

PATTERN = re.compile(r"hexkv-(\d{8}T\d{6})-([0-9a-f]{8})-(\d{6})\.jsonl", re.ASCII)
"""Names of files."""

LONGEST_LINE = 16 << 20
"""Bytes. A longer line is not read."""

MOST_TOKENS = 1 << 32
"""The most tokens of a prompt that a reader accepts."""

_SEALED = re.compile(rb'(\{.+),"crc":"([0-9a-f]{8})"\}\n', re.DOTALL)
_KINDS = {kind.value: kind for kind in RecordedKind}


class FileHead(NamedTuple):
    """The first line of a file."""

    record: str
    """The id of the record."""

    number: int
    """Of the file in it, from 0."""

    began: float
    """When the record began, in seconds of the wall clock."""

    model: str
    chunk_tokens: int
    chunk_bytes: int
    """Bytes of the frame of a full chunk, computed from the layout."""

    compute_rate: float | None
    version: str


class FillState(NamedTuple):
    """How full the tiers were at a time: bytes used, budget and chunks, if they are known."""

    time: float
    tiers: Mapping[str, tuple[int | None, int | None, int | None]]


def unseal(line: bytes) -> dict[str, Any]:
    """Return the object of a line.

    Raises:
        ValueError: it is damaged, or has no checksum of itself.
    """
    match = _SEALED.fullmatch(line)
    if match is None:
        raise ValueError("no line of a record")
    if crc32(match[1]) != int(match[2], 16):
        raise ValueError("damaged: its checksum is another one")
    found = json.loads(match[1] + b"}")
    assert isinstance(found, dict)  # noqa: S101 - it begins and ends as one
    return found


def decode_head(line: Mapping[str, Any]) -> FileHead:
    """Return the first line of a file.

    Raises:
        ValueError, KeyError: it is no such line.
    """
    if line.get("do") != "record":
        raise ValueError("a record begins with what it is of")
    if line["version"] != VERSION:
        raise ValueError(f"written as version {line['version']!r}, and {VERSION} is known")
    rate = line.get("compute_rate")
    head = FileHead(
        text(line["record"]),
        count(line["file"]),
        seconds(line["began"]),
        text(line["model"]),
        count(line["chunk_tokens"]),
        count(line["chunk_bytes"], 1 << 62),
        None if rate is None else seconds(rate),
        text(line["hexkv"]),
    )
    if not head.chunk_tokens or not head.chunk_bytes:
        raise ValueError("a chunk without tokens")
    return head


def decode_call(
    line: Mapping[str, Any], began: float, known: dict[bytes, ChunkKey]
) -> RecordedCall:
    """Return the call of *line*, with times of the wall clock and names in place of keys.

    Args:
        line: from :func:`unseal`.
        began: when the record began, by the wall clock.
        known: names that were read before, so that each is one object.

    Raises:
        ValueError: it is no line of a call.
    """
    start, end = line.get("at", [0, 0])
    packed = b64decode(line.get("keys", ""), validate=True)
    if len(packed) % NAME_BYTES or not packed:
        raise ValueError("keys are no names of chunks")
    parts = [packed[i : i + NAME_BYTES] for i in range(0, len(packed), NAME_BYTES)]
    keys = [known.setdefault(part, ChunkKey(part.rjust(KEY_BYTES, b"\0"))) for part in parts]
    tokens = count(line.get("n"))
    if not 0 <= count(start) < count(end) <= tokens:
        raise ValueError(f"positions {start} to {end} are not in a prompt of {tokens} tokens")
    return RecordedCall(
        _KINDS[line["do"]],
        began + seconds(line["t"], least=-86_400.0),
        seconds(line["s"]),
        tokens,
        keys,
        start,
        end,
        counts(line.get("tiers", {})),
        counts(line.get("misses", {})),
        count(line.get("had", 0)),
        text(line.get("id", "")),
        bool(line.get("key", 0)),
        [RecordedStep(text(n), text(t), seconds(s)) for n, t, s in line.get("steps", ())],
    )


def decode_state(line: Mapping[str, Any], began: float) -> FillState:
    """Return the state of *line*; arguments and errors as of :func:`decode_call`."""
    tiers = {}
    for name, row in line["full"].items():
        used, budget, chunks = (None if value is None else count(value, 1 << 62) for value in row)
        tiers[text(name)] = used, budget, chunks
    return FillState(began + seconds(line["t"]), tiers)


def count(value: object, most: int = MOST_TOKENS) -> int:
    """Return *value*, a whole number from 0 to *most*; else raise a ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number of something")
    return value


def counts(value: Mapping[str, object]) -> dict[str, int]:
    """Return tokens by name."""
    return {text(name): count(tokens) for name, tokens in value.items()}


def seconds(value: object, least: float = 0.0) -> float:
    """Return *value*, a duration; else raise a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number of seconds")  # noqa: TRY004
    if not isfinite(value) or not least <= value <= 1e10:
        raise ValueError(f"{value!r} seconds cannot be")
    return float(value)


def text(value: object) -> str:
    """Return *value*, a short text; else raise a ValueError."""
    if not isinstance(value, str) or len(value) > 1024:
        raise ValueError("a name is no text, or too long")
    return value
