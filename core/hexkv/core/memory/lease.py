"""Leases: holds on blocks of a memory, and the ledger of their owners."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from operator import attrgetter
from threading import RLock
from typing import NoReturn, Self

from hexkv.core.home import Home
from hexkv.core.memory.slots import Block, Slots
from hexkv.core.turns import Line
from hexkv.ports import MAGIC, PAGE, ChunkSpec, EngineBusy, InvalidRequest, Lease, frame_bytes

_POISON = 0xDE
_MAGIC_BYTES = len(MAGIC)
_NO_MAGIC = bytes(_MAGIC_BYTES)

_ledger_of = attrgetter("_ledger")


class BlockLease:
    """A hold on a block; see :class:`hexkv.ports.Lease`.

    Its frame, payload and spec are plain attributes, read many times for each chunk. They are
    deleted on release: a later access raises ``InvalidRequest``.
    """

    __slots__ = (
        "_block",
        "_ledger",
        "frame",
        "offset",
        "owner",
        "payload",
        "size",
        "spec",
        "token",
    )

    frame: memoryview
    payload: memoryview
    """The payload in the frame. All leases on a block have the same two views."""

    def __init__(
        self,
        ledger: Ledger,
        block: Block,
        owner: str,
        token: int,
        frame: memoryview,
        payload: memoryview,
        spec: ChunkSpec | None,
    ) -> None:
        self._ledger = ledger
        self.owner = owner
        self.token = token
        """Its number in the pool's ledger."""

        self.frame = frame
        self.payload = payload
        self.offset = block.offset
        """The offset of the block in the pool."""

        self.size = block.size
        """The bytes of the pool that the block takes, which may exceed those of its frame."""

        self.spec = spec
        """The chunk in the block; ``None`` while it is being filled. Shares start with the same."""

        self._block: Block | None = block

    @property
    def shared(self) -> bool:
        """True if another lease also holds the block."""
        return self._held().holds > 1

    def shrink(self, payload_bytes: int) -> None:
        """Set the actual length of the payload, once it is known from a frame's header.

        Raises:
            InvalidRequest: the block is shorter than that.
        """
        block = self._held()
        size = frame_bytes(payload_bytes)
        if size > block.size:
            raise InvalidRequest(f"a payload of {payload_bytes} bytes does not fit its block")
        self.frame = self._ledger.memory[block.offset : block.offset + size]
        self.payload = self.frame[PAGE : PAGE + payload_bytes]

    def share(self, owner: str) -> BlockLease:
        return self._ledger.hold([self], owner)[0]

    def release(self) -> None:
        if self._block is not None:
            self._ledger.release([self])

    @property
    def holds(self) -> bool:
        """False once it was released."""
        return self._block is not None

    @staticmethod
    def end(leases: Sequence[BlockLease]) -> None:
        """Mark *leases* released; the ledger has already updated its records."""
        for lease in leases:
            if lease._block is not None:
                lease._block = None
                del lease.frame, lease.payload, lease.size, lease.spec, lease.offset

    @staticmethod
    def share_run(leases: Sequence[BlockLease], owner: str) -> Iterable[BlockLease]:
        """See :class:`hexkv.ports.SupportsRuns`."""
        ledgers: set[Ledger] = set(map(_ledger_of, leases))
        if len(ledgers) == 1:
            return ledgers.pop().hold(leases, owner)
        return (lease.share(owner) for lease in leases)

    @staticmethod
    def release_run(leases: Sequence[BlockLease]) -> None:
        """See :class:`hexkv.ports.SupportsRuns`."""
        ledgers: set[Ledger] = set(map(_ledger_of, leases))
        if len(ledgers) == 1:
            ledgers.pop().release(leases)
        for ledger in ledgers:
            ledger.release([lease for lease in leases if lease._ledger is ledger])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_block", None) is not None:
            self._ledger.lost.append((self.owner, self.token))

    def __getattr__(self, name: str) -> NoReturn:
        if name in BlockLease.__slots__ and name != "_block":
            raise InvalidRequest("the lease was released")
        raise AttributeError(name)

    def _held(self) -> Block:
        if self._block is None:
            raise InvalidRequest("the lease was released")
        return self._block


