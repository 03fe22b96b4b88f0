"""The eviction port: which chunk of a tier is worth least.

Called by the tier's index under its lock, so implementations need no lock of their own,
must not block, and must not call back. A policy sees keys in prefix order and learns from
nothing else: it is a pure function of the calls it got, without clock or randomness of its
own, so that a trace replayed through it gives the same victims. The sequences it is given
are the caller's again when the call returns.

KV is only useful from the start of a prompt on: of two chunks of one call that nothing else
tells apart, the later one is worth less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey


@runtime_checkable
class Policy(Protocol):
    """Orders the chunks of one tier, worst first. Every call costs amortised O(1) per key."""

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """These chunks, absent until now, are on the tier; prefix order, one request.

        Args:
            keys: distinct, and none that is already on the tier.
            after: the chunk before the first of *keys* in their prompt, whether or not it
                is on the tier; ``None`` where they begin the prompt or nobody knows. The
                same request may touch it, and those before it, earlier or later.
        """
        ...

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """One request met these chunks, all on the tier, in prefix order."""
        ...

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        """The chunk left the tier: *evicted* for room, or deleted, damaged, moved away.

        A policy may remember evicted keys (ghosts): a few for each chunk that the tier
        held at its fullest, not one for each that ever was there. An evicted chunk may be
        admitted again at any time.
        """
        ...

    def victims(self) -> Iterator[ChunkKey]:
        """Every chunk on the tier once, worst first. Lazy, and changes nothing by itself.

        The index takes as many as it needs, skipping the pinned, and then calls
        :meth:`drop` for those it evicts. The first victim comes as cheaply as from a small
        tier. The iterator is not used after any other call.
        """
        ...
