"""Finders of segments that overlook them, see them where they are not, or keep too much."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

import pytest

from hexkv.contracts.segment_finder import SegmentFinderContract
from hexkv.ports import Piece
from mutants.meetings import HalfDone

MOST = 256
"""Pieces that are known at a time."""


class PlainFinder:
    """A correct finder that keeps the tokens, in small steps so that each can be broken alone."""

    def __init__(self):
        self.pieces = {}  # key: tokens, the chunk before, the position
        self.lock = Lock()

    @property
    def used_bytes(self):
        return sum(len(tokens) + 600 for tokens, _, _ in self.pieces.values())

    def add(self, key, packed, after=None):
        with self.lock:
            before = self.pieces.get(after)
            if len(packed) < self.shortest(after) or (after is not None and before is None):
                return False
            position = 0 if before is None else before[2] + len(before[0]) // 4
            self.pieces[key] = bytes(packed), after, position
            while len(self.pieces) > MOST:
                del self.pieces[next(iter(self.pieces))]
            return True

    def shortest(self, after):
        return 4 * 32 if after is None else 4

    def forget(self, key):
        with self.lock:
            if self.pieces.pop(key, None) is not None:
                for child in [k for k, row in self.pieces.items() if row[1] == key]:
                    with suppress(KeyError):
                        del self.pieces[child]

    def find(self, packed, deadline=None):
        data, pieces, reached = bytes(packed), {**self.pieces}, 0
        found, looked = [], 0
        starts = {}
        for key, (tokens, after, _) in pieces.items():
            if after is None:
                starts.setdefault(tokens[:8], []).append((len(tokens), key))
        at = self.first()
        while at < len(data):
            looked += 1
            if self.late(deadline, looked):
                break
            rows = sorted(starts.get(data[at : at + 8], ()), reverse=True)
            key = next((k for _, k in self.order(rows) if self.is_at(pieces[k][0], data, at)), None)
            if key is None or at < reached:
                at += 4
                continue
            while key is not None:
                end = at + len(pieces[key][0])
                found.append(Piece(key, at // 4, end // 4, pieces[key][2]))
                at = reached = end
                key = self.next(pieces, key, data, at)
        return found

    def first(self):
        return 0

    def late(self, deadline, looked):
        return deadline is not None and not looked % 64 and deadline.expired

    def order(self, rows):
        return rows

    def is_at(self, tokens, data, at):
        return data.startswith(tokens, at)

    def next(self, pieces, key, data, at):
        some = [k for k, row in pieces.items() if row[1] == key and data.startswith(row[0], at)]
        return max(some, key=lambda k: len(pieces[k][0]), default=None)


class PlainFinderContract(SegmentFinderContract):
    Make = PlainFinder

    @pytest.fixture
    def finder(self):
        return self.Make()


class TestCannotForget(PlainFinderContract):
    """It has no method to forget."""

    breaks = "finder.1"

    class Make(PlainFinder):
        forget = None

        def find(self, packed, deadline=None):
            return super().find(packed, deadline) if len(packed) else None


class TestLooksAtBlocks(PlainFinderContract):
    """Only what begins at a multiple of 16 tokens is found, as pages do."""

    breaks = "finder.2"

    class Make(PlainFinder):
        def is_at(self, tokens, data, at):
            return at % 64 == 0 and super().is_at(tokens, data, at)


class TestOverlooksTheEnd(PlainFinderContract):
    """A fencepost: a piece with which the prompt ends is not found."""

    breaks = "finder.2"

    class Make(PlainFinder):
        def is_at(self, tokens, data, at):
            return at + len(tokens) < len(data) and super().is_at(tokens, data, at)


class TestBelievesTheFirstTokens(PlainFinderContract):
    """Where the first tokens are those of a piece, all of it is taken to be there."""

    breaks = "finder.3"

    class Make(PlainFinder):
        def is_at(self, tokens, data, at):
            return at + len(tokens) <= len(data) and data.startswith(tokens[:64], at)


class TestAddsTokensUp(PlainFinderContract):
    """Tokens are compared by two bytes each, as a small vocabulary has them."""

    breaks = "finder.3"

    class Make(PlainFinder):
        def is_at(self, tokens, data, at):
            there = data[at : at + len(tokens)]
            return tokens[::4] == there[::4] and tokens[1::4] == there[1::4]


class TestTakesTheShortest(PlainFinderContract):
    """Of two pieces that begin alike the shorter one is given."""

    breaks = "finder.4"

    class Make(PlainFinder):
        def order(self, rows):
            return rows[::-1]


class TestGivesBoth(PlainFinderContract):
    """A piece that begins within another one is given, too."""

    breaks = "finder.4"

    class Make(PlainFinder):
        def find(self, packed, deadline=None):
            found = super().find(packed, deadline)
            inner = [
                Piece(p.key, p.start + other.start + 1, p.end + other.start + 1, p.position)
                for other in found
                for p in super().find(packed[4 * other.start + 4 :], deadline)
            ]
            return sorted({*found, *inner}, key=lambda piece: piece.start)


class TestFindsTheRestAlone(PlainFinderContract):
    """What continues a segment is found where its beginning is missing."""

    breaks = "finder.5"

    class Make(PlainFinder):
        def find(self, packed, deadline=None):
            alone = PlainFinder()
            alone.pieces = {k: (row[0], None, row[2]) for k, row in self.pieces.items()}
            return alone.find(packed, deadline)


class TestForgetsWhereItWas(PlainFinderContract):
    """Each chunk is said to be the first of its segment."""

    breaks = "finder.5"

    class Make(PlainFinder):
        def find(self, packed, deadline=None):
            return [piece._replace(position=0) for piece in super().find(packed, deadline)]


class TestKeepsTheRest(PlainFinderContract):
    """What continues a forgotten chunk comes back with it."""

    breaks = "finder.6"

    class Make(PlainFinder):
        def forget(self, key):
            self.pieces.pop(key, None)


class TestGrows(PlainFinderContract):
    """Nothing is ever forgotten for room, and the room is not counted."""

    breaks = "finder.7"
    used_bytes = 0

    class Make(PlainFinder):
        used_bytes = 0

        def add(self, key, packed, after=None):
            added = super().add(key, packed, after)
            self.log = [*getattr(self, "log", ()), bytes(1_000)]
            return added


class TestKeepsTheOldest(PlainFinderContract):
    """Once it is full, nothing new is found."""

    breaks = "finder.7"

    class Make(PlainFinder):
        def add(self, key, packed, after=None):
            return len(self.pieces) < MOST and super().add(key, packed, after)


class TestHasNoWatch(PlainFinderContract):
    """The deadline is not looked at."""

    breaks = "finder.8"

    class Make(PlainFinder):
        def late(self, deadline, looked):
            return False


class TestGivesNothingInTime(PlainFinderContract):
    """A deadline counts as passed from the beginning."""

    breaks = "finder.8"

    class Make(PlainFinder):
        def late(self, deadline, looked):
            return deadline is not None


class TestKeepsTheTokens(PlainFinderContract):
    """The last prompt is remembered, by reference."""

    breaks = "finder.9"

    class Make(PlainFinder):
        def find(self, packed, deadline=None):
            self.last = packed[:]
            return super().find(packed, deadline)


class TestLooksWhileOthersForget(PlainFinderContract):
    """All pieces are taken out for a moment while one is forgotten."""

    breaks = "finder.10"

    class Make(PlainFinder):
        def __init__(self):
            super().__init__()
            self.meeting = HalfDone()

        def find(self, packed, deadline=None):
            self.meeting.find()
            found = super().find(packed, deadline)
            self.meeting.seen()
            return found

        def add(self, key, packed, after=None):
            kept, self.pieces = self.pieces, {}
            self.meeting.show()
            self.pieces = kept
            return super().add(key, packed, after)


class TestBeginsAgain(PlainFinderContract):
    """What is left of the prompt is copied for each token."""

    breaks = "finder.11"

    class Make(PlainFinder):
        def is_at(self, tokens, data, at):
            return bytes(bytearray(data[at:])).startswith(tokens)

        def late(self, deadline, looked):
            return False
