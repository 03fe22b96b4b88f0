"""The keys of prompts that were named recently.

One request names its prompt several times over, and the next turn of a conversation begins with the
one before it. Comparing tokens takes a tenth of the time of hashing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from hexkv.ports import KEY_BYTES, ChunkKey

LIMIT = 8 << 20
"""The most bytes of tokens and keys that are kept."""

LEAST = 64 << 10
"""The least bytes of tokens for which it pays to keep a prompt: 64 chunks of 256 tokens."""

_MOST = 16
"""The most prompts that are kept."""

_KEY_BYTES = KEY_BYTES + 64
"""The bytes of a key, as an object in a list."""


class Named(NamedTuple):
    """A prompt and the keys of its full chunks."""

    root: bytes
    """The root of its namespace; keys of other namespaces are not compared."""

    packed: bytes
    keys: Sequence[ChunkKey]

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.packed) + len(self.keys) * _KEY_BYTES


class RecentPrompts:
    """The last named prompts, of all namespaces. Safe from any thread."""

    def __init__(self, chunk_bytes: int, limit: int = LIMIT) -> None:
        """Keep prompts cut into chunks of *chunk_bytes* bytes of tokens, *limit* bytes in all."""
        self._step = chunk_bytes
        self._limit = limit
        self._named: Sequence[Named] = ()
        """The latest first. Replaced as a whole, so readers need no lock."""

        self._lock = Lock()

    def find(self, root: bytes, packed: bytes) -> tuple[Named | None, int]:
        """Return the prompt that shares the most full chunks with *packed*, and their number."""
        best, count, step = None, 0, self._step
        full = len(packed) // step
        for named in self._named:
            # One that shares more also shares this piece: most are ruled out by it.
            at = count * step
            if named.root != root or not named.packed.startswith(packed[at : at + step], at):
                continue
            same = shared(named.packed, packed, step, min(full, len(named.keys)))
            if same > count:
                best, count = named, same
                if count == full:
                    break
        return best, count

    def add(self, new: Named, former: Named | None, count: int) -> None:
        """Keep *new*, which shares its first *count* chunks with *former*, in place of that.

        Of two prompts that diverge both are kept, and of two equal ones the first.
        """
        if former is not None and count == len(new.keys):
            new = former
        elif count != len(former.keys if former is not None else ()):
            former = None
        if new.size > self._limit:
            return
        with self._lock:
            kept, size = [new], new.size
            for named in self._named:
                size += named.size
                if size > self._limit or len(kept) == _MOST:
                    break
                if named is former or named is new:
                    size -= named.size
                else:
                    kept.append(named)
            self._named = kept


def shared(one: bytes, other: bytes, step: int, most: int) -> int:
    """Return how many of the first *most* pieces of *step* bytes are the same in both.

    Takes the time of comparing these.
    """
    short, long = sorted((one, other), key=len)
    if long.startswith(short):
        return most
    same, width, growing = 0, 1, True
    while width and same < most:
        end = min(same + width, most)
        if one[same * step : end * step] == other[same * step : end * step]:
            same = end
            width = width * 2 if growing else width
        else:
            width, growing = width // 2, False
    return same
