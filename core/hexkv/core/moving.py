"""Moving chunks between tiers, and replacing them by smaller or plain ones.

Everything here works on frames: a chunk is read, verified, written elsewhere or in its own
place, and only then deleted where it was. A store's write replaces a frame as a whole, so
at every moment each chunk can be read from somewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock

from hexkv.core.fetching import open_into
from hexkv.core.history import Cause
from hexkv.core.pool import BlockLease, Label
from hexkv.core.remembering import set_aside
from hexkv.core.runtime import RAW
from hexkv.core.scheduler import Priority, Refused
from hexkv.core.stack import TierStack
from hexkv.core.tiers import Tier
from hexkv.core.writing import Batch, encode
from hexkv.ports import (
    PAGE,
    ChunkKey,
    Corrupt,
    CorruptFrame,
    Deadline,
    Hit,
    Item,
    KVLayout,
    PoolExhausted,
    Stored,
)

_STEP = 8
"""Chunks that are in blocks at a time."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of the chunks of a move, copy or change of form."""

    done: int = 0
    """Chunks that are where, and as, they were wanted, those that were so before included."""

    absent: int = 0
    """Chunks that the source does not hold."""

    failed: int = 0
    """Chunks that stayed as they were."""

    saved_bytes: int = 0
    """How much less room they take on the tier; negative for more."""


class _Sink:
    """Takes frames of any of our sizes into blocks of the pool."""

    def __init__(self, lease: Callable[[int], BlockLease | None]) -> None:
        self.leases: dict[int, BlockLease] = {}
        self._lease = lease
        self._ended = False
        self._unwanted = False
        self._lock = Lock()

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        if size < PAGE or size % PAGE:
            return None
        former = self.leases.pop(index, None)
        if former is not None:
            former.release()
        block = self._lease(size - PAGE)
        if block is None:
            return None
        self.leases[index] = block
        return block.frame

    def end(self) -> None:
        """The worker is done: what is left it has verified."""
        with self._lock:
            self._ended = True
            free = self._unwanted
        if free:
            self._release()

    def drop(self) -> None:
        """Nobody waits any more: the blocks go as soon as the worker is done with them."""
        with self._lock:
            self._unwanted = True
            free = self._ended
        if free:
            self._release()

    def _release(self) -> None:
        for lease in self.leases.values():
            lease.release()


