"""Finding segments at any token offset: by an anchor of two tokens, then by their full keys.

A segment may begin anywhere in a prompt, and the prompt is as long as a model takes. So as little
as possible is done for each position, and that by C: a segment is known by two *anchors*, pairs of
neighbouring tokens in its first chunk of which one lies at an even distance from its beginning
and one at an odd one. Wherever the segment stands, one of them begins at an even position of the
prompt, so only the pairs there are looked up. Where an anchor stands, the chunk's key is computed
from the prompt's own tokens, as if they were the segment: what has another key is another text.

Which pair of a chunk is the anchor is decided by a secret of the process. A prompt that is made
to hold many anchors has to hold the segments themselves, or repeat one pair throughout: it costs
time, which the deadline bounds, and finds nothing that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from secrets import randbits
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.tokens import TOKEN_BYTES
from hexkv.ports import ChunkKey, Deadline, Piece, SegmentFinder

LEAST_TOKENS = 4
"""Of a chunk that can be found: shorter ones may lack an anchor at an odd distance."""

_PAIR = 2 * TOKEN_BYTES
_BLOCK = 4_096
"""Pairs that are looked up between two looks at the clock: about 0.1 ms."""

_LOOK = 256
"""Keys that are computed between two of them, likewise."""

PIECE_BYTES = 700
"""Memory that one chunk takes here, about: its key, two anchors, what it continues."""


class _First(NamedTuple):
    """The first chunk of a segment, as seen from one of its anchors."""

    key: ChunkKey
    tokens: int
    before: int
    """Tokens between its beginning and the anchor."""

    last: bytes
    """Its last two tokens, which cost nothing to compare."""


class _Known(NamedTuple):
    """What was added."""

    tokens: int
    position: int
    after: ChunkKey | None
    anchors: tuple[int, ...]


class AnchorFinder:
    """A :class:`~hexkv.ports.SegmentFinder` for the segments of one namespace."""

    def __init__(self, keyer: NamespaceHasher, budget: int) -> None:
        """Chunks are named by *keyer*; *budget* is in bytes, and the oldest make room."""
        self._keyer = keyer
        self._most = budget // PIECE_BYTES
        self._secret = randbits(64) | 1
        self._lock = Lock()
        self._known: dict[ChunkKey, _Known] = {}
        """In the order in which they were added last."""

        # Values are never changed but replaced, so who looks needs no lock.
        self._anchors: dict[int, tuple[_First, ...]] = {}
        self._next: dict[ChunkKey, tuple[tuple[int, ChunkKey], ...]] = {}
        """What continues a chunk: tokens and key, the longest first."""

    @property
    def used_bytes(self) -> int:
        return len(self._known) * PIECE_BYTES

    def add(self, key: ChunkKey, packed: memoryview, after: ChunkKey | None = None) -> bool:
        tokens = len(packed) // TOKEN_BYTES
        anchors = self._pairs(packed) if after is None and tokens >= LEAST_TOKENS else ()
        if not tokens or (after is None and not anchors):
            return False
        with self._lock:
            before = None if after is None else self._known.get(after)
            if after is not None and before is None:
                return False
            if (known := self._known.pop(key, None)) is not None:
                self._known[key] = known
                return True
            if not self._make_room(after):
                return False
            if before is not None and after is not None:
                position = before.position + before.tokens
                self._known[key] = _Known(tokens, position, after, ())
                rows = (*self._next.get(after, ()), (tokens, key))
                self._next[after] = tuple(sorted(rows, reverse=True))
                return True
            last = bytes(packed[-_PAIR:])
            for pair, at in anchors:
                first = _First(key, tokens, at, last)
                self._anchors[pair] = (*self._anchors.get(pair, ()), first)
            self._known[key] = _Known(tokens, 0, None, tuple(pair for pair, _ in anchors))
        return True

    def forget(self, key: ChunkKey) -> None:
        with self._lock:
            self._forget(key)

    def find(self, packed: memoryview, deadline: Deadline | None = None) -> Sequence[Piece]:
        pieces: list[Piece] = []
        reached = tried = 0
        for start, _, first in self._candidates(packed, deadline):
            if start < reached:
                continue
            tried += 1
            if deadline is not None and not tried % _LOOK and deadline.expired:
                break
            end = start + first.tokens
            if self._name(packed, start, end, None) != first.key:
                continue
            piece: Piece | None = Piece(first.key, start, end, 0)
            while piece is not None:
                pieces.append(piece)
                reached = piece.end
                piece = self._continued(packed, piece)
        return pieces

    def _pairs(self, packed: memoryview) -> tuple[tuple[int, int], ...]:
        """An anchor at an even distance from the beginning and one at an odd one, and where."""
        chosen = []
        for parity in (0, 1):
            values = _pairs_of(packed[parity * TOKEN_BYTES :]).tolist()
            if not values:
                return ()
            at = min(range(len(values)), key=lambda i: (values[i] * self._secret) & _MASK)
            chosen.append((values[at], 2 * at + parity))
        return tuple(chosen)

    def _candidates(
        self, packed: memoryview, deadline: Deadline | None
    ) -> Iterator[tuple[int, int, _First]]:
        """Where first chunks may be: in order of their beginnings, at each the longest first."""
        anchors, pairs = self._anchors, _pairs_of(packed)
        last = len(packed) // TOKEN_BYTES
        longest = max((first.before for some in [*anchors.values()] for first in some), default=0)
        ahead: list[tuple[int, int, _First]] = []
        for block in range(0, len(pairs), _BLOCK):
            values = pairs[block : block + _BLOCK].tolist()
            if not anchors.keys().isdisjoint(values):
                for at, value in enumerate(values, block):
                    for first in anchors.get(value, ()):
                        start = 2 * at - first.before
                        end = start + first.tokens
                        tail = slice(end * TOKEN_BYTES - _PAIR, end * TOKEN_BYTES)
                        if start >= 0 and end <= last and packed[tail] == first.last:
                            ahead.append((start, -first.tokens, first))
            if not ahead:
                continue
            ahead.sort()
            # What comes in later blocks begins at `safe` or behind it.
            safe = 2 * (block + _BLOCK) - longest
            count = sum(start < safe for start, _, _ in ahead)
            yield from ahead[:count]
            del ahead[:count]
            if deadline is not None and deadline.expired:
                return
        yield from ahead

    def _continued(self, packed: memoryview, piece: Piece) -> Piece | None:
        """The longest known chunk that continues the one of *piece*, if the prompt does."""
        for tokens, key in self._next.get(piece.key, ()):
            end = piece.end + tokens
            if end * TOKEN_BYTES > len(packed):
                continue
            if self._name(packed, piece.end, end, piece.key) == key:
                position = piece.position + piece.end - piece.start
                return Piece(key, piece.end, end, position)
        return None

    def _name(self, packed: memoryview, start: int, end: int, after: ChunkKey | None) -> ChunkKey:
        return self._keyer.name_ends(packed, start, (end,), after)[0]

    def _make_room(self, spared: ChunkKey | None) -> bool:
        """Room for one more, by forgetting the oldest; not *spared* nor what that continues."""
        family = set()
        while spared is not None:
            family.add(spared)
            spared = self._known[spared].after
        while len(self._known) >= self._most:
            oldest = next((key for key in self._known if key not in family), None)
            if oldest is None:
                return False
            self._forget(oldest)
        return True

    def _forget(self, key: ChunkKey) -> None:
        doomed = [key]
        while doomed:
            key = doomed.pop()
            known = self._known.pop(key, None)
            if known is None:
                continue
            doomed.extend(child for _, child in self._next.pop(key, ()))
            for pair in known.anchors:
                rest = tuple(first for first in self._anchors.get(pair, ()) if first.key != key)
                if rest:
                    self._anchors[pair] = rest
                else:
                    self._anchors.pop(pair, None)
            if known.after in self._next:
                left = tuple(row for row in self._next[known.after] if row[1] != key)
                if left:
                    self._next[known.after] = left
                else:
                    del self._next[known.after]


_MASK = (1 << 64) - 1


def _pairs_of(packed: memoryview) -> memoryview:
    """Neighbouring tokens as integers of 64 bits: those at even positions, with the next ones."""
    return packed[: len(packed) // _PAIR * _PAIR].cast("Q")


if TYPE_CHECKING:

    def _is_a_finder(finder: AnchorFinder) -> SegmentFinder:
        return finder
