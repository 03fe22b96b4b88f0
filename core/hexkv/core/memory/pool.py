"""The block pool: all the memory that chunks pass through, taken once and used again.

Copying into fresh pages costs almost four times as much as copying into used ones, so the
pool takes its memory at start and hands out the most recently freed block first.

Full chunks take a slot each. Short ones (an unfull tail, a compressed chunk) share a slot
that is carved into runs of pages, so that a thousand small chunks do not take a thousand
slots. A block is freed when the last lease on it is released, never earlier, whatever
deadline has passed.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Condition
from types import TracebackType
from typing import NamedTuple, Self

from hexkv.ports import (
    MAGIC,
    PAGE,
    ChunkKey,
    ConfigError,
    Deadline,
    Executor,
    InvalidRequest,
    KVLayout,
    Lease,
    MemoryRegion,
    PoolExhausted,
    frame_bytes,
)

_POISON = 0xDE


class Label(NamedTuple):
    """What a block holds: all that a frame's header has to say."""

    identity: str
    layout: KVLayout
    tokens: int
    serde: str = "raw"
    position: int | None = None
    """Of the chunk's first token, for which its keys are rotated, where that is known."""

    key: ChunkKey = ChunkKey(b"")
    """Whose content it is: what a tier in memory lends is compared with what was asked for."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of the chunk when no serde has made it smaller."""
        return self.layout.chunk_bytes(self.tokens)


class Block:
    """A range of the pool, and how many leases hold it."""

    __slots__ = ("holds", "label", "offset", "payload_bytes", "size", "slot", "whole")

    def __init__(self, slot: int, offset: int, size: int, payload_bytes: int, whole: bool) -> None:
        self.slot = slot
        self.offset = offset
        self.size = size
        self.payload_bytes = payload_bytes
        self.whole = whole
        self.holds = 0
        self.label: Label | None = None