class Mover:
    """One maintenance call: moves frames through the pool in the name of *owner*."""

    def __init__(self, stack: TierStack, owner: str, deadline: Deadline) -> None:
        self._stack = stack
        self._runtime = stack.runtime
        self._owner = owner
        self._deadline = deadline

    def copy(self, keys: Sequence[ChunkKey], source: Tier, target: Tier) -> Moved:
        """Write the frames of *source* to *target*, too."""
        return self._transfer(keys, source, target, delete=False)

    def move(self, keys: Sequence[ChunkKey], source: Tier, target: Tier) -> Moved:
        """Likewise, and delete what has arrived."""
        return self._transfer(keys, source, target, delete=True)

    def compress(self, keys: Sequence[ChunkKey], tier: Tier, serde: str) -> Moved:
        """Replace plain frames by encoded ones, where those are smaller."""

        def change(key: ChunkKey, lease: BlockLease, label: Label) -> BlockLease | None:
            if label.serde != RAW:
                return None
            frame = encode(self._runtime, key, lease, serde)
            if frame is None:
                return None
            block = self._block(len(frame) - PAGE)
            if block is not None:
                block.frame[:] = frame
                block.label = label._replace(serde=self._runtime.serdes[serde].name)
            return block

        return self._change(keys, tier, change)

    def decompress(self, keys: Sequence[ChunkKey], tier: Tier) -> Moved:
        """Replace encoded frames by plain ones."""

        def change(key: ChunkKey, lease: BlockLease, label: Label) -> BlockLease | None:
            if label.serde == RAW:
                return None
            block = self._block(label.raw_bytes)
            if block is None:
                return None
            block.label = label._replace(serde=RAW)
            if open_into(self._runtime, lease.frame, key, block) is None:
                self._stack.writer.seal(key, block)
                return block
            block.release()
            return None

        return self._change(keys, tier, change)

    def _transfer(
        self, keys: Sequence[ChunkKey], source: Tier, target: Tier, *, delete: bool
    ) -> Moved:
        done = absent = failed = 0
        for start in range(0, len(keys), _STEP):
            if source is target:
                break
            part = keys[start : start + _STEP]
            with ExitStack() as held:
                got = self._obtain(part, source, held)
                absent += sum(lease is None for lease in got.values())
                here = [key for key in part if got[key] is not None]
                batch = Batch(here, [lease for key in here if (lease := got[key])], None)
                written = self._stack.put(batch, self._deadline, [target])
                arrived = written.on.get(target.name, [False] * len(here))
                ticket = written.pending.get(target.name)
                if ticket is not None and ticket.wait(self._deadline):
                    arrived = ticket.result or arrived
            there = [key for key, ok in zip(here, arrived, strict=True) if ok]
            done += len(there)
            failed += len(here) - len(there)
            if delete and there:
                self._stack.moves += 1
                why = Cause.MOVED, f"to {target.name}"
                self._stack.forget(there, [source], self._deadline, why)
        return Moved(done, absent, failed)

    def _change(
        self,
        keys: Sequence[ChunkKey],
        tier: Tier,
        change: Callable[[ChunkKey, BlockLease, Label], BlockLease | None],
    ) -> Moved:
        done = absent = failed = saved = 0
        for key in keys:
            with ExitStack() as held:
                lease = self._obtain([key], tier, held)[key]
                if lease is None or lease.label is None:
                    absent += 1
                    continue
                block = change(key, lease, lease.label)
                if block is None:
                    done += 1  # it is in the wanted form, or no other is better
                    continue
                with block:
                    size = len(lease.frame) - len(block.frame)
                    if self._replace(tier, key, block):
                        done += 1
                        saved += size
                    else:
                        failed += 1
        return Moved(done, absent, failed, saved)

    def _obtain(
        self, keys: Sequence[ChunkKey], tier: Tier, held: ExitStack
    ) -> dict[ChunkKey, BlockLease | None]:
        """Whole, sealed frames of chunks, each with its label, until *held* closes."""
        got: dict[ChunkKey, BlockLease | None] = dict.fromkeys(keys)
        if tier.sharing is not None:
            for key, lease in zip(keys, tier.lend(keys, self._owner), strict=True):
                if isinstance(lease, BlockLease):
                    held.enter_context(lease)
                    self._stack.writer.seal(key, lease)
                    got[key] = lease
            return got
        sink = _Sink(self._block)

        def work(go: bool) -> tuple[bool, bool | None]:
            if not go:
                return False, None
            outcomes = tier.read(keys, sink, self._deadline)
            damaged = []
            for i, outcome in enumerate(outcomes):
                arrived = isinstance(outcome, Hit)
                if arrived and self._label(keys[i], sink.leases.get(i)):
                    continue
                if arrived or isinstance(outcome, Corrupt):
                    damaged.append(keys[i])
                if i in sink.leases:
                    sink.leases.pop(i).release()
            set_aside(self._runtime, tier, damaged, self._deadline)
            sink.end()
            return True, None

        try:
            ticket = tier.lane(Priority.GET).submit(Priority.GET, 0, work, self._deadline)
        except Refused:
            return got
        if ticket.wait(self._deadline) and ticket.result:
            for i, lease in sink.leases.items():
                got[keys[i]] = held.enter_context(lease)
        else:
            sink.drop()
        return got

    def _label(self, key: ChunkKey, lease: BlockLease | None) -> bool:
        """Verify what was read, and label the block with what the frame says."""
        if lease is None:
            return False
        try:
            header = self._runtime.codec.open(lease.frame, key)
            layout = KVLayout.parse(json.loads(header.identity)["layout"])
        except (CorruptFrame, ValueError, KeyError):
            return False
        lease.shrink(header.payload_bytes)
        lease.label = Label(header.identity, layout, header.tokens, header.serde)
        return True

    def _replace(self, tier: Tier, key: ChunkKey, block: BlockLease) -> bool:
        """Put *block* in the place of the chunk that is there; whether it is there now."""
        writer, size = self._stack.writer, len(block.frame)
        if tier.index is not None:
            former = tier.index.size(key)
            victims = tier.index.resize(key, max(size, former or 0))
            if former is None or victims is None:
                return False
            if not writer.evict(tier, victims, self._deadline):
                tier.index.resize(key, former)
                return False
        ok = self._write(tier, key, block)
        if tier.index is not None:
            tier.index.resize(key, size if ok else former or 0)
        return ok

    def _write(self, tier: Tier, key: ChunkKey, block: BlockLease) -> bool:
        if tier.sharing is not None:
            return tier.keep(key, block)
        mine = block.share(self._owner)

        def work(go: bool) -> tuple[bool, bool | None]:
            with mine:
                if not go:
                    return False, None
                (outcome,) = tier.write([Item(key, mine.frame)], self._deadline)
                return isinstance(outcome, Stored), None

        try:
            ticket = tier.lane(Priority.PUT).submit(
                Priority.PUT, len(block.frame), work, self._deadline
            )
        except Refused:
            mine.release()
            return False
        return bool(ticket.wait(self._deadline) and ticket.result)

    def _block(self, payload_bytes: int) -> BlockLease | None:
        if not self._runtime.pool.fits(payload_bytes):
            return None
        try:
            return self._runtime.pool.lease(payload_bytes, self._owner, self._deadline)
        except PoolExhausted:
            return None
