"""Move chunks between tiers, and replace them by smaller or plain ones.

Everything here works on frames: a chunk is read, verified, written elsewhere or in place, and only
then deleted where it was. A store's write replaces a frame as a whole, so each chunk can be read
from some tier at every moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.read.encoding import encode, open_into
from hexkv.core.tiers.read.pieces import STEP, Obtained
from hexkv.core.tiers.runtime import RAW
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.write.framing import counted
from hexkv.operate.replacing import replace
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkSpec,
    Deadline,
    Lease,
    PoolExhausted,
    Reason,
    StoreError,
)


class Moved(NamedTuple):
    """The result of a move, a copy or a change of form."""

    done: int = 0
    """Chunks that are in the wanted place and form, also those that were there before."""

    absent: int = 0
    """Chunks that the source does not hold."""

    failed: int = 0
    """Chunks that stayed unchanged."""

    saved_bytes: int = 0
    """The bytes saved on the tier; negative if the chunks take more."""


class Mover:
    """One maintenance call: moves frames through the pool, in leases of *owner*."""

    def __init__(self, stack: TierStack, owner: str, deadline: Deadline) -> None:
        self._stack = stack
        self._runtime = stack.runtime
        self._owner = owner
        self.deadline = deadline
        """The deadline of the whole call."""

    def copy(self, keys: Sequence[ChunkKey], source: Tier, target: Tier) -> Moved:
        """Write the frames of *source* to *target* as well."""
        return self._transfer(keys, source, target, delete=False)

    def move(self, keys: Sequence[ChunkKey], source: Tier, target: Tier) -> Moved:
        """Write the frames of *source* to *target*, and delete those that arrived from *source*."""
        return self._transfer(keys, source, target, delete=True)

    def compress(self, keys: Sequence[ChunkKey], tier: Tier, serde: str) -> Moved:
        """Replace plain frames by encoded ones, if those are smaller."""

        def change(key: ChunkKey, lease: Lease, spec: ChunkSpec) -> BlockLease | None:
            if spec.serde != RAW:
                return None
            frame = encode(self._runtime, key, lease, serde)
            if frame is None:
                return None
            block = self._block(len(frame) - PAGE)
            block.frame[:] = frame
            block.shrink(self._runtime.codec.peek(frame).payload_bytes)
            block.spec = spec._replace(serde=self._runtime.serdes[serde].name)
            return block

        return self._change(keys, tier, change)

    def decompress(self, keys: Sequence[ChunkKey], tier: Tier) -> Moved:
        """Replace encoded frames by plain ones."""

        def change(key: ChunkKey, lease: Lease, spec: ChunkSpec) -> BlockLease | None:
            if spec.serde == RAW:
                return None
            block = self._block(spec.raw_bytes)
            block.spec = spec._replace(serde=RAW)
            why = open_into(self._runtime, lease.frame, key, block)
            if why is not None:
                block.release()
                raise StoreError(why)
            self._stack.writer.sealed(key, block)
            return block

        return self._change(keys, tier, change)

    def spec(self, key: ChunkKey, tier: Tier) -> ChunkSpec | None:
        """Return the spec of a chunk of *tier*; ``None`` if it cannot be read."""
        for got in self._frames([key], tier, 1):
            for lease in got.leases.values():
                return lease.spec
        return None

    def _transfer(
        self, keys: Sequence[ChunkKey], source: Tier, target: Tier, *, delete: bool
    ) -> Moved:
        done = absent = failed = 0
        if source is target:
            return Moved()
        for got in self._frames(keys, source, STEP):
            absent += got.absent
            failed += got.failed
            here = list(got.leases)
            batch = Batch(here, list(got.leases.values()), None)
            written = self._stack.writer.put(target, batch, self.deadline)
            written.wait(self.deadline)
            there = [key for key, ok in zip(here, written.result, strict=True) if ok]
            done += len(there)
            failed += len(here) - len(there)
            if delete and there:
                self._stack.moves += 1
                why = Reason.MOVED, f"to {target.name}"
                self._stack.forget(there, [source], self.deadline, why)
        return Moved(done, absent, failed)

    def _change(
        self,
        keys: Sequence[ChunkKey],
        tier: Tier,
        change: Callable[[ChunkKey, Lease, ChunkSpec], BlockLease | None],
    ) -> Moved:
        done = absent = failed = saved = 0
        for got in self._frames(keys, tier, 1):
            absent += got.absent
            failed += got.failed
            for key, lease in got.leases.items():
                try:
                    block = change(key, lease, lease.spec) if lease.spec else None
                except (PoolExhausted, StoreError):
                    failed += 1
                    continue
                if block is None:
                    done += 1  # it is in the wanted form, or no other is better
                    continue
                with block:
                    before = counted(tier, key, lease)
                    if replace(self._stack.writer, tier, key, block, self._owner, self.deadline):
                        done += 1
                        saved += before - counted(tier, key, block)
                    else:
                        failed += 1
        return Moved(done, absent, failed, saved)

    def _frames(self, keys: Sequence[ChunkKey], tier: Tier, step: int) -> Iterator[Obtained]:
        return self._stack.fetcher.frames(tier, keys, self._owner, self.deadline, step)

    def _block(self, payload_bytes: int) -> BlockLease:
        """Return a block that is free, or evicted from the memory tier, now.

        Raises:
            PoolExhausted: there is none.
        """
        now = Deadline(self._runtime.clock, 0.0)
        return self._runtime.pool.lease(payload_bytes, self._owner, now)