class BlockLease:
    """A hold on a block; see :class:`hexkv.ports.Lease`."""

    __slots__ = ("_block", "_pool", "owner")

    def __init__(self, pool: BlockPool, block: Block, owner: str) -> None:
        self._pool = pool
        self._block: Block | None = block
        self.owner = owner

    @property
    def frame(self) -> memoryview:
        block = self._held()
        end = block.offset + frame_bytes(block.payload_bytes)
        return self._pool.memory[block.offset : end]

    @property
    def payload(self) -> memoryview:
        block = self._held()
        start = block.offset + PAGE
        return self._pool.memory[start : start + block.payload_bytes]

    @property
    def size(self) -> int:
        """Bytes of the pool that the block takes, which may be more than its frame has."""
        return self._held().size

    @property
    def label(self) -> Label | None:
        """What the block holds; ``None`` while it is being filled."""
        return self._held().label

    @label.setter
    def label(self, label: Label) -> None:
        self._held().label = label

    def holds(self, key: ChunkKey) -> bool:
        """Whether it is held, and on the whole chunk of *key*, raw or encoded."""
        block = self._block
        label = None if block is None else block.label
        if block is None or label is None or label.key != key:
            return False
        return label.serde != "raw" or block.payload_bytes == label.raw_bytes

    def shrink(self, payload_bytes: int) -> None:
        """Say how long the payload really is, once a frame's header has told.

        Raises:
            InvalidRequest: the block is shorter than that.
        """
        block = self._held()
        if frame_bytes(payload_bytes) > block.size:
            raise InvalidRequest(f"a payload of {payload_bytes} bytes does not fit its block")
        block.payload_bytes = payload_bytes

    def share(self, owner: str) -> BlockLease:
        return self._pool.hold(self._held(), owner)

    def release(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._pool.release(block, self.owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _held(self) -> Block:
        if self._block is None:
            raise InvalidRequest("the lease was released")
        return self._block


class BlockPool:
    """Hands out leases on blocks of one memory region. Safe from any thread."""

    def __init__(
        self,
        region: MemoryRegion,
        slot_bytes: int,
        *,
        poison: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Divide *region* into slots of *slot_bytes*.

        Args:
            region: closed by :meth:`close`.
            slot_bytes: bytes of the largest frame, a multiple of ``PAGE``.
            poison: debug mode: overwrite each block as it is freed, so that a use after
                release reads garbage instead of plausible KV.
            executor: how to wait; by default as threads do.

        Raises:
            ConfigError: the region does not hold one slot.
        """
        slots = len(region.buffer) // slot_bytes
        if slots < 1:
            raise ConfigError(
                f"a pool of {len(region.buffer)} bytes does not hold one chunk of {slot_bytes}"
            )
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.memory = region.buffer
        self.reclaim: Callable[[int], bool] | None = None
        """Asked to let go of that many bytes when nothing is free; whether it let go of any."""

        self._region = region
        self._poison = poison
        self._free = list(range(slots - 1, -1, -1))
        self._carved: dict[int, list[tuple[int, int]]] = {}
        self._owners: Counter[str] = Counter()
        self._held_bytes = 0
        self._freed = 0
        self._changed = Condition()
        self._closed = False
        self._wait = _wait if executor is None else executor.wait

    @property
    def capacity(self) -> int:
        """Bytes that slots take up."""
        return self.slots * self.slot_bytes

    def fits(self, payload_bytes: int) -> bool:
        """Whether a chunk of *payload_bytes* could ever be leased."""
        return frame_bytes(payload_bytes) <= self.slot_bytes

    def lease(self, payload_bytes: int, owner: str, deadline: Deadline) -> BlockLease:
        """A lease on a block with room for *payload_bytes*, its header empty.

        Takes a free block, else asks :attr:`reclaim` for one, else waits for a release.

        Raises:
            PoolExhausted: none came free before *deadline*.
            InvalidRequest: no block is that large.
        """
        size = frame_bytes(payload_bytes)
        if size > self.slot_bytes:
            raise InvalidRequest(f"a frame of {size} bytes is larger than the pool's blocks")
        while True:
            with self._changed:
                block = self._take(size, payload_bytes)
                if block is not None:
                    return self._grant_empty(block, owner)
            # Outside the lock: the memory tier releases its leases in here. Each success
            # makes the tier smaller, so this ends.
            if self.reclaim is not None and self.reclaim(size):
                continue
            with self._changed:
                block = self._take(size, payload_bytes)
                if block is not None:
                    return self._grant_empty(block, owner)
                if self._closed or deadline.expired or not self._await_change(deadline):
                    raise PoolExhausted(self._why(size))

    def hold(self, block: Block, owner: str) -> BlockLease:
        """Another lease on a block that is held already.

        Raises:
            InvalidRequest: its last hold was released: the memory may be another chunk's.
        """
        with self._changed:
            if not block.holds:
                raise InvalidRequest("the block was released")
            return self._grant(block, owner)

    def release(self, block: Block, owner: str) -> None:
        """Take back one hold. Called by the lease, once."""
        with self._changed:
            block.holds -= 1
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]
            if block.holds:
                return
            if self._poison:
                end = block.offset + block.size
                self.memory[block.offset : end] = bytes([_POISON]) * block.size
            self._held_bytes -= block.size
            self._give_back(block)
            self._freed += 1
            self._changed.notify_all()

    def ledger(self) -> Mapping[str, int]:
        """How many leases each owner holds. Empty at rest, but for what tiers keep."""
        with self._changed:
            return dict(self._owners)

    @property
    def held_bytes(self) -> int:
        """Bytes of blocks that somebody holds."""
        with self._changed:
            return self._held_bytes

    def close(self) -> Mapping[str, int]:
        """Give the memory back if nothing is leased. What is still leased, by owner.

        A region with leases on it stays allocated: a late I/O must not write into memory
        that belongs to somebody else by then. Calling it twice is allowed.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left = dict(self._owners)
        if not left:
            self.memory = memoryview(b"")
            self._region.close()
        return left

    def _await_change(self, deadline: Deadline) -> bool:
        freed = self._freed
        return self._wait(self._changed, lambda: self._closed or self._freed != freed, deadline)

    def _grant_empty(self, block: Block, owner: str) -> BlockLease:
        # Nothing of the former chunk's header may vouch for the new one.
        self.memory[block.offset : block.offset + len(MAGIC)] = bytes(len(MAGIC))
        return self._grant(block, owner)

    def _grant(self, block: Block, owner: str) -> BlockLease:
        block.holds += 1
        self._owners[owner] += 1
        if block.holds == 1:
            self._held_bytes += block.size
        return BlockLease(self, block, owner)

    def _take(self, size: int, payload_bytes: int) -> Block | None:
        if self._closed:
            return None
        if size * 2 > self.slot_bytes:
            if not self._free:
                return None
            slot = self._free.pop()
            return Block(slot, slot * self.slot_bytes, self.slot_bytes, payload_bytes, whole=True)
        for slot, runs in self._carved.items():
            for i, (start, end) in enumerate(runs):
                if end - start >= size:
                    if end - start == size:
                        del runs[i]
                    else:
                        runs[i] = (start + size, end)
                    return Block(slot, start, size, payload_bytes, whole=False)
        if not self._free:
            return None
        slot = self._free.pop()
        start = slot * self.slot_bytes
        self._carved[slot] = [(start + size, start + self.slot_bytes)]
        return Block(slot, start, size, payload_bytes, whole=False)

    def _give_back(self, block: Block) -> None:
        if block.whole:
            self._free.append(block.slot)
            return
        runs = self._carved[block.slot]
        insort(runs, (block.offset, block.offset + block.size))
        merged = [runs[0]]
        for start, end in runs[1:]:
            if start == merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        if merged[0][1] - merged[0][0] == self.slot_bytes:
            del self._carved[block.slot]
            self._free.append(block.slot)
        else:
            self._carved[block.slot] = merged

    def _why(self, size: int) -> str:
        owners = ", ".join(f"{owner}: {count}" for owner, count in sorted(self._owners.items()))
        return f"no block of {size} bytes in {self.slots} slots; leases: {owners or 'none'}"


_TASK_BYTES = 32 << 20


def per_task(pool: BlockPool) -> int:
    """How many chunks one worker reads or writes at a time: few large ones, many small ones."""
    return max(1, _TASK_BYTES // pool.slot_bytes)


def _wait(condition: Condition, ready: Callable[[], bool], deadline: Deadline) -> bool:
    return condition.wait_for(ready, deadline.remaining())


def _is_a_lease(lease: BlockLease) -> Lease:
    return lease  # mypy checks here that BlockLease keeps the port's promises
