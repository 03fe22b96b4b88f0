"""The requests of an engine: one pipeline over a service of chunks, near or far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.requests.layers.limits import Hosts
from hexkv.core.requests.prefetch import Prefetches, PrefetchRules
from hexkv.core.runtime import Runtime
from hexkv.ports import (
    ChunkService,
    Cleared,
    Deadline,
    Health,
    KVLayout,
    Reason,
    frame_bytes,
)

_UNKNOWN = Health("", False, (), 0, 0, {}, {}, {}, 0)


class Pace:
    """The number of chunks that requests over one service move at a time, by its memory."""

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
            frame = frame_bytes(prompt.largest_bytes)
            pace = Pipelining.with_slots(max(1, bytes_ // frame), frame)
            self._last = last = layout, first, bytes_, pace
        return last[3]

    def slots(self, prompt: Prompt) -> int:
        """Return how many of the largest chunk of *prompt* there is memory for; at least one."""
        block = self._chunks.block_bytes or frame_bytes(prompt.largest_bytes)
        return max(1, self._chunks.pool_bytes // block)


class Pipeline:
    """What all requests of an engine share, and its end. Safe from any thread.

    The leases and pins of each request are listed under its owner. The only error is
    :class:`~hexkv.ports.InvalidRequest`, if a device raises it.
    """

    def __init__(
        self,
        chunks: ChunkService,
        runtime: Runtime,
        prefetch: PrefetchRules = PrefetchRules(),  # noqa: B008 - frozen
    ) -> None:
        """Take ownership of *chunks*; prefetches take memory of it by the rules of *prefetch*."""
        self.chunks = chunks
        self.runtime = runtime
        self.copier = Copier(runtime.executor)
        self.pace = Pace(chunks)
        self.prefetches = Prefetches(chunks, self.pace, prefetch, runtime.clock)
        self.hosts = Hosts()
        chunks.on_shortage(self.prefetches.reap, self.prefetches.first_end)

    def forget(self, prompt: Prompt, tiers: Sequence[str] | None, deadline: Deadline) -> Cleared:
        """Delete the chunks of *prompt*, and tails in any of them, from *tiers*, by default all.

        Raises:
            InvalidRequest: there is no such tier.
        """
        # Tails in any chunk: the ends of earlier turns of a conversation.
        tails = [
            (key, end - start)
            for number, start in enumerate(prompt.starts[: len(prompt)])
            for key, end in zip(*prompt.tails_of(number), strict=True)
        ]
        done = self.chunks.clear(prompt.keys[: prompt.full], tiers, deadline, tails)
        if prompt.unnamed.ends:
            names = tiers or [tier.name for tier in self.health(deadline).tiers]
            return replace(done, left=dict.fromkeys(names, Reason.TIMED_OUT.value))
        return done

    def health(self, deadline: Deadline) -> Health:
        """Return the state of memory and tiers; without a state if no answer came."""
        told = self.chunks.health(deadline) or _UNKNOWN
        leases = {**told.leases, **self.chunks.ledger()}
        return replace(told, leases=leases, prefetches=len(self.prefetches))

    def close(self, deadline: Deadline) -> Mapping[str, int]:
        """Finish writes queued here and close everything. Return the leases left, by owner."""
        self.prefetches.close()
        self.copier.reap(deadline)
        self.chunks.close(deadline)
        return self.chunks.ledger()