class Ledger:
    """The holds of each owner on the blocks of one memory, and the free blocks.

    Only the holds are authoritative; everything else follows from them, and is derived again after
    a change that an unexpected exception interrupted. Safe from any thread.
    """

    def __init__(self, memory: memoryview, slots: int, slot_bytes: int, *, poison: bool) -> None:
        """Divide *memory*; for *poison* see :class:`~hexkv.core.memory.pool.BlockPool`."""
        self.memory = memory
        self.held: dict[str, dict[int, Block]] = {}
        """Blocks by owner and token."""

        self.lost: deque[tuple[str, int]] = deque()
        """Owners and tokens of leases that died unreleased. That may happen at any point, even
        inside a change, so the next call takes them back."""

        self.swept = 0
        """The number of leases taken back that their owners had left behind."""

        self.freed = 0
        """How often a block came free."""

        # Entered directly, not through the condition: no signal comes between it and the body.
        self.lock = RLock()
        self.line = Line(self.lock)
        # True if this thread has the lock: then the call came from a signal handler.
        self._changing: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined] # as Condition asks it
        self._home = Home()
        self.poison = poison
        self._slots = Slots(slots, slot_bytes)
        self._tokens = count()
        self._torn = False
        self._held_bytes = 0

    def grant(self, payloads: Sequence[int], owner: str) -> list[BlockLease]:
        """Lease free blocks for the first of *payloads*, with empty headers.

        As many as there are free blocks. Under the lock.
        """
        self._begin()
        memory, own_blocks = self.memory, self.held.setdefault(owner, {})
        kinds = set(payloads)
        sizes = dict(zip(kinds, map(frame_bytes, kinds), strict=True))
        frames = list(map(sizes.__getitem__, payloads))
        blocks, leases, taken = self._slots.take(frames), [], 0
        rows = zip(blocks, frames, payloads, self._tokens, strict=False)
        for block, size, payload, token in rows:
            start = block.offset
            # No part of the former chunk's header may validate the new one. Unused memory is read
            # only: a first write backs a huge page, for milliseconds under the interpreter's lock.
            if memory[start]:
                memory[start : start + _MAGIC_BYTES] = _NO_MAGIC
            frame = memory[start : start + size]
            view = frame[PAGE : PAGE + payload]
            leases.append(BlockLease(self, block, owner, token, frame, view, None))
            own_blocks[token] = block
            block.holds = 1
            taken += block.size
        self._held_bytes += taken
        if not own_blocks:
            del self.held[owner]
        self._torn = False
        return leases

    def adopt(self, places: Sequence[tuple[int, int, int]], owner: str) -> list[BlockLease]:
        """Lease blocks as another process had divided this memory, with their frames untouched.

        Each place is an offset, bytes of the block, and bytes of the payload; one that comes twice
        is one block, held twice. No block may be leased yet. Under the lock.

        Raises:
            InvalidRequest: these are no blocks of this memory, or two of them overlap.
        """
        if self.held:
            raise InvalidRequest("something is leased already")
        blocks = self._slots.blocks(places)
        self._torn = True
        own_blocks = self.held.setdefault(owner, {})
        leases = []
        for (start, size, payload), token in zip(places, self._tokens, strict=False):
            block = own_blocks[token] = blocks[start, size]
            frame = self.memory[start : start + frame_bytes(payload)]
            view = frame[PAGE : PAGE + payload]
            leases.append(BlockLease(self, block, owner, token, frame, view, None))
        self._mend()
        return leases

    def own(self, lease: Lease | None) -> BlockLease | None:
        """Return *lease* if it is on a block of this ledger; only here its class is checked."""
        return lease if isinstance(lease, BlockLease) and lease._ledger is self else None

    def places(self) -> Mapping[int, tuple[int, int]]:
        """The size in bytes and the number of leases of each leased block, by its offset."""
        with self.lock:
            self._mend()
            held = (block for held in self.held.values() for block in held.values())
            return {block.offset: (block.size, block.holds) for block in held}

    def hold(self, leases: Sequence[BlockLease], owner: str) -> list[BlockLease]:
        """Create another lease on the block of each of *leases*, which must still hold it.

        Raises:
            InvalidRequest: a lease was released, or taken back.
            EngineClosed: this is a forked child.
            EngineBusy: a signal handler wants it in the middle of a change.
        """
        if self._home.left:
            self._home.check()
        if self._changing():
            raise EngineBusy("the thread is changing the pool: take a share after its call")
        with self.lock:
            try:
                blocks = [self.held[lease.owner][lease.token] for lease in leases]
            except KeyError:
                raise InvalidRequest("the lease was released") from None
            self._begin()
            own_blocks = self.held.setdefault(owner, {})
            shares = []
            for lease, block, token in zip(leases, blocks, self._tokens, strict=False):
                views = lease.frame, lease.payload
                shares.append(BlockLease(self, block, owner, token, *views, lease.spec))
                own_blocks[token] = block
                block.holds += 1
            self._torn = False
            return shares

    def hand_over(self, leases: Sequence[Lease], owner: str) -> None:
        """Transfer those of *leases* that are on these blocks to *owner*, if not taken back yet."""
        with self.lock:
            self._begin()
            held = self.held
            blocks_there = held.setdefault(owner, {})
            for lease in leases:
                if not isinstance(lease, BlockLease) or lease._ledger is not self:
                    continue
                former = lease.owner
                blocks = held.get(former, {})
                if (block := blocks.pop(lease.token, None)) is not None:
                    lease.owner = owner  # first: a lost lease is taken back by this name
                    blocks_there[lease.token] = block
                    if not blocks:
                        del held[former]
            if not blocks_there:
                del held[owner]
            self._torn = False

    def release(self, leases: Sequence[BlockLease]) -> None:
        """Take back holds; no effect if it was taken back before, or belongs to the parent process.

        A release by a signal handler in the middle of a change is left to the next call.
        """
        if self._home.left or self._changing():
            if not self._home.left:
                self.lost.extend((held.owner, held.token) for held in leases if held.holds)
            BlockLease.end(leases)
            return
        with self.lock:
            self._begin()
            self._end([(lease.owner, lease.token) for lease in leases])
            BlockLease.end(leases)
            self._torn = False

    def sweep(self, owner: str) -> int:
        """Take back the leases of *owner*, which has ended. Return their number."""
        if not self.lost and not self._torn and owner not in self.held:
            return 0
        with self.lock:
            self._begin()
            left = list(self.held.get(owner, ()))
            self._end([(owner, token) for token in left])
            self.swept += len(left)
            self._torn = False
            return len(left)

    def count(self) -> Mapping[str, int]:
        """The number of leases of each owner. Empty at rest, except for those that tiers keep."""
        with self.lock:
            self._mend()
            return {owner: len(held) for owner, held in self.held.items()}

    @property
    def used(self) -> int:
        """Bytes from the memory's start to the end of the furthest block ever leased."""
        return self._slots.used

    @property
    def held_bytes(self) -> int:
        """Bytes of leased blocks."""
        with self.lock:
            self._mend()
            return self._held_bytes

    def mend(self) -> None:
        """Take back lost leases, under the lock, so that all records are correct."""
        if self._torn or self.lost:
            self._mend()

    def _begin(self) -> None:
        """Begin a change: until it has ended, only the holds are authoritative."""
        if self._torn or self.lost:
            self._mend()
        self._torn = True

    def _mend(self) -> None:
        """Derive everything again after an interrupted change; take back lost leases."""
        if self._torn:
            self._derive()
            self._torn = False
        while self.lost:
            self._torn = True
            self._end([self.lost[0]])
            self._torn = False
            self.swept += 1
            self.lost.popleft()

    def _derive(self) -> None:
        self.held = {owner: held for owner, held in self.held.items() if held}
        blocks = {block for held in self.held.values() for block in held.values()}
        for block in blocks:
            block.holds = 0
        for held in self.held.values():
            for block in held.values():
                block.holds += 1
        self._held_bytes = sum(block.size for block in blocks)
        self._slots.derive(blocks)
        self.freed += 1
        self.line.wake()

    def _end(self, holds: Iterable[tuple[str, int]]) -> None:
        """Take back holds, by owner and token; missing ones are ignored."""
        freed = self.freed
        for owner, token in holds:
            held = self.held.get(owner)
            block = None if held is None else held.pop(token, None)
            if held is None or block is None:
                continue
            if not held:
                del self.held[owner]
            block.holds -= 1
            if block.holds:
                continue
            if self.poison:
                end = block.offset + block.size
                self.memory[block.offset : end] = bytes([_POISON]) * block.size
            self._held_bytes -= block.size
            self._slots.give_back(block)
            self.freed += 1
        if self.freed != freed and self.line.turns:
            self.line.wake()
