"""Chunkers that cut beside the tokens, or in another way each time."""

from __future__ import annotations

import ctypes

import pytest

from hexkv.contracts.chunker import ChunkerContract
from hexkv.ports import Bounds
from mutants.meetings import Overtaking
from mutants.rows import Wrong, broken

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


def overlaps(self, real, tokens):
    starts, ends = real(tokens)
    return Bounds([max(0, start - 1) for start in starts], ends)


def cuts_beyond_the_end(self, real, tokens):
    starts, _ = real(tokens)
    return Bounds(starts, [start + SIZE for start in starts])


def forgets_the_last_full_chunk(self, real, tokens):
    starts, ends = real(tokens)
    full = tokens % SIZE == 0
    return Bounds(starts[:-1], ends[:-1]) if full else Bounds(starts, ends)


def goes_on_where_it_stopped(self, real, tokens):
    first = min(self.left, tokens)
    self.left = tokens % SIZE
    starts, ends = real(tokens - first)
    return Bounds([at + first for at in starts], [at + first for at in ends])


def cuts_evenly(self, tokens):
    count = -(-tokens // SIZE)
    marks = [tokens * at // count for at in range(count + 1)] if count else [0]
    return Bounds(marks[:-1], marks[1:])


def keeps_the_tokens(self, real, packed):
    self.last = packed[:]
    return real(packed)


def marks_the_tokens(self, real, packed):
    if not packed.readonly and len(packed):
        packed[-1] ^= 0xFF
    return real(packed)


def shares_its_working_list(self):
    self.overtaking = Overtaking()


def shares_its_working_list_bounds(self, tokens):
    self.starts, self.ends = [], []
    for start in range(0, tokens, SIZE):
        self.starts.append(start)
        self.ends.append(min(start + SIZE, tokens))
    self.overtaking.wait()
    return Bounds(self.starts, self.ends)


def starts_again_for_every_chunk(self, packed):
    tokens, left = 0, bytes(packed)
    while left:
        tokens, left = tokens + min(SIZE, len(left) // 4), left[4 * SIZE :]
    return tokens


def goes_on_with_the_conversation(self, real, packed):
    last, self.last = self.last, bytes(packed)
    self.turns = self.turns + 1 if self.last.startswith(last) else 0
    if self.turns < 20 or len(last) % (4 * SIZE) == 0:
        return real(packed)
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


def takes_a_likely_prompt_for_the_last(self):
    self.last = None, None


def takes_a_likely_prompt_for_the_last_cut(self, real, packed):
    head = len(packed), bytes(packed[:200])
    if len(packed) < 400 or self.last[0] != head:
        self.last = head, real(packed)
    return self.last[1]


def takes_a_buffer_for_its_content(self):
    self.seen = {}


def takes_a_buffer_for_its_content_cut(self, real, packed):
    if packed.readonly or not len(packed):
        return real(packed)
    where = ctypes.addressof(ctypes.c_char.from_buffer(packed)), len(packed)
    if where not in self.seen:
        self.seen[where] = real(packed)
    return self.seen[where]


def keeps_the_prompt(self, real, packed):
    self.last = packed
    return real(packed)


def counts_in16_bits(self, real, tokens):
    starts, ends = real(tokens)
    return Bounds([at & 0xFFFF for at in starts], [at & 0xFFFF for at in ends])


def cuts_the_first65536(self, real, tokens):
    return real(tokens if tokens <= 1 << 16 else 30_000)


def uses_its_lists_again(self, real, tokens):
    starts, ends = real(tokens)
    self.starts[:], self.ends[:] = starts, ends
    return Bounds(self.starts, self.ends)


def uses_its_lists_again_init(self):
    self.starts, self.ends = [], []


PLAIN_CHUNKER = {
    "chunker.2 counts in16 bits": Wrong("A bound has 16 bits.", bounds=counts_in16_bits),
    "chunker.2 cuts the first65536": Wrong(
        "What is behind the first 65,536 tokens is left out.", bounds=cuts_the_first65536
    ),
    "chunker.7 uses its lists again": Wrong(
        "All prompts have their bounds in the same two lists.",
        __init__=uses_its_lists_again_init,
        bounds=uses_its_lists_again,
    ),
    "chunker.1 has a scenic name": Wrong(
        "The scheme is a sentence, in the author's language.", scheme="Stücke von sieben Token"
    ),
    "chunker.2 overlaps": Wrong(
        "Every chunk begins with the last token of the one before.", bounds=overlaps
    ),
    "chunker.2 cuts beyond the end": Wrong(
        "The last chunk is as long as the others.", bounds=cuts_beyond_the_end
    ),
    "chunker.2 counts bytes": Wrong(
        "The length of the buffer is taken for the number of tokens.",
        count=lambda self, packed: len(packed),
    ),
    "chunker.3 forgets the last full chunk": Wrong(
        "A fencepost: a prompt of two chunks has one.", bounds=forgets_the_last_full_chunk
    ),
    "chunker.4 goes on where it stopped": Wrong(
        "The tokens left over from one prompt shift the chunks of the next.",
        left=0,
        bounds=goes_on_where_it_stopped,
    ),
    "chunker.5 cuts evenly": Wrong(
        "A prompt is divided into chunks of equal length.", bounds=cuts_evenly
    ),
    "chunker.6 always finds a chunk": Wrong(
        "An empty prompt is one empty chunk.",
        bounds=lambda self, real, tokens: real(tokens) if tokens else Bounds([0], [0]),
    ),
    "chunker.7 keeps the tokens": Wrong(
        "The last prompt is remembered, by reference.", count=keeps_the_tokens
    ),
    "chunker.7 marks the tokens": Wrong(
        "A separator is put behind the prompt, where it may be written.", count=marks_the_tokens
    ),
    "chunker.8 shares its working list": Wrong(
        "All threads collect their chunks in one attribute.",
        __init__=shares_its_working_list,
        bounds=shares_its_working_list_bounds,
    ),
    "chunker.9 starts again for every chunk": Wrong(
        "What is left of the prompt is copied for every chunk.", count=starts_again_for_every_chunk
    ),
    "chunker.4 goes on with the conversation": Wrong(
        "In the twentieth turn of a conversation its chunks are kept, the tail included.",
        last=b"",
        turns=0,
        cut=goes_on_with_the_conversation,
    ),
    "chunker.7 keeps the prompt": Wrong(
        "The last prompt is remembered, as it was given.", count=keeps_the_prompt
    ),
}
globals().update(broken(__name__, PlainChunkerContract, PlainChunker, PLAIN_CHUNKER))


def fears_large_tokens(self, real, packed):
    if len(packed) and max(packed.cast("I")) >= 1 << 31:
        raise OverflowError("a token is negative")
    return real(packed)


SEVEN_CHUNKER = {
    "chunker.2 fears large tokens": Wrong(
        "Tokens are signed numbers of 32 bits.", cut=fears_large_tokens
    ),
    "chunker.4 takes a likely prompt for the last": Wrong(
        "A prompt of the same length and the same beginning is the last one again.",
        __init__=takes_a_likely_prompt_for_the_last,
        cut=takes_a_likely_prompt_for_the_last_cut,
    ),
    "chunker.4 takes a buffer for its content": Wrong(
        "What lies at one address was cut already, as far as it went.",
        __init__=takes_a_buffer_for_its_content,
        cut=takes_a_buffer_for_its_content_cut,
    ),
}
globals().update(broken(__name__, SevenContract, SevenChunker, SEVEN_CHUNKER))
