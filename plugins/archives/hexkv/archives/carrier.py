"""Whole frames read from tiers and written to tiers unchanged, also encoded ones.

None of this counts as a use of a chunk: policies do not learn of it, and no chunk
is copied to faster tiers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hexkv.core.frames.opening import Opening, opened
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.batches import Batch, Pending
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.read.block_sink import label
from hexkv.core.tiers.read.pieces import STEP
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline, FrameHeader, Lease, Reason

_AT_ONCE = 64
"""The number of keys that are looked up at a time."""


class Carrier:
    """Read and write frames as *owner*. For one thread.

    Args:
        stack: the tiers, over a pool that frames pass through.
        owner: the owner of the leases.
        seconds: the time that a tier may take for a few chunks.
    """

    def __init__(self, stack: TierStack, owner: str, seconds: float) -> None:
        self._stack = stack
        self._owner = owner
        self._seconds = seconds

    def keys(self, tiers: Sequence[Tier]) -> Iterator[ChunkKey]:
        """Yield each chunk in the indexes of *tiers* once."""
        seen: set[ChunkKey] = set()
        for tier in tiers:
            found = tier.index.keys()
            yield from found if not seen else (key for key in found if key not in seen)
            if tier is not tiers[-1]:
                seen.update(found)

    def read(
        self, keys: Sequence[ChunkKey], tiers: Sequence[Tier]
    ) -> Iterator[tuple[ChunkKey, memoryview | Reason]]:
        """Yield each chunk's frame, sealed and verified, from the first of *tiers* that brings it.

        A frame is valid until the next one is requested. ``ABSENT``: no tier holds the chunk;
        ``READ_FAILED``: a tier reported that it does, and did not bring it whole.
        """
        for start in range(0, len(keys), _AT_ONCE):
            todo = list(dict.fromkeys(keys[start : start + _AT_ONCE]))
            said: set[ChunkKey] = set()
            for tier in tiers:
                there = tier.contains(todo, self._deadline())
                here = [key for key, is_there in zip(todo, there, strict=True) if is_there]
                said.update(here)
                came: set[ChunkKey] = set()
                for first in range(0, len(here), STEP):
                    for key, lease in self._step(here[first : first + STEP], tier):
                        came.add(key)
                        yield key, self._stack.writer.sealed(key, lease)
                todo = [key for key in todo if key not in came]
            for key in todo:
                yield key, Reason.READ_FAILED if key in said else Reason.ABSENT

    def lacking(self, key: ChunkKey, tiers: Sequence[Tier]) -> list[Tier]:
        """Return those of *tiers* that do not hold a chunk."""
        return [tier for tier in tiers if not tier.contains([key], self._deadline())[0]]

    def room(self, payload_bytes: int) -> BlockLease:
        """Return a block for a frame that is not filled yet.

        Raises:
            PoolExhausted: no block came free in time.
            InvalidRequest: no block is that large.
        """
        return self._stack.pool.lease(payload_bytes, self._owner, self._deadline())

    def verify(self, lease: BlockLease, key: ChunkKey) -> FrameHeader | Reason:
        """Return the header of the frame in a block, or why it is unusable; label the block."""
        found = opened(Opening(self._stack.runtime.codec, lease.frame), key)
        if isinstance(found, Reason):
            return found
        return label(lease, found) or found

    def write(self, lease: BlockLease, tiers: Sequence[Tier]) -> Mapping[str, Pending | Reason]:
        """Write a verified frame to *tiers*, whatever is usually written to them. The lease stays.

        Return the pending write by tier, or the reason why the tier does not take the frame.
        """
        if lease.spec is None:
            raise ValueError("a block that holds nothing")
        found: dict[str, Pending | Reason] = {}
        for tier in tiers:
            deadline = self._deadline()
            if lease.spec.tokens < tier.rules.shortest:
                found[tier.name] = Reason.TOO_SHORT
                continue
            batch = Batch([lease.spec.key], [lease], None, patience=deadline)
            found[tier.name] = self._stack.writer.put(tier, batch, deadline)
        return found

    def _step(self, keys: Sequence[ChunkKey], tier: Tier) -> Iterator[tuple[ChunkKey, Lease]]:
        """Yield leases on a few chunks, each valid until the next one is requested."""
        for got in self._stack.fetcher.frames(tier, keys, self._owner, self._deadline()):
            yield from got.leases.items()

    def _deadline(self) -> Deadline:
        return Deadline.after(self._stack.runtime.clock, self._seconds)


def lasting(tiers: Sequence[Tier]) -> list[Tier]:
    """Return those of *tiers* that outlive the process: their chunks are not in its memory."""
    return [tier for tier in tiers if not tier.in_memory]


def writable(tiers: Sequence[Tier]) -> list[Tier]:
    """Return those of *tiers* that may be written at all."""
    return [tier for tier in tiers if tier.rules.writes is not Writes.NONE]
