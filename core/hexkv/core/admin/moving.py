"""Move chunks between tiers, and replace them by smaller or plain ones.

Everything here works on frames: a chunk is read, verified, written elsewhere or in place, and only
then deleted where it was. A store's write replaces a frame as a whole, so each chunk can be read
from some tier at every moment.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import NamedTuple

from hexkv.core.admin.replacing import replace
from hexkv.core.io.rules import Priority, Refused
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.read.encoding import encode, open_into
from hexkv.core.tiers.read.intake import read_frames
from hexkv.core.tiers.runtime import RAW
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.write.counting import counted
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkSpec,
    Deadline,
    FrameHeader,
    InvalidRequest,
    KVLayout,
    Lease,
    PoolExhausted,
    Reason,
    StoreError,
    release_all,
)

STEP = 8
"""The number of chunks in blocks at a time."""

_FAILED = (Reason.FAILED, Reason.TIMED_OUT)


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


@dataclass(slots=True)
class Obtained:
    """The result of reading some chunks."""

    leases: dict[ChunkKey, Lease] = field(default_factory=dict)
    again: list[ChunkKey] = field(default_factory=list)
    """Chunks without a block while the others held theirs."""

    short: int = 0
    """The largest payload among these in bytes."""

    absent: int = 0
    failed: int = 0


class _Sink:
    """Takes frames of all valid sizes into blocks of the pool, without waiting for one.

    The worker owns the blocks. Those of the call would be released at its end, and a late store
    would write into memory that belongs to another chunk by then.
    """

    def __init__(self, lease: Callable[[int], BlockLease]) -> None:
        self.leases: dict[int, BlockLease] = {}
        self.wrong: set[int] = set()
        self.short: dict[int, int] = {}
        """The payload bytes of chunks without a block."""

        self._lease = lease
        self._ended = False
        self._unwanted = False
        self._lock = Lock()

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        former = self.leases.pop(index, None)
        if former is not None:
            former.release()
        self.short.pop(index, None)
        if size < PAGE or size % PAGE:
            self.wrong.add(index)
            return None
        try:
            self.leases[index] = block = self._lease(size - PAGE)
        except PoolExhausted:
            self.short[index] = size - PAGE
            return None
        except InvalidRequest:  # larger than any block, so it is not a valid frame
            return None
        return block.frame

    def end(self) -> None:
        """Note that the worker is done: the remaining blocks are verified."""
        with self._lock:
            self._ended = True
            free = self._unwanted
        if free:
            self._release()

    def drop(self) -> None:
        """Release the blocks, once the worker is done with them: no caller waits."""
        with self._lock:
            self._unwanted = True
            free = self._ended
        if free:
            self._release()

    def _release(self) -> None:
        for lease in self.leases.values():
            lease.release()


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
        for got in self.obtain([key], tier, 1):
            for lease in got.leases.values():
                return lease.spec
        return None

    def _transfer(
        self, keys: Sequence[ChunkKey], source: Tier, target: Tier, *, delete: bool
    ) -> Moved:
        done = absent = failed = 0
        if source is target:
            return Moved()
        for got in self.obtain(keys, source, STEP):
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
        for got in self.obtain(keys, tier, 1):
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

    def obtain(self, keys: Sequence[ChunkKey], tier: Tier, step: int) -> Iterator[Obtained]:
        """Yield whole chunks, up to *step* at a time, released when the next are requested.

        Waits for memory only while it holds none: another call that does the same may hold the
        memory that this one waits for.
        """
        todo = deque(keys)
        while todo:
            part = [todo.popleft() for _ in range(min(step, len(todo)))]
            with ExitStack() as held:
                obtain = self._lend if tier.lends else self._read
                got = obtain(part, tier, held)
                yield got
            todo.extendleft(reversed(got.again))
            if got.again and not got.leases and not self._await_block(got.short):
                yield Obtained(failed=len(todo))
                return

    def _lend(self, keys: Sequence[ChunkKey], tier: Tier, held: ExitStack) -> Obtained:
        lent = zip(keys, tier.calls.get_lease(keys, self._owner), strict=True)
        got = Obtained({key: lease for key, lease in lent if lease is not None})
        held.callback(release_all, list(got.leases.values()))
        got.absent = len(keys) - len(got.leases)
        return got

    def _read(self, keys: Sequence[ChunkKey], tier: Tier, held: ExitStack) -> Obtained:
        sink = _Sink(partial(self._block, owner=f"read {tier.name}"))
        absent = 0

        def read() -> bool | None:
            nonlocal absent
            why, well, _ = read_frames(
                self._runtime,
                tier,
                keys,
                sink,
                lambda i, header: label(sink.leases.get(i), header),
                self.deadline,
            )
            for i, reason in enumerate(why):
                if reason is None:
                    continue
                if i in sink.leases:
                    sink.leases.pop(i).release()
                absent += i not in sink.short and reason not in _FAILED
            specs = [lease.spec for lease in sink.leases.values()]
            tier.link.ended(self._runtime.clock.now(), sum(spec.tokens for spec in specs if spec))
            return well

        def work(go: bool) -> tuple[bool, bool | None]:
            try:
                return go, read() if go else None
            finally:
                sink.end()

        try:
            ticket = tier.submit(Priority.GET, 0, work, self.deadline)
        except Refused:
            return Obtained(failed=len(keys))
        if not (ticket.wait(self.deadline) and ticket.result):
            sink.drop()
            return Obtained(failed=len(keys))
        got = Obtained(again=[keys[i] for i in sorted(sink.short)])
        got.short = max(sink.short.values(), default=0)
        for i, lease in sink.leases.items():
            got.leases[keys[i]] = held.enter_context(lease.share(self._owner))
        sink.drop()
        got.absent = absent
        got.failed = len(keys) - len(got.leases) - len(got.again) - absent
        return got

    def _block(self, payload_bytes: int, owner: str = "") -> BlockLease:
        """Return a block that is free, or evicted from the memory tier, now; by default the call's.

        Raises:
            PoolExhausted: there is none.
        """
        now = Deadline(self._runtime.clock, 0.0)
        return self._runtime.pool.lease(payload_bytes, owner or self._owner, now)

    def _await_block(self, payload_bytes: int) -> bool:
        """Wait for such a block. Return True if one comes free in time."""
        try:
            self._runtime.pool.lease(payload_bytes, self._owner, self.deadline).release()
        except PoolExhausted:
            return False
        return not self.deadline.expired


def label(lease: BlockLease | None, header: FrameHeader) -> Reason | None:
    """Label the block of a verified frame with its spec. Return the reason if it is unusable."""
    if lease is None:
        return Reason.REFUSED
    spec = spec_of(header)
    if spec is None:
        return Reason.CORRUPT
    lease.shrink(header.payload_bytes)
    lease.spec = spec
    return None


def spec_of(header: FrameHeader) -> ChunkSpec | None:
    """Return the chunk of a frame; None if its sizes are not those of the layout it names."""
    try:
        layout = KVLayout.parse(json.loads(header.identity)["layout"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    spec = ChunkSpec(
        header.key, header.identity, layout, header.tokens, header.serde, header.position
    )
    raw = header.serde != RAW or header.payload_bytes == header.raw_bytes
    return spec if raw and 0 < spec.raw_bytes == header.raw_bytes else None
