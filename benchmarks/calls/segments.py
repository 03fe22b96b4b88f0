"""Finding segments at any offset of a long prompt, against one pass over its tokens by numpy.

Segments have 64 to 512 tokens, and begin where the one before them ends: at every offset. Text is
drawn evenly, or as words are: a few tokens make up most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from benchmarks.rig.engines import TokenArray
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import THIN, Scale
from hexkv.blending.anywhere import WindowFinder
from hexkv.blending.chunking import SegmentChunker
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.tokens import pack
from hexkv.ports import Namespace

LIMIT = "numpy: one cumulative sum over the tokens"
LEAST, MOST = 64, 512
HEADER = 48
"""Tokens with which segments begin alike, where they do."""

OTHERS = 1_000
"""Segments that are known and not in the prompt."""

Draw = Callable[[int], TokenArray]


def segments(scale: Scale) -> Generator[Comparison, None, None]:
    """The whole prompt is segments, all of them known; or none is."""
    dice = np.random.default_rng(1)

    def evenly(count: int) -> TokenArray:
        return dice.integers(1 << 17, size=count, dtype=np.uint32)

    def as_words(count: int) -> TokenArray:
        return dice.zipf(1.3, size=count).clip(max=1 << 17).astype(np.uint32)

    for name, draw, header, known in (
        ("all known", evenly, 0, True),
        ("none known", evenly, 0, False),
        ("all known, of frequent tokens", as_words, 0, True),
        ("all known, beginning alike", as_words, HEADER, True),
    ):
        finder, prompt, count = _scene(scale, dice, draw, header, known=known)
        packed = pack(prompt)

        def find(
            finder: WindowFinder = finder, packed: memoryview = packed, n: int = count
        ) -> None:
            must(len(finder.find(packed)) == n, "not all segments were found")

        def scan(prompt: TokenArray = prompt) -> None:
            np.cumsum(prompt, dtype=np.uint64)

        yield Comparison(
            f"segments: {name}", LIMIT, prompt.nbytes, Turn(find), Turn(scan), Goal("cost")
        )


def _scene(
    scale: Scale, dice: np.random.Generator, draw: Draw, header: int, *, known: bool
) -> tuple[WindowFinder, TokenArray, int]:
    """A finder, a prompt made of segments, and how many of these are known."""
    keyer = NamespaceHasher(Namespace("benchmark", THIN), chunker=SegmentChunker(maximum=MOST))
    finder = WindowFinder(keyer, 16 << 20)
    head = draw(header)

    def segment(most: int) -> TokenArray:
        size = min(int(dice.integers(LEAST, MOST + 1)), most)
        return np.concatenate((head, draw(size - header)))

    def learn(tokens: TokenArray) -> None:
        packed = pack(tokens)
        (key,) = keyer.name_ends(packed, 0, [len(tokens)], None)
        must(finder.add(key, packed), "a segment was not taken")

    pieces: list[TokenArray] = []
    left = scale.prompt
    while left >= LEAST:
        pieces.append(segment(left if left < LEAST + MOST else MOST))
        left -= len(pieces[-1])
    for _ in range(OTHERS):
        learn(segment(MOST))
    for piece in pieces if known else ():
        learn(piece)
    return finder, np.concatenate((*pieces, draw(left))), len(pieces) if known else 0
