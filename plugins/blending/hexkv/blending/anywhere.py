"""Finding segments at any token offset: by windows of 16 tokens, then by their full keys.

A rolling hash would take a step for each token of a prompt, too many for Python. So the steps are
taken for the segments: eight neighbouring windows of each one's first chunk are indexed, and of a
prompt only each eighth window is looked up. At any offset of a segment, one of its windows is among
those. If all the chunk's tokens then have its hash, too, they are named as if they were the
segment: tokens with another key are another text.

Hashes are those of Python's own ``bytes``, SipHash with a secret of the process (unless
``PYTHONHASHSEED`` disables this): an attack that makes texts collide nevertheless only costs time.
So do texts that repeat themselves. No window belongs to more than 64 places in chunks, so at most
eight comparisons are made for each token of a prompt, and none after the deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from hexkv.blending.ports import Piece, SegmentFinder
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.tokens import TOKEN_BYTES
from hexkv.ports import ChunkKey, Deadline

_WINDOW = 16
"""Tokens that are looked up together: a text seldom contains the same ones twice."""

_STRIDE = 8
"""The distance in tokens of two lookups, and the number of windows of each chunk."""

_CROWD = 64
"""The most places in chunks that share a window; a chunk beyond that is not found."""

_BLOCK = 1 << 10
"""The number of windows looked up between two checks of the clock: about 0.2 ms."""

_LOOK = 256
"""The number of comparisons between two checks of the clock."""

PIECE_BYTES = 2_000
"""The approximate memory of one chunk here: its key and its windows."""


class _First(NamedTuple):
    """The first chunk of a segment."""

    key: ChunkKey
    size: int
    """Bytes of its tokens."""

    whole: int
    """The hash of all of them."""


class _Known(NamedTuple):
    """A chunk that was added."""

    tokens: int
    position: int
    after: ChunkKey | None = None
    windows: Sequence[int] = ()


class WindowFinder:
    """A :class:`~hexkv.blending.ports.SegmentFinder` for the segments of one namespace."""

    def __init__(self, keyer: NamespaceHasher, budget: int, least: int = 32) -> None:
        """*keyer* names the chunks; *budget* is in bytes, and the oldest chunks are forgotten.

        *least* is the number of tokens of the shortest first chunk that is found. If it is small,
        windows are shorter and closer together, so that a prompt takes longer to search.
        """
        self._keyer = keyer
        self._least = least
        self._window = min(_WINDOW, (least + 1) // 2)
        # No shorter chunk has as many windows.
        self._stride = min(_STRIDE, least - self._window + 1)
        self._most = budget // PIECE_BYTES
        self._lock = Lock()
        self._known: dict[ChunkKey, _Known] = {}
        """In the order of their last addition."""

        # Values are never changed but replaced, so readers need no lock.
        self._windows: dict[int, tuple[tuple[int, _First], ...]] = {}
        """The chunks that contain a window, by its hash, with the number of bytes before it."""

        self._next: dict[ChunkKey, dict[int, set[ChunkKey]]] = {}
        """The continuations of a chunk, by their tokens; readers take a copy of these."""

    @property
    def used_bytes(self) -> int:
        return len(self._known) * PIECE_BYTES

    def add(self, key: ChunkKey, packed: memoryview, after: ChunkKey | None = None) -> bool:
        tokens = len(packed) // TOKEN_BYTES
        if not tokens or (after is None and tokens < self._least):
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
            if before is None or after is None:
                return self._add_first(key, bytes(packed))
            self._known[key] = _Known(tokens, before.position + before.tokens, after)
            self._next.setdefault(after, {}).setdefault(tokens, set()).add(key)
        return True

    def forget(self, key: ChunkKey) -> None:
        with self._lock:
            self._forget(key)

    def find(self, packed: memoryview, deadline: Deadline | None = None) -> Sequence[Piece]:
        pieces: list[Piece] = []
        reached = 0
        data, name, continued = bytes(packed), self._keyer.name_of, self._next
        for at, (start, shorter, key) in enumerate(self._candidates(data, deadline), 1):
            if not at % _LOOK and deadline is not None and deadline.expired:
                break
            end = start - shorter
            if start < reached or name(data[start * TOKEN_BYTES : end * TOKEN_BYTES], None) != key:
                continue
            piece: Piece | None = Piece(key, start, end, 0)
            while piece is not None:
                pieces.append(piece)
                reached = piece.end
                piece = self._continued(data, piece) if piece.key in continued else None
        return pieces

    def _candidates(
        self, data: bytes, deadline: Deadline | None
    ) -> Sequence[tuple[int, int, ChunkKey]]:
        """Return candidates (start, minus tokens, key) by start, the longest first."""
        known = self._windows.get
        wide, step = self._window * TOKEN_BYTES, self._stride * TOKEN_BYTES
        found: list[tuple[int, int, ChunkKey]] = []
        compared = 0
        every = range(0, len(data) - wide + 1, step)
        for block in range(0, len(every), _BLOCK):
            seen = [
                (at, chunks)
                for at in every[block : block + _BLOCK]
                if (chunks := known(hash(data[at : at + wide])))
            ]
            for place, chunks in seen:
                for before, (key, size, whole) in chunks:
                    start = place - before
                    if start >= 0 and hash(data[start : start + size]) == whole:
                        found.append((start // TOKEN_BYTES, -(size // TOKEN_BYTES), key))
                compared += len(chunks)
                if compared >= _LOOK:
                    compared = 0
                    if deadline is not None and deadline.expired:
                        return sorted(found)
            if deadline is not None and deadline.expired:
                break
        return sorted(found)

    def _add_first(self, key: ChunkKey, data: bytes) -> bool:
        """Index a chunk by windows at its beginning, middle or end, the least shared ones."""
        last = len(data) // TOKEN_BYTES - self._window - self._stride + 1
        chosen: tuple[int, int, list[int]] | None = None
        for place in sorted({0, last // 2, last}):
            hashes = [
                hash(data[at * TOKEN_BYTES : (at + self._window) * TOKEN_BYTES])
                for at in range(place, place + self._stride)
            ]
            crowd = max(len(self._windows.get(h, ())) + hashes.count(h) for h in hashes)
            if chosen is None or crowd < chosen[0]:
                chosen = crowd, place, hashes
        if chosen is None or chosen[0] > _CROWD:
            return False
        _, place, hashes = chosen
        first = _First(key, len(data), hash(data))
        for at, value in enumerate(hashes, place):
            self._windows[value] = (*self._windows.get(value, ()), (at * TOKEN_BYTES, first))
        self._known[key] = _Known(len(data) // TOKEN_BYTES, 0, None, tuple(hashes))
        return True

    def _continued(self, data: bytes, piece: Piece) -> Piece | None:
        """Return the longest known chunk that continues *piece* in the prompt."""
        for tokens in sorted(self._next.get(piece.key, ()), reverse=True):
            end = piece.end + tokens
            if end * TOKEN_BYTES <= len(data):
                tail = data[piece.end * TOKEN_BYTES : end * TOKEN_BYTES]
                key = self._keyer.name_of(tail, piece.key)
                if key in self._known:
                    return Piece(key, piece.end, end, piece.position + piece.end - piece.start)
        return None

    def _make_room(self, spared: ChunkKey | None) -> bool:
        """Make room for one more by forgetting the oldest, except *spared* and its predecessors."""
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
            for children in self._next.pop(key, {}).values():
                doomed.extend(children)
            for value in {*known.windows}:
                rest = tuple(row for row in self._windows[value] if row[1].key != key)
                if rest:
                    self._windows[value] = rest
                else:
                    del self._windows[value]
            if (rows := self._next.get(known.after or key)) is not None:
                rows[known.tokens].remove(key)
                if not rows[known.tokens]:
                    del rows[known.tokens]


if TYPE_CHECKING:

    def _is_a_finder(finder: WindowFinder) -> SegmentFinder:
        return finder
