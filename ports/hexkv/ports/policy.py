"""The eviction port: the order in which a tier's chunks are evicted.

Called by the tier's index under its lock, so implementations need no lock of their own,
must not block, and must not call back. A policy sees keys in prefix order and learns from
nothing else: it is a pure function of its calls, without clock or randomness of its own, so
that a replayed trace gives the same victims. The sequences passed to it are the caller's
again when the call returns.

KV is only useful from the start of a prompt on: of two chunks of one call that are otherwise
equal, the later one is worth less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey


@runtime_checkable
class Policy(Protocol):
    """Orders the chunks of one tier, worst first. Every call costs amortised O(1) per key."""

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """Add new chunks of the tier, of one request and in prefix order.

        Args:
            keys: distinct, and none that is already on the tier.
            after: the chunk before the first of *keys* in their prompt, also if it is not on
                the tier; ``None`` if they begin the prompt, or it is unknown. The same request
                may touch it, and those before it, earlier or later.
        """
        ...

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Record a use of these chunks, all on the tier, by one request, in prefix order."""
        ...

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        """Remove a chunk that left the tier: *evicted* for room, or deleted, damaged or moved.

        A policy may remember evicted keys (ghosts): a few for each chunk that the tier
        held at its fullest, not one for each that was ever there. An evicted chunk may be
        admitted again at any time.
        """
        ...

    def victims(self) -> Iterator[ChunkKey]:
        """Iterate lazily over every chunk on the tier once, worst first. Changes nothing.

        The index takes as many as it needs, skipping pinned ones, and then calls
        :meth:`drop` for those it evicts. The cost of the first victim does not grow with the
        tier. The iterator is not used after any other call.
        """
        ...
