"""The number of chunks of a prompt that a request moves at a time."""

from __future__ import annotations

from operator import sub

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.pipelining import Pipelining
from hexkv.ports import ChunkService, KVLayout, frame_bytes


class Pace:
    """The pace of requests over one service, by the memory that chunks pass through."""

    def __init__(self, chunks: ChunkService) -> None:
        self._chunks = chunks
        self.fixed: Pipelining | None = None
        """The pace for all prompts; ``None``: it depends on their chunks."""

        if (block := chunks.block_bytes) is not None:
            self.fixed = Pipelining.with_slots(max(1, chunks.pool_bytes // block), block)
        self._last: tuple[KVLayout, int, int, Pipelining] | None = None
        """The last answer: usually all prompts have chunks of one size."""

    def of(self, prompt: Prompt) -> Pipelining:
        """Return how many chunks of *prompt*, which has some, to move at once."""
        if self.fixed is not None:
            return self.fixed
        layout, bytes_ = prompt.layout, self._chunks.pool_bytes
        first = prompt.ends[0] - prompt.starts[0]
        last = self._last
        if last is None or last[0] is not layout or last[1:3] != (first, bytes_):
            frame = frame_bytes(largest_bytes(prompt))
            pace = Pipelining.with_slots(max(1, bytes_ // frame), frame)
            self._last = last = layout, first, bytes_, pace
        return last[3]

    def slots(self, prompt: Prompt) -> int:
        """Return how many of the largest chunk of *prompt* there is memory for; at least one."""
        block = self._chunks.block_bytes or frame_bytes(largest_bytes(prompt))
        return max(1, self._chunks.pool_bytes // block)


def largest_bytes(prompt: Prompt) -> int:
    """Return the bytes of KV in the largest chunk of *prompt*."""
    return prompt.layout.chunk_bytes(max(map(sub, prompt.ends, prompt.starts), default=1))
