"""One line of a record: JSON objects that end with a checksum of themselves, version 1.

    {"do":"retrieve","t":1.25,"s":0.004,"n":1000,"at":[0,768],"keys":"...","crc":"00c0ffee"}

``t`` is seconds since the record began, ``s`` the duration, ``n`` the tokens of the prompt,
``at`` the positions that its chunks are between, ``keys`` eight bytes for each of these in base64,
``id`` in the same way the host's name of the request, ``key`` 1 if the host named the chunks
itself, ``tiers`` and ``misses`` tokens by tier and by reason, ``had`` those that a store found
there, and ``steps`` the durations of its steps. Empty values are left out.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import isfinite
from typing import Any, NamedTuple
from zlib import crc32

from hexkv.ports import KEY_BYTES, ChunkKey, RecordedCall, RecordedKind, RecordedStep, TierHealth

VERSION = 1
NAME_BYTES = 8
"""Of a chunk's name. Of ten million chunks two have the same one with a probability of 3e-6."""

LONGEST_LINE = 16 << 20
"""Bytes. A longer line is not written, and not read."""

MOST_TOKENS = 1 << 32
"""The most tokens of a prompt that a reader accepts."""

PATTERN = re.compile(r"hexkv-(\d{8}T\d{6})-([0-9a-f]{8})-(\d{6})\.jsonl", re.ASCII)
"""Names of files: the time at which the record began, its id, and the number of the file."""

_SEALED = re.compile(rb'(\{.+),"crc":"([0-9a-f]{8})"\}\n', re.DOTALL)
_KINDS = {kind.value: kind for kind in RecordedKind}


class Names:
    """Names in place of values that a record must not reveal."""

    def __init__(self, salt: bytes) -> None:
        self._keyed = blake2b(key=salt, digest_size=NAME_BYTES)

    def name(self, what: bytes) -> bytes:
        """Return ``NAME_BYTES`` bytes that reveal nothing of *what* without the salt."""
        hashed = self._keyed.copy()
        hashed.update(what)
        return hashed.digest()

    def named(self, all_of: Sequence[bytes]) -> str:
        """Return the names of *all_of*, one behind the other."""
        return b64encode(b"".join(map(self.name, all_of))).decode()


class Head(NamedTuple):
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


class State(NamedTuple):
    """How full the tiers were at a time: bytes used, budget and chunks, if they are known."""

    time: float
    tiers: Mapping[str, tuple[int | None, int | None, int | None]]


def seal(line: Mapping[str, object]) -> bytes:
    """Return *line* with its checksum, and a line's end."""
    text = json.dumps(line, separators=(",", ":"), ensure_ascii=True).encode()[:-1]
    return b'%b,"crc":"%08x"}\n' % (text, crc32(text))


def unseal(line: bytes) -> dict[str, Any]:
    """Return the object of a line.

    Raises:
        ValueError: it is damaged, or not from :func:`seal`.
    """
    match = _SEALED.fullmatch(line)
    if match is None:
        raise ValueError("no line of a record")
    if crc32(match[1]) != int(match[2], 16):
        raise ValueError("damaged: its checksum is another one")
    found = json.loads(match[1] + b"}")
    assert isinstance(found, dict)  # noqa: S101 - it begins and ends as one
    return found


def decode_head(line: Mapping[str, Any]) -> Head:
    """Return the first line of a file.

    Raises:
        ValueError, KeyError: it is no such line.
    """
    if line.get("do") != "record":
        raise ValueError("a record begins with its identity")
    if line["version"] != VERSION:
        raise ValueError(f"written as version {line['version']!r}, and {VERSION} is known")
    rate = line.get("compute_rate")
    head = Head(
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


def encode_call(call: RecordedCall, names: Names, began: float) -> bytes:
    """Return the line of *call*, in a record that began at *began* by the same clock."""
    line: dict[str, object] = {
        "do": call.kind.value,
        "t": round(call.began - began, 6),
        "s": round(call.seconds, 7),
        "n": call.tokens,
        "at": [call.start, call.end],
        "keys": names.named(call.keys),
        "id": names.named([call.request.encode()]) if call.request else "",
        "key": int(call.by_key),
        "tiers": dict(call.tiers),
        "misses": dict(call.misses),
        "had": call.present,
        "steps": [[step.name, step.tier, round(step.seconds, 7)] for step in call.steps],
    }
    return seal({name: value for name, value in line.items() if value or name in ("t", "s", "n")})


def encode_state(tiers: Sequence[TierHealth], time: float) -> bytes:
    """Return a line with the fill of *tiers*, *time* seconds after the record began."""
    rows = {tier.name: [tier.used_bytes, tier.budget_bytes, tier.chunks] for tier in tiers}
    return seal({"do": "state", "t": round(time, 3), "full": rows})


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


def decode_state(line: Mapping[str, Any], began: float) -> State:
    """Return the state of *line*; arguments and errors as of :func:`decode_call`."""
    tiers = {}
    for name, row in line["full"].items():
        used, budget, chunks = (None if value is None else count(value, 1 << 62) for value in row)
        tiers[text(name)] = used, budget, chunks
    return State(began + seconds(line["t"]), tiers)


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
