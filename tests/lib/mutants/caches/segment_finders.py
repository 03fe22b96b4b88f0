"""Finders of segments that overlook them, see them where they are not, or keep too much."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

import pytest

from hexkv.blending.ports import Piece
from hexkv.contracts.segment_finder import SegmentFinderContract
from mutants.meetings import HalfDone
from mutants.rows import Wrong, broken

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


def cannot_forget(self, real, packed, deadline=None):
    return real(packed, deadline) if len(packed) else None


def overlooks_the_end(self, real, tokens, data, at):
    return at + len(tokens) < len(data) and real(tokens, data, at)


def believes_the_first_tokens(self, tokens, data, at):
    return at + len(tokens) <= len(data) and data.startswith(tokens[:64], at)


def adds_tokens_up(self, tokens, data, at):
    there = data[at : at + len(tokens)]
    return tokens[::4] == there[::4] and tokens[1::4] == there[1::4]


def gives_both(self, real, packed, deadline=None):
    found = real(packed, deadline)
    inner = [
        Piece(p.key, p.start + other.start + 1, p.end + other.start + 1, p.position)
        for other in found
        for p in real(packed[4 * other.start + 4 :], deadline)
    ]
    return sorted({*found, *inner}, key=lambda piece: piece.start)


def finds_the_rest_alone(self, packed, deadline=None):
    alone = PlainFinder()
    alone.pieces = {k: (row[0], None, row[2]) for k, row in self.pieces.items()}
    return alone.find(packed, deadline)


def forgets_where_it_was(self, real, packed, deadline=None):
    return [piece._replace(position=0) for piece in real(packed, deadline)]


def keeps_the_rest(self, key):
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


def keeps_the_oldest(self, real, key, packed, after=None):
    return len(self.pieces) < MOST and real(key, packed, after)


def keeps_the_tokens(self, real, packed, deadline=None):
    self.last = packed[:]
    return real(packed, deadline)


def looks_while_others_forget(self, real):
    real()
    self.meeting = HalfDone()


def looks_while_others_forget_find(self, real, packed, deadline=None):
    self.meeting.find()
    found = real(packed, deadline)
    self.meeting.seen()
    return found


def looks_while_others_forget_add(self, real, key, packed, after=None):
    kept, self.pieces = self.pieces, {}
    self.meeting.show()
    self.pieces = kept
    return real(key, packed, after)


ROWS = {
    "finder.1 cannot forget": Wrong("It has no method to forget.", forget=None, find=cannot_forget),
    "finder.2 looks at blocks": Wrong(
        "Only what begins at a multiple of 16 tokens is found, as pages do.",
        is_at=lambda self, real, tokens, data, at: at % 64 == 0 and real(tokens, data, at),
    ),
    "finder.2 overlooks the end": Wrong(
        "A fencepost: a piece with which the prompt ends is not found.", is_at=overlooks_the_end
    ),
    "finder.3 believes the first tokens": Wrong(
        "Where the first tokens are those of a piece, all of it is taken to be there.",
        is_at=believes_the_first_tokens,
    ),
    "finder.3 adds tokens up": Wrong(
        "Tokens are compared by two bytes each, as a small vocabulary has them.",
        is_at=adds_tokens_up,
    ),
    "finder.4 takes the shortest": Wrong(
        "Of two pieces that begin alike the shorter one is given.",
        order=lambda self, rows: rows[::-1],
    ),
    "finder.4 gives both": Wrong(
        "A piece that begins within another one is given, too.", find=gives_both
    ),
    "finder.5 finds the rest alone": Wrong(
        "What continues a segment is found where its beginning is missing.",
        find=finds_the_rest_alone,
    ),
    "finder.5 forgets where it was": Wrong(
        "Each chunk is said to be the first of its segment.", find=forgets_where_it_was
    ),
    "finder.6 keeps the rest": Wrong(
        "What continues a forgotten chunk comes back with it.", forget=keeps_the_rest
    ),
    "finder.7 keeps the oldest": Wrong(
        "Once it is full, nothing new is found.", add=keeps_the_oldest
    ),
    "finder.8 has no watch": Wrong(
        "The deadline is not looked at.", late=lambda self, deadline, looked: False
    ),
    "finder.8 gives nothing in time": Wrong(
        "A deadline counts as passed from the beginning.",
        late=lambda self, deadline, looked: deadline is not None,
    ),
    "finder.9 keeps the tokens": Wrong(
        "The last prompt is remembered, by reference.", find=keeps_the_tokens
    ),
    "finder.10 looks while others forget": Wrong(
        "All pieces are taken out for a moment while one is forgotten.",
        __init__=looks_while_others_forget,
        find=looks_while_others_forget_find,
        add=looks_while_others_forget_add,
    ),
    "finder.11 begins again": Wrong(
        "What is left of the prompt is copied for each token.",
        is_at=lambda self, tokens, data, at: bytes(bytearray(data[at:])).startswith(tokens),
        late=lambda self, deadline, looked: False,
    ),
}
globals().update(broken(__name__, PlainFinderContract, PlainFinder, ROWS))
