"""Reading a recorded trace: the chunks of each request, in the order of arrival."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from hexkv.ports import KEY_BYTES, ChunkKey, HexKVError

LONGEST = 1 << 24
"""Tokens of the longest accepted request: twice the longest context there is."""


class BadTrace(HexKVError):
    """A line of a trace violates its format."""


@dataclass(frozen=True, slots=True)
class TracedPrompt:
    """One prompt."""

    tokens: int
    """Its length, including the tokens behind the last full chunk."""

    keys: Sequence[ChunkKey]
    """Its full chunks, in prefix order: a key stands for all tokens up to its chunk's end."""

    before: int = 0
    """The number of chunks of the prompt before the first one."""

    asked: bool = True
    """False for chunks that were stored and not requested, such as those of generated tokens."""


def read_mooncake(lines: Iterable[str | bytes], chunk_tokens: int = 512) -> Iterator[TracedPrompt]:
    """Yield the requests of a trace in the format that was published with Mooncake.

    One JSON object a line, with ``timestamp`` (milliseconds, never decreasing), ``input_length``,
    ``output_length`` (both in tokens) and ``hash_ids``: one number for each block of
    *chunk_tokens*, including the last and shorter one, that stands for the whole prefix up to
    there. Format: Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025.

    Raises:
        BadTrace: with the number of the line, counted from 1.
    """
    if chunk_tokens < 1:
        raise BadTrace(f"blocks of {chunk_tokens} tokens")
    names = _Names()
    before: float = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            before, length, ids = _parse(line, before)
            keys = names.keys(ids, length, chunk_tokens)
        except (ValueError, RecursionError) as error:
            raise BadTrace(f"line {number}: {error}") from error
        yield TracedPrompt(length, keys)


def renamed(requests: Iterable[TracedPrompt], naming: int) -> list[TracedPrompt]:
    """Return *requests* with other names for the same chunks; *naming* 0: with their own."""
    if not naming:
        return list(requests)
    names: dict[ChunkKey, ChunkKey] = {}
    salt = naming.to_bytes(8, "little")
    found = []
    for request in requests:
        for key in request.keys:
            if key not in names:
                digest = sha256(salt + key).digest()
                names[key] = ChunkKey(digest.rjust(KEY_BYTES, b"\0"))
        found.append(replace(request, keys=[names[key] for key in request.keys]))
    return found


class _Names:
    """The keys of a trace's numbers: one object each, spread as real keys are."""

    def __init__(self) -> None:
        self._keys: dict[int, ChunkKey] = {}
        self._parents: dict[int, int | None] = {}

    def keys(self, ids: Sequence[int], length: int, chunk_tokens: int) -> list[ChunkKey]:
        """Return the keys of the full blocks among *ids*."""
        expected = -(-length // chunk_tokens)
        if len(ids) != expected:
            raise ValueError(
                f"{len(ids)} hash_ids, where {length} tokens make {expected} blocks of"
                f" {chunk_tokens}"
            )
        before = None
        for number in ids:
            parent = self._parents.setdefault(number, before)
            if parent != before:
                raise ValueError(f"hash id {number} follows {before}, and {parent} elsewhere")
            before = number
        return [self._key(number) for number in ids[: length // chunk_tokens]]

    def _key(self, number: int) -> ChunkKey:
        key = self._keys.get(number)
        if key is None:
            digest = sha256(b"%d" % number).digest()
            key = self._keys[number] = ChunkKey(digest.rjust(KEY_BYTES, b"\0"))
        return key


def _parse(line: str | bytes, before: float) -> tuple[float, int, list[int]]:
    """Return time, input tokens and hash ids of one line."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a value is at fault
    time = record.get("timestamp")
    if isinstance(time, bool) or not isinstance(time, int | float) or not before <= time < 1e18:
        raise ValueError(f"timestamp {time!r} is no time, or before that of the line above")
    for name in ("input_length", "output_length"):
        length = record.get(name)
        if type(length) is not int or not 0 <= length <= LONGEST:
            raise ValueError(f"{name} {length!r} is no number of tokens")
    ids = record.get("hash_ids")
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise ValueError("hash_ids is no list of whole numbers")
    return time, record["input_length"], ids
