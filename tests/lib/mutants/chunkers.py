"""Chunkers that cut beside the tokens, or in another way each time."""

from __future__ import annotations

import ctypes

import pytest

from hexkv.contracts.chunker import ChunkerContract
from hexkv.ports import Bounds
from mutants.meetings import Overtaking

SIZE = 7


class PlainChunker:
    """A correct chunker with a tail, cut into small steps so that each can be broken alone."""

    scheme = f"plain/{SIZE}"

    def cut(self, packed):
        return self.bounds(self.count(packed))

    def count(self, packed):
        return len(packed) // 4

    def bounds(self, tokens):
        starts = list(range(0, tokens, SIZE))
        return Bounds(starts, [min(start + SIZE, tokens) for start in starts])


class PlainChunkerContract(ChunkerContract):
    Make = PlainChunker

    @pytest.fixture
    def chunker(self):
        return self.Make()

    @pytest.fixture
    def reference(self):
        return lambda prompt: [
            (at, min(at + SIZE, len(prompt))) for at in range(0, len(prompt), SIZE)
        ]


class TestHasAScenicName(PlainChunkerContract):
    """The scheme is a sentence, in the author's language."""

    breaks = "chunker.1"

    class Make(PlainChunker):
        scheme = "Stücke von sieben Token"


class TestOverlaps(PlainChunkerContract):
    """Every chunk begins with the last token of the one before."""

    breaks = "chunker.2"

    class Make(PlainChunker):
        def bounds(self, tokens):
            starts, ends = super().bounds(tokens)
            return Bounds([max(0, start - 1) for start in starts], ends)


class TestCutsBeyondTheEnd(PlainChunkerContract):
    """The last chunk is as long as the others."""

    breaks = "chunker.2"

    class Make(PlainChunker):
        def bounds(self, tokens):
            starts, _ = super().bounds(tokens)
            return Bounds(starts, [start + SIZE for start in starts])


class TestCountsBytes(PlainChunkerContract):
    """The length of the buffer is taken for the number of tokens."""

    breaks = "chunker.2"

    class Make(PlainChunker):
        def count(self, packed):
            return len(packed)


class TestForgetsTheLastFullChunk(PlainChunkerContract):
    """A fencepost: a prompt of two chunks has one."""

    breaks = "chunker.3"

    class Make(PlainChunker):
        def bounds(self, tokens):
            starts, ends = super().bounds(tokens)
            full = tokens % SIZE == 0
            return Bounds(starts[:-1], ends[:-1]) if full else Bounds(starts, ends)


class TestGoesOnWhereItStopped(PlainChunkerContract):
    """The tokens left over from one prompt shift the chunks of the next."""

    breaks = "chunker.4"

    class Make(PlainChunker):
        left = 0

        def bounds(self, tokens):
            first = min(self.left, tokens)
            self.left = tokens % SIZE
            starts, ends = super().bounds(tokens - first)
            return Bounds([at + first for at in starts], [at + first for at in ends])


class TestCutsEvenly(PlainChunkerContract):
    """A prompt is divided into chunks of equal length."""

    breaks = "chunker.5"

    class Make(PlainChunker):
        def bounds(self, tokens):
            count = -(-tokens // SIZE)
            marks = [tokens * at // count for at in range(count + 1)] if count else [0]
            return Bounds(marks[:-1], marks[1:])


class TestAlwaysFindsAChunk(PlainChunkerContract):
    """An empty prompt is one empty chunk."""

    breaks = "chunker.6"

    class Make(PlainChunker):
        def bounds(self, tokens):
            return super().bounds(tokens) if tokens else Bounds([0], [0])


class TestKeepsTheTokens(PlainChunkerContract):
    """The last prompt is remembered, by reference."""

    breaks = "chunker.7"

    class Make(PlainChunker):
        def count(self, packed):
            self.last = packed[:]
            return super().count(packed)


class TestMarksTheTokens(PlainChunkerContract):
    """A separator is put behind the prompt, where it may be written."""

    breaks = "chunker.7"

    class Make(PlainChunker):
        def count(self, packed):
            if not packed.readonly and len(packed):
                packed[-1] ^= 0xFF
            return super().count(packed)


class TestSharesItsWorkingList(PlainChunkerContract):
    """All threads collect their chunks in one attribute."""

    breaks = "chunker.8"

    class Make(PlainChunker):
        def __init__(self):
            self.overtaking = Overtaking()

        def bounds(self, tokens):
            self.starts, self.ends = [], []
            for start in range(0, tokens, SIZE):
                self.starts.append(start)
                self.ends.append(min(start + SIZE, tokens))
            self.overtaking.wait()
            return Bounds(self.starts, self.ends)


class TestStartsAgainForEveryChunk(PlainChunkerContract):
    """What is left of the prompt is copied for every chunk."""

    breaks = "chunker.9"

    class Make(PlainChunker):
        def count(self, packed):
            tokens, left = 0, bytes(packed)
            while left:
                tokens, left = tokens + min(SIZE, len(left) // 4), left[4 * SIZE :]
            return tokens


class TestGoesOnWithTheConversation(PlainChunkerContract):
    """In the twentieth turn of a conversation its chunks are kept, the tail included."""

    breaks = "chunker.4"

    class Make(PlainChunker):
        last = b""
        turns = 0

        def cut(self, packed):
            last, self.last = self.last, bytes(packed)
            self.turns = self.turns + 1 if self.last.startswith(last) else 0
            if self.turns < 20 or len(last) % (4 * SIZE) == 0:
                return super().cut(packed)
            starts, ends = self.bounds(len(last) // 4)
            more = self.bounds((len(packed) - len(last)) // 4)
            return Bounds(
                starts + [ends[-1] + at for at in more.starts],
                ends + [ends[-1] + at for at in more.ends],
            )


class SevenChunker(PlainChunker):
    """Cuts behind each token 7."""

    scheme = "seven"

    def cut(self, packed):
        tokens = list(packed.cast("I")) if len(packed) else []
        marks = [at + 1 for at, token in enumerate(tokens) if token == 7]
        return Bounds([0, *marks[:-1]] if marks else [], marks)


class SevenContract(ChunkerContract):
    Make = SevenChunker

    @pytest.fixture
    def chunker(self):
        return self.Make()


class TestTakesALikelyPromptForTheLast(SevenContract):
    """A prompt of the same length and the same beginning is the last one again."""

    breaks = "chunker.4"

    class Make(SevenChunker):
        def __init__(self):
            self.last = None, None

        def cut(self, packed):
            head = len(packed), bytes(packed[:200])
            if len(packed) < 400 or self.last[0] != head:
                self.last = head, super().cut(packed)
            return self.last[1]


class TestTakesABufferForItsContent(SevenContract):
    """What lies at one address was cut already, as far as it went."""

    breaks = "chunker.4"

    class Make(SevenChunker):
        def __init__(self):
            self.seen = {}

        def cut(self, packed):
            if packed.readonly or not len(packed):
                return super().cut(packed)
            where = ctypes.addressof(ctypes.c_char.from_buffer(packed)), len(packed)
            if where not in self.seen:
                self.seen[where] = super().cut(packed)
            return self.seen[where]


class TestKeepsThePrompt(PlainChunkerContract):
    """The last prompt is remembered, as it was given."""

    breaks = "chunker.7"

    class Make(PlainChunker):
        def count(self, packed):
            self.last = packed
            return super().count(packed)
