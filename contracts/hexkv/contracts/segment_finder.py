"""The contract of segment finders, which find pieces of segments in prompts."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from math import inf
from random import Random
from typing import ClassVar

import pytest

from hexkv.blending.ports import Piece, SegmentFinder
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.kit.cases import case
from hexkv.contracts.kit.limits import step
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import NAMESPACE_BYTES, ChunkKey, Deadline

Name = Callable[[Sequence[int], ChunkKey | None], ChunkKey]
"""The key of a chunk with these tokens, after the chunk of that key."""

TOKEN_BYTES = 4
SMALL, LARGE = 8_000, 128_000
"""Tokens of a short and of a long prompt: quadratic work shows as a factor of 256, not of 16."""

TURNS, MOST_TURNS = 2, 8
"""How often each is timed: more often if it seems to take too long."""


class SegmentFinderContract(Whole):
    """Subclass this and give it the fixtures ``finder``, and ``name`` if it names chunks itself."""

    least: ClassVar[int] = 32
    """Tokens of the shortest first chunk that it finds."""

    budget: ClassVar[int] = 1 << 20
    """Bytes of memory that ``finder`` may use; room for 100 chunks of 512 tokens at least."""

    @pytest.fixture
    def finder(self) -> SegmentFinder:
        """A finder without segments."""
        raise NotImplementedError(f"give {type(self).__name__} a `finder` fixture")

    @pytest.fixture
    def name(self) -> Name:
        """The function that names chunks."""

        def named(tokens: Sequence[int], after: ChunkKey | None) -> ChunkKey:
            before = b"" if after is None else after[NAMESPACE_BYTES:]
            return ChunkKey(bytes(NAMESPACE_BYTES) + sha256(before + packed(tokens)).digest())

        return named

    def segments(self, seed: int = 0, count: int = 3) -> list[list[int]]:
        """Segments of different lengths, of few different tokens: their parts look alike."""
        dice = Random(seed)  # noqa: S311 - nothing here is secret
        sizes = [self.least, 2 * self.least + 1, *(dice.randint(64, 512) for _ in range(count))]
        return [dice.choices(range(9), k=size) for size in sizes]

    @promise(
        "finder.1",
        "has every method of the port",
        level="L0",
        clause="SegmentFinder",
        why="the cache cannot be built, or fails at the first segment",
    )
    def test_is_a_finder(self, finder: SegmentFinder) -> None:
        assert isinstance(finder, SegmentFinder)
        assert finder.find(packed([])) == finder.find(packed(range(500))) == []
        assert finder.add(ChunkKey(bytes(48)), packed([])) is False

    @promise(
        "finder.2",
        "finds added segments at every offset of a prompt",
        level="L1",
        clause="SegmentFinder.find",
        why="the tokens are computed again wherever they stand",
    )
    def test_finds_a_piece_at_every_offset(self, finder: SegmentFinder, name: Name) -> None:
        for tokens in self.segments():
            assert finder.add(name(tokens, None), packed(tokens)) is True
        filler = [*range(1_000, 1_600)]
        for number, tokens in enumerate(self.segments()):
            for offset in (*range(70), 599):
                prompt = filler[:offset] + tokens + filler[: offset % 3]
                want = [Piece(name(tokens, None), offset, offset + len(tokens), 0)]
                assert [*finder.find(packed(prompt))] == want, f"segment {number} at {offset}"

    @promise(
        "finder.3",
        "gives no piece whose tokens are not all those that it is named by",
        level="L2",
        clause="SegmentFinder.find",
        why="a request would be answered from KV of another text",
        hint="a hash of 64 bits is a filter: compare the tokens, or the whole key",
    )
    def test_finds_nothing_that_is_not_there(self, finder: SegmentFinder, name: Name) -> None:
        added = self.segments()
        for tokens in added:
            finder.add(name(tokens, None), packed(tokens))
        dice = Random(5)  # noqa: S311 - nothing here is secret
        for tokens in added:
            places = {
                0,
                1,
                len(tokens) // 2,
                len(tokens) - 1,
                *dice.choices(range(len(tokens)), k=9),
            }
            for place in places:
                other = [*tokens]
                other[place] += 1 << dice.randrange(20)
                prompt = [7, *other, 7]
                with case(f"{len(tokens)} tokens, another one at {place}"):
                    self.check(finder.find(packed(prompt)), prompt, name)
                    assert not [p for p in finder.find(packed(prompt)) if p.start == 1]
            for cut in (tokens[1:], tokens[:-1]):
                assert [*finder.find(packed(cut))] == []

    @promise(
        "finder.4",
        "gives pieces in order, none over another; of two the leftmost, then the longest",
        level="L1",
        clause="SegmentFinder.find",
        why="one place of the device would get two segments' KV",
    )
    def test_of_two_the_leftmost_then_the_longest(self, finder: SegmentFinder, name: Name) -> None:
        long = self.segments(1)[2] + self.segments(2)[2]
        longest, shorter = long[: 3 * self.least], long[: 2 * self.least]
        astride = long[2 * self.least : 4 * self.least]
        for tokens in (shorter, astride, longest):
            finder.add(name(tokens, None), packed(tokens))
        prompt = [1, 2, *long[: 4 * self.least], 3, *shorter, 4, *astride]
        found = self.check(finder.find(packed(prompt)), prompt, name)
        second = 2 + 4 * self.least + 1
        third = second + 2 * self.least + 1
        assert [piece[1:] for piece in found] == [
            (2, 2 + len(longest), 0),
            (second, second + len(shorter), 0),
            (third, third + len(astride), 0),
        ]

    @promise(
        "finder.5",
        "returns the continuation of a segment where all of it stands, and its place there",
        level="L1",
        clause="SegmentFinder.add",
        why="KV that leans on other tokens would be used, or keys be rotated from elsewhere",
    )
    def test_what_continues_a_segment_stands_behind_it(
        self, finder: SegmentFinder, name: Name
    ) -> None:
        first, second, third = (self.segments(seed)[2] for seed in (1, 2, 3))
        one = name(first, None)
        two = name(second, one)
        three = name(third[:5], two)
        assert finder.add(two, packed(second), one) is False, "what it continues is not known"
        assert finder.add(one, packed(first))
        assert finder.add(two, packed(second), one)
        assert finder.add(three, packed(third[:5]), two), "only the first has to be so long"
        prompt = [9, *first, *second, *third]
        found = [*finder.find(packed(prompt))]
        ends = [1 + len(first), 1 + len(first) + len(second), 6 + len(first) + len(second)]
        assert [(piece.key, piece.start, piece.end) for piece in found] == [
            (one, 1, ends[0]),
            (two, ends[0], ends[1]),
            (three, ends[1], ends[2]),
        ]
        assert [piece.position for piece in found] == [0, len(first), len(first) + len(second)]
        assert [*finder.find(packed([9, *second, *third]))] == [], "its segment is not before it"
        assert [p.key for p in finder.find(packed([*first, 9, *second]))] == [one]

    @promise(
        "finder.6",
        "forgets a chunk and what continues it, and nothing else",
        level="L1",
        clause="SegmentFinder.forget",
        why="tiers would be asked for deleted segments for ever; or stored ones are not found",
    )
    def test_forgets_what_it_is_told_to(self, finder: SegmentFinder, name: Name) -> None:
        first, second, other = (self.segments(seed)[2] for seed in (1, 2, 3))
        one, two = name(first, None), name(second, name(first, None))
        finder.add(one, packed(first))
        finder.add(two, packed(second), one)
        finder.add(name(other, None), packed(other))
        prompt = packed([*first, *second, *other])
        finder.forget(two)
        assert [p.key for p in finder.find(prompt)] == [one, name(other, None)]
        finder.add(two, packed(second), one)
        finder.forget(one)
        finder.forget(ChunkKey(bytes(48)))
        assert [p.key for p in finder.find(prompt)] == [name(other, None)]
        finder.add(one, packed(first))
        assert [p.key for p in finder.find(prompt)] == [one, name(other, None)]

    @promise(
        "finder.7",
        "keeps its memory within its limit, and finds the segments added last",
        level="L6",
        clause="SegmentFinder.used_bytes",
        why="a server that runs for months would run out of memory",
    )
    def test_memory_is_bounded(self, finder: SegmentFinder, name: Name) -> None:
        dice = Random(9)  # noqa: S311 - nothing here is secret
        tokens: list[int] = []
        tracemalloc.start()
        try:
            for _ in range(self.budget // 300):
                tokens = dice.choices(range(50_000), k=self.least)
                finder.add(name(tokens, None), packed(tokens))
                assert finder.used_bytes <= self.budget
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 1.5 * self.budget, f"{held} bytes where {self.budget} are allowed"
        assert [p.key for p in finder.find(packed(tokens))] == [name(tokens, None)]

    @promise(
        "finder.8",
        "ends soon once the deadline has passed, with pieces that are there",
        level="L4",
        clause="SegmentFinder.find",
        why="one hostile prompt would hold up its request for ever",
    )
    def test_nothing_is_sought_after_the_deadline(self, finder: SegmentFinder, name: Name) -> None:
        tokens = self.segments()[2]
        finder.add(name(tokens, None), packed(tokens))
        clock = ManualClock()
        prompt = tokens * (LARGE // len(tokens))
        within = Deadline.after(clock, 1.0)
        assert len(finder.find(packed(prompt), within)) == LARGE // len(tokens)
        clock.advance(2.0)
        found = self.check(finder.find(packed(prompt), within), prompt, name)
        assert len(found) < LARGE // len(tokens) // 2

    @promise(
        "finder.9",
        "leaves the tokens as they are, and lets go of them when the call returns",
        level="L1",
        clause="SegmentFinder",
        why="the tokens lie in the serving engine's memory, which is used again",
    )
    def test_lets_go_of_the_tokens(self, finder: SegmentFinder, name: Name) -> None:
        tokens = self.segments()[2]
        given = bytearray(packed(tokens))
        finder.add(name(tokens, None), memoryview(given))
        assert given == packed(tokens)
        found = finder.find(memoryview(given))
        assert given == packed(tokens)
        try:
            given[:] = bytes(len(given))
            given.clear()
        except BufferError:
            raise AssertionError("a view of the caller's tokens was kept") from None
        assert [*found] == [*finder.find(packed(tokens))] != []

    @promise(
        "finder.10",
        "is safe on every thread",
        level="L3",
        clause="SegmentFinder",
        why="a serving engine stores segments while other requests look for theirs",
    )
    def test_threads_do_not_disturb_each_other(self, finder: SegmentFinder, name: Name) -> None:
        stays, *moving = (self.segments(seed)[2] for seed in range(5))
        finder.add(name(stays, None), packed(stays))

        def work(number: int) -> None:
            tokens, prompt = moving[number % len(moving)], [*stays]
            for turn in range(30):
                finder.add(name(tokens, None), packed(tokens))
                prompt = [turn, *stays, *tokens]
                found = self.check(finder.find(packed(prompt)), prompt, name)
                assert found[0] == (name(stays, None), 1, 1 + len(stays), 0)
                finder.forget(name(tokens, None))

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(work, number) for number in range(4)]:
                done.result()

    @pytest.mark.thorough
    @promise(
        "finder.11",
        "takes time in proportion to the prompt, whatever is in it",
        level="L6",
        clause="SegmentFinder.find",
        why="one hostile prompt would hold a server up for minutes",
    )
    def test_takes_linear_time(self, finder: SegmentFinder, name: Name) -> None:
        hostile = [[7] * 200, [*[7] * 199, 8], [*[7] * 100, 8, *[7] * 99], [7, 8] * 100]
        for tokens in hostile:
            finder.add(name(tokens, None), packed(tokens))
        most = 3 * LARGE / SMALL
        for pattern in ([7], [7, 8], [*[7] * 100, 8], [1, 2, 3, 4]):
            ratio = _growth(finder, pattern, below=most)
            assert ratio < most, (
                f"{LARGE // SMALL} times the tokens take {ratio:.0f} times as long "
                f"when {pattern[:6]} repeat"
            )

    def check(self, found: Sequence[Piece], prompt: Sequence[int], name: Name) -> Sequence[Piece]:
        """Return *found*, after a check that each is the piece of *prompt* that its key names."""
        reached = 0
        before: Piece | None = None
        for piece in found:
            after = before.key if before is not None and piece.position else None
            assert reached <= piece.start < piece.end <= len(prompt)
            assert piece.key == name(prompt[piece.start : piece.end], after)
            reached, before = piece.end, piece
        return found


def packed(tokens: Sequence[int]) -> memoryview:
    """*tokens* packed as for a finder."""
    return memoryview(b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in tokens))


def _growth(finder: SegmentFinder, pattern: Sequence[int], below: float) -> float:
    """How many times as long a long prompt takes as a short one; it is expected to be *below*.

    In processor time, on which other processes act only through the caches that they use. That
    only adds time, so the minimum is taken, and a ratio above *below* is measured again.
    """
    repeated = bytes(packed(pattern))
    prompts = [memoryview(repeated * (count // len(pattern))) for count in (SMALL, LARGE)]
    least = [inf, inf]
    growth = inf
    for turn in range(MOST_TURNS):
        for which, prompt in enumerate(prompts):
            step()
            start = time.thread_time()
            finder.find(prompt)
            least[which] = min(least[which], time.thread_time() - start)
        growth = least[1] / max(least[0], 1e-4)
        if turn + 1 >= TURNS and growth < below:
            break
    return growth
