"""The contract of chunkers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from random import Random
from typing import ClassVar

import pytest

from hexkv.contracts.kit.limits import step
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import Bounds, Chunker

Reference = Callable[[Sequence[int]], Sequence[tuple[int, int]]] | None
"""A reference chunker, slow and obviously right: ``(start, end)`` of each chunk of a prompt."""

TOKEN_BYTES = 4
FEW = (0, 1, 7, 256, 65_536, 16_777_216, (1 << 32) - 1)
"""Tokens whose bytes, shifted, look alike: a bytewise search finds false matches."""

BEYOND = 70_000
"""Tokens of a prompt whose positions do not fit 16 bits."""

SMALL, LARGE = 8_000, 128_000
"""Tokens of a short and of a long prompt: quadratic work shows as a factor of 256, not of 16."""

TURNS, MOST_TURNS = 2, 8
"""How often each is timed: more often if it seems to take too long."""


class ChunkerContract(Whole):
    """Subclass this and give it a ``chunker`` fixture; ``reference``, too, if there is one.

    Small chunks, of about ten tokens at most, get the most out of the contract's prompts.
    """

    lookahead: ClassVar[int] = 1
    """The number of tokens behind a chunk's end that may still change it.

    1 where an unfull chunk at a prompt's end grows; the length of a separator, where half of
    one may turn out to be one.
    """

    @pytest.fixture
    def chunker(self) -> Chunker:
        """The chunker under test."""
        raise NotImplementedError(f"give {type(self).__name__} a `chunker` fixture")

    @pytest.fixture
    def reference(self) -> Reference:
        """Another way to cut, see :data:`Reference`."""
        return None

    @pytest.fixture
    def tokens(self) -> Sequence[int]:
        """Tokens with a meaning to the chunker, separators for instance."""
        return FEW

    @pytest.fixture
    def prompts(self, tokens: Sequence[int]) -> list[list[int]]:
        """Prompts of every small length, and some long ones."""
        random = Random(0)  # noqa: S311 - nothing here is secret
        sizes = [*range(70), *(random.randint(70, 2_000) for _ in range(30))]
        return [random.choices(tokens, k=size) for size in sizes]

    @promise(
        "chunker.1",
        "has every method of the port, and a scheme of 1 to 64 printable ASCII characters",
        level="L0",
        clause="Chunker.scheme",
        why="the scheme is part of every key: it must read the same on every host",
        hint="no blanks; a short word and what decides where to cut, prefix/256 for instance",
    )
    def test_is_a_chunker(self, chunker: Chunker) -> None:
        assert isinstance(chunker, Chunker)
        scheme = chunker.scheme
        assert scheme.isascii()
        assert scheme.isprintable()
        assert 1 <= len(scheme) <= 64
        assert " " not in scheme
        assert chunker.scheme == scheme

    @promise(
        "chunker.2",
        "gives chunks in order, none empty, none over another, none beyond a prompt of any length",
        clause="Bounds",
        why="a chunk's KV would be taken from other tokens than it is named by",
    )
    def test_bounds_are_in_order(self, chunker: Chunker, prompts: list[list[int]]) -> None:
        part = max(prompts, key=len)
        long = part * (BEYOND // len(part) + 1)
        for prompt in [*prompts, [*FEW], long]:
            bounds = chunker.cut(_packed(prompt))
            assert isinstance(bounds, Bounds)
            assert len(bounds.starts) == len(bounds.ends), "two columns, one row per chunk"
            before = 0
            for start, end in zip(*bounds, strict=True):
                assert isinstance(start, int)
                assert isinstance(end, int)
                assert before <= start < end <= len(prompt)
                before = end
        cut = [_cut(chunker, long[:size]) for size in (BEYOND // 2, BEYOND)]
        if len(cut[0]) > BEYOND // 4000:  # small chunks all through, so also behind 16 bits
            assert cut[1][-1][1] > BEYOND * 3 // 4, "no chunk behind 65,536 tokens"

    @promise(
        "chunker.3",
        "cuts as its plain reference does",
        clause="Chunker.cut",
        why="tokens that are left out are computed again for every request",
    )
    def test_cuts_as_the_reference_does(
        self, chunker: Chunker, reference: Reference, prompts: list[list[int]]
    ) -> None:
        if reference is None:
            not_offered("a reference to compare the cuts with")
        for prompt in prompts:
            assert _cut(chunker, prompt) == list(reference(prompt)), f"{len(prompt)} tokens"

    @promise(
        "chunker.4",
        "cuts the same tokens in the same way, whatever it cut before",
        clause="Chunker",
        why="what one engine stored, another would not find, nor the same one after a restart",
        hint="no state, no randomness, no clock",
    )
    def test_is_a_function_of_the_tokens(self, chunker: Chunker, prompts: list[list[int]]) -> None:
        first = [_cut(chunker, prompt) for prompt in prompts]
        again = [_cut(chunker, prompt) for prompt in reversed(prompts)]
        assert first == again[::-1]
        for grown in _grown(prompts):
            alone = []
            for prompt in grown:
                _cut(chunker, [(token + 1) % 9 for token in prompt[:99]])  # another's prompt
                alone.append(_cut(chunker, prompt))
            room = bytearray(TOKEN_BYTES * max(map(len, grown)))
            for turn, (prompt, want) in enumerate(zip(grown, alone, strict=True)):
                assert _cut(chunker, prompt) == want, f"turn {turn}: {len(prompt)} tokens"
            for turn, (prompt, want) in enumerate(zip(grown, alone, strict=True)):
                size = TOKEN_BYTES * len(prompt)
                room[:size] = _packed(prompt)  # as a host with one buffer for all prompts does
                with memoryview(room)[:size] as packed:
                    bounds = chunker.cut(packed)
                    found = list(zip(bounds.starts, bounds.ends, strict=True))
                assert found == want, f"turn {turn}, in the buffer of the turn before"

    @promise(
        "chunker.5",
        "changes no chunk of a prompt when tokens are appended to it, but the last ones",
        clause="Chunker.cut",
        why="no turn of a conversation would find what the turn before it stored",
        hint="cut from the left; `lookahead` of your test class is how much may change",
    )
    def test_chunks_of_a_prefix_are_chunks_of_the_prompt(
        self, chunker: Chunker, prompts: list[list[int]]
    ) -> None:
        for prompt in prompts:
            whole = _cut(chunker, prompt)
            lengths = {len(prompt) // 3, len(prompt) // 2, *range(len(prompt) - 9, len(prompt))}
            for length in sorted(at for at in lengths if at > 0):
                settled = length - self.lookahead
                part = [cut for cut in _cut(chunker, prompt[:length]) if cut[1] <= settled]
                assert part == [cut for cut in whole if cut[1] <= settled], (
                    f"the first {length} of {len(prompt)} tokens"
                )

    @promise(
        "chunker.6",
        "finds no chunk where there is no token",
        clause="Bounds",
        why="an empty prompt comes from every health check",
    )
    def test_an_empty_prompt_has_no_chunks(self, chunker: Chunker) -> None:
        assert _cut(chunker, []) == []

    @promise(
        "chunker.7",
        "leaves the tokens as they are, and lets go of them when the call returns",
        clause="Chunker.cut",
        why="the tokens lie in the serving engine's memory, which is used again",
    )
    def test_lets_go_of_the_tokens(self, chunker: Chunker, prompts: list[list[int]]) -> None:
        for prompt in prompts[::7]:
            packed = bytes(_packed(prompt))
            writable = bytearray(packed)
            bounds = chunker.cut(memoryview(writable))  # not released here: it might be kept
            assert writable == packed, "the tokens were changed"
            try:
                writable.clear()
            except BufferError:
                raise AssertionError("a view of the caller's tokens was kept") from None
            before = list(zip(*bounds, strict=True))
            assert before == _cut(chunker, prompt)
            _cut(chunker, [*prompt, *prompt, 0])
            assert before == list(zip(*bounds, strict=True)), "the bounds changed with a later call"

    @promise(
        "chunker.8",
        "is safe on every thread",
        level="L3",
        clause="Chunker",
        why="a serving engine asks for several requests at once",
        hint="keep nothing between the calls, nor in the object during one",
    )
    def test_threads_do_not_disturb_each_other(
        self, chunker: Chunker, prompts: list[list[int]]
    ) -> None:
        want = [_cut(chunker, prompt) for prompt in prompts]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda prompt: _cut(chunker, prompt), prompts * 4))
        assert found == want * 4

    @pytest.mark.thorough
    @promise(
        "chunker.9",
        "takes time in proportion to the prompt, whatever is in it",
        level="L6",
        clause="Chunker.cut",
        why="one hostile prompt would hold a server up for minutes",
        hint="a search that starts again after every near miss is quadratic",
    )
    def test_takes_linear_time(self, chunker: Chunker, tokens: Sequence[int]) -> None:
        random = Random(1)  # noqa: S311 - nothing here is secret
        patterns = [[token] for token in tokens] + [list(tokens), random.choices(tokens, k=99)]
        most = 5 * LARGE / SMALL
        for pattern in patterns:
            ratio = _growth(chunker, pattern, below=most)
            assert ratio < most, (
                f"{LARGE // SMALL} times the tokens take {ratio:.0f} times as long "
                f"when {pattern[:6]} repeat"
            )


def _grown(prompts: Sequence[list[int]]) -> list[list[list[int]]]:
    """Prompts as conversations have them: each goes on where the one before it ended.

    The last ones are as long as their predecessors, and differ in the middle.
    """
    longest = max(prompts, key=len)
    conversations = []
    for more in (1, 3, 50, 700):
        turns = [longest[: at * more] for at in range(1, min(40, len(longest) // more + 1))]
        middle = len(turns[-1]) // 2
        turns.append([*turns[-1][:middle], *reversed(turns[-1][middle:])])
        turns.append([*reversed(turns[-1][:middle]), *turns[-1][middle:]])
        turns.append(turns[0])
        conversations.append(turns)
    return conversations


def _packed(prompt: Sequence[int]) -> memoryview:
    return memoryview(b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in prompt))


def _cut(chunker: Chunker, prompt: Sequence[int]) -> list[tuple[int, int]]:
    bounds = chunker.cut(_packed(prompt))
    return list(zip(bounds.starts, bounds.ends, strict=True))


def _growth(chunker: Chunker, pattern: Sequence[int], below: float) -> float:
    """How many times as long a long prompt takes as a short one; it is expected to be *below*.

    In processor time, on which other processes act only through the caches that they use. That
    only adds time, so the minimum is taken, and a ratio above *below* is measured again.
    """
    repeated = bytes(_packed(pattern))
    prompts = [memoryview(repeated * (count // len(pattern))) for count in (SMALL, LARGE)]
    least = [inf, inf]
    growth = inf
    for turn in range(MOST_TURNS):
        for which, packed in enumerate(prompts):
            step()
            start = time.thread_time()
            chunker.cut(packed)
            least[which] = min(least[which], time.thread_time() - start)
        growth = least[1] / max(least[0], 1e-4)
        if turn + 1 >= TURNS and growth < below:
            break
    return growth
