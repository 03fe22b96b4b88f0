"""The frames of blocks, in the form to write to a tier, and the bytes that they take there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock

from hexkv.core.frames.codec import layer_parts
from hexkv.core.tiers.read.encoding import encode, form_on
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline, FrameHeader, Lease, StoreError

log = logging.getLogger(__name__)

Evict = Callable[[Tier, Sequence[ChunkKey], Deadline], object]

_STRIPES = 16


class Framing:
    """Makes the frames of blocks. Safe from any thread."""

    def __init__(self, runtime: TierRuntime) -> None:
        self._runtime = runtime
        self._sealing = tuple(Lock() for _ in range(_STRIPES))

    def frame(self, tier: Tier, key: ChunkKey, lease: Lease) -> memoryview:
        """Return the frame of a block in the form to write to a *tier* that does I/O."""
        spec = lease.spec
        name = RAW
        if spec is not None and spec.serde == RAW:
            name = form_on(self._runtime, tier, lease, spec)
        if name != RAW:
            try:
                encoded = encode(self._runtime, key, lease, name)
            except StoreError as error:
                log.warning("tier %s: chunks are kept as they are: %s", tier.name, error)
                encoded = None
            if encoded is not None:
                return encoded
        return self.sealed(key, lease)

    def sealed(self, key: ChunkKey, lease: Lease) -> memoryview:
        """Return the whole frame of a block; its header is written once, even for several tiers.

        It is the block's own memory, except for read-only blocks without a header: of those it is a
        copy.
        """
        spec, frame = lease.spec, lease.frame
        if spec is None:
            raise ValueError("a block that holds nothing cannot be sealed")
        with self._sealing[hash(key) % _STRIPES]:
            if not self._runtime.codec.is_sealed(frame):
                if frame.readonly:
                    frame = memoryview(bytearray(frame))
                header = FrameHeader(
                    key=key,
                    identity=spec.identity,
                    tokens=spec.tokens,
                    serde=spec.serde,
                    raw_bytes=spec.raw_bytes,
                    payload_bytes=len(lease.payload),
                    created=self._runtime.clock.wall(),
                    position=spec.position,
                    parts=layer_parts(spec.layout, spec.tokens) if spec.serde == RAW else (),
                )
                self._runtime.codec.seal(frame, header)
        return frame


def expected(tier: Tier, lease: Lease) -> int:
    """Return bytes to reserve: of the pool where blocks are kept, else of the chunk's frame."""
    return lease.size if tier.in_pool else len(lease.frame)


def counted(tier: Tier, key: ChunkKey, lease: Lease) -> int:
    """Return the bytes that a chunk counts on a tier, or the expected bytes if it is not there."""
    size = tier.index.size(key)
    return expected(tier, lease) if size is None else size


def recount(
    tier: Tier, keys: Sequence[ChunkKey], evict: Evict, deadline: Deadline
) -> list[ChunkKey]:
    """Count stored chunks by the memory that they take in a store with memory of its own.

    Only the store knows these sizes, and only after the write; so a batch may exceed the budget
    until this ends.

    Args:
        tier: the tier that keeps them.
        keys: the chunks.
        evict: deletes the victims of a chunk that takes more, before the next one is counted.
        deadline: for deleting.

    Returns:
        those of *keys* that did not stay, for lack of space.
    """
    if not tier.own_memory:
        return []
    for key, lease in zip(keys, tier.calls.get_lease(keys, f"count {tier.name}"), strict=True):
        if lease is None:
            continue
        with lease:
            size = lease.size
        victims = tier.index.resize(key, size)
        # None: there is no space for its size, so the chunk itself cannot stay.
        evict(tier, tier.index.discard([key]) if victims is None else victims, deadline)
    return [key for key, here in zip(keys, tier.index.contains(keys), strict=True) if not here]
