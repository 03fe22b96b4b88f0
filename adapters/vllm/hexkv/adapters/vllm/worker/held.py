"""Blocks for vLLM's own offloading: named by vLLM, and held in the pool while they are promised.

vLLM's OffloadingConnector cannot learn that a load failed. So a block only counts as found
while it is held: it was read and verified, and stays in the pool until its ticket is released.
Loading it is then a copy that cannot miss. A block is one chunk of one token, whose digest is
that of vLLM's name.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

import torch

from hexkv.adapters.vllm.configuration.configuration import BLOCK_TOKENS
from hexkv.adapters.vllm.worker.serving import cleared
from hexkv.kernels.blocks import BlockKV, BlockMemory
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.schema import Calls
from hexkv.ports import (
    ChunkSpec,
    Clock,
    Deadline,
    Hold,
    InvalidRequest,
    Lease,
    Namespace,
    PrefixCache,
    Span,
    Transfer,
    frame_bytes,
)

log = logging.getLogger("vllm.hexkv")

OWNER = "vllm offloading"
"""The owner under which the pool's ledger lists blocks that are held for vLLM."""

COPYING = "vllm load"
"""The owner under which it lists blocks that are being copied to vLLM's memory."""

_REMEMBERED = 1 << 14
"""Tickets that were released before they were used: a question may still be on its way. More
than the queues of :mod:`~hexkv.adapters.vllm.lookup.channel` hold."""

_LAST_COPIES = 1.0
"""Seconds that copies under way are waited for at the end."""


class _Held(NamedTuple):
    hold: Hold
    lease: Lease
    group: int


class Copying:
    """Copies of held blocks to vLLM's memory, with shares of the leases that they read.

    For one thread.
    """

    def __init__(self, leases: Sequence[Lease], clock: Clock) -> None:
        self.size = sum(len(lease.payload) for lease in leases)
        """Bytes of the blocks."""

        self.whole = True
        """False once a copy has failed."""

        self.transfers: list[Transfer] = []
        """Copies under way."""

        self._leases = list(leases)
        self._clock = clock

    @property
    def done(self) -> bool:
        """True once no copy is under way; then the shares are released. Never blocks."""
        return self.wait(Deadline(self._clock, 0.0))

    def wait(self, deadline: Deadline) -> bool:
        """Wait for all copies. False if *deadline* passed first."""
        while self.transfers:
            try:
                if not self.transfers[-1].wait(deadline):
                    return False
            except Exception:
                log.exception("a copy of held blocks to vLLM's memory failed")
                self.whole = False
            self.transfers.pop()
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()
        return True


class HeldBlocks:
    """The blocks of one rank that are held for vLLM, and the copies to and from its memory.

    Safe from any thread, but for :meth:`load` and :meth:`close`, which the worker's calls.

    Args:
        engine: of the rank; closed by :meth:`close`.
        groups: by vLLM's number of a group of layers, its namespace and its tensors
            ``[blocks, bytes]``.
        limit: bytes of the pool that may be held; beyond, blocks are not found.
        deadlines: of lookups, reads and stores.
        clock: the machine's, unless time is simulated.
        weights: the digest of the model's, as they were loaded at the start.
    """

    def __init__(
        self,
        engine: PrefixCache,
        groups: Mapping[int, tuple[Namespace, Sequence[torch.Tensor]]],
        limit: int,
        deadlines: Calls,
        clock: Clock | None = None,
        weights: str = "",
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._chunks = engine.chunks
        self._spaces = {group: engine.key_space(space) for group, (space, _) in groups.items()}
        self._memory = {
            group: BlockMemory(space.layout, pages, BLOCK_TOKENS)
            for group, (space, pages) in groups.items()
        }
        self._limit = limit
        self._deadlines = deadlines
        self._clock = SystemClock() if clock is None else clock
        self._used = 0
        self._held: dict[int, _Held] = {}
        self._copying: list[Copying] = []
        self._released: OrderedDict[int, None] = OrderedDict()
        self._given_up: OrderedDict[int, None] = OrderedDict()
        self._closed = False
        self._lock = Lock()
        self._generation = 0
        self._storing = Lock()

    def __call__(self, question: Mapping[str, object], name: memoryview) -> Mapping[str, object]:
        """Answer the scheduler.

        ``hold`` a block under a ticket, ``release`` tickets, ``give_up`` loads, ``weights``, and
        ``clear`` the tiers that it names. The last has the number of the ``generation`` that begins
        with it: blocks that vLLM named before, and hands over after, are not stored.
        """
        match question:
            case {"op": "hold", "ticket": int(ticket), "group": int(group)}:
                return {"held": self.hold(ticket, group, bytes(name))}
            case {"op": "release", "tickets": [*tickets]}:
                self.release([ticket for ticket in tickets if isinstance(ticket, int)])
                return {}
            case {"op": "give_up", "tickets": [*tickets]}:
                self.give_up([ticket for ticket in tickets if isinstance(ticket, int)])
                return {}
            case {"op": "clear", "generation": int(generation)}:
                with self._storing:
                    self._generation = max(self._generation, generation)
                return cleared(self._engine, question)
            case {"op": "weights"}:
                return {"weights": self._weights}
        raise InvalidRequest(f"no such question: {question.get('op')!r}")

    @property
    def used(self) -> int:
        """Bytes of the pool that are held, or kept free for reads under way."""
        with self._lock:
            return self._used

    def hold(self, ticket: int, group: int, name: bytes) -> bool:
        """Hold a block until its ticket is released. True if it is there, whole.

        Raises:
            InvalidRequest: vLLM has no such group of layers.
        """
        spec = self._spec(group, name)
        [tier] = self._chunks.match([spec.key], self._until(self._deadlines.lookup))
        if tier is None:
            return False
        room = frame_bytes(spec.raw_bytes)
        with self._lock:
            if ticket in self._held:
                return self._held[ticket].group == group
            if self._used + room > self._limit:
                return False
            self._used += room
        try:
            return self._read(ticket, group, spec, room)
        finally:
            with self._lock:
                self._used -= room

    def release(self, tickets: Iterable[int]) -> None:
        """Release the blocks held under *tickets*; those being copied stay until the copy ends."""
        gone = []
        with self._lock:
            for ticket in tickets:
                held = self._held.pop(ticket, None)
                if held is None:
                    _remember(self._released, ticket)
                else:
                    self._used -= held.lease.size
                    gone.append(held)
        for held in gone:
            held.hold.release()

    def give_up(self, loads: Sequence[int]) -> None:
        """Note that *loads* were given up."""
        with self._lock:
            for load in loads:
                _remember(self._given_up, load)

    def gave_up(self, load: int) -> bool:
        """True if a load was given up."""
        with self._lock:
            return load in self._given_up

    def ready(self, tickets: Sequence[int]) -> bool:
        """True if a block is held under each of *tickets*."""
        with self._lock:
            return all(ticket in self._held for ticket in tickets)

    def load(self, blocks: Sequence[tuple[int, int]]) -> Copying:
        """Begin to copy held blocks to vLLM's, each given as a ticket and vLLM's number.

        They are shared for as long as it takes: releasing a ticket frees no memory that is
        being copied.

        Raises:
            KeyError: one is not held, or was released.
        """
        self._copying = [copying for copying in self._copying if not copying.done]
        groups: dict[int, list[tuple[Lease, int]]] = {}
        with self._lock:
            wanted = [(self._held[ticket], block) for ticket, block in blocks]
            for held, block in wanted:
                share = held.lease.share(COPYING)
                groups.setdefault(held.group, []).append((share, block))
        shares = [share for some in groups.values() for share, _ in some]
        copying = Copying(shares, self._clock)
        self._copying.append(copying)
        for group, some in groups.items():
            try:
                window = self._window(group, [block for _, block in some])
                spans = [Span(i, i + BLOCK_TOKENS, some[i][0].payload) for i in range(len(some))]
                copying.transfers.append(window.scatter(spans))
            except Exception:
                log.exception("held blocks cannot be copied to vLLM's memory")
                copying.whole = False
        return copying

    def store(self, blocks: Iterable[tuple[bytes, int, int]], generation: int) -> int:
        """Keep vLLM's blocks, each given as its name, its group of layers and vLLM's number.

        Bytes copied, without those of blocks that are kept already; none where the blocks are of
        a *generation* that is over.

        Raises:
            InvalidRequest: vLLM has no such group of layers, or block.
        """
        groups: dict[int, list[tuple[ChunkSpec, int]]] = {}
        for name, group, block in blocks:
            groups.setdefault(group, []).append((self._spec(group, name), block))
        size = 0
        with self._storing:
            if generation < self._generation:
                return 0
            until = self._until(self._deadlines.store)
            for group, some in groups.items():
                window = self._window(group, [block for _, block in some])
                wanted = [spec for spec, _ in some]
                report = self._chunks.save(wanted, window, until, wait=False)
                saved = report.stored_tokens + report.queued_tokens
                size += saved * self._spaces[group].layout.token_bytes
        return size

    def close(self) -> None:
        """Give back everything and close the engine. Twice is allowed."""
        with self._lock:
            self._closed = True
            tickets = list(self._held)
        self.release(tickets)
        until = self._until(_LAST_COPIES)
        self._copying = [copying for copying in self._copying if not copying.wait(until)]
        self._engine.close()

    def _read(self, ticket: int, group: int, spec: ChunkSpec, room: int) -> bool:
        """Read a block, for which *room* is kept free, and hold it. True if it is there, whole."""
        deadline = self._until(self._deadlines.retrieve)
        hold = self._chunks.hold([spec], OWNER, deadline)
        kept = False
        try:
            hold.wait(deadline)
            [lease] = hold.leases
            with self._lock:
                # Threads overtake each other: it may have been released, or read twice, by now.
                unwanted = self._closed or ticket in self._released or ticket in self._held
                if lease is not None and not unwanted:
                    kept = self._used - room + lease.size <= self._limit
                if lease is not None and kept:
                    self._held[ticket] = _Held(hold, lease, group)
                    self._used += lease.size
        finally:
            if not kept:  # which ends a read that is late, too
                hold.release()
        return kept

    def _spec(self, group: int, name: bytes) -> ChunkSpec:
        space = self._spaces.get(group)
        if space is None:
            raise InvalidRequest(f"vLLM has no group {group} of layers")
        return space.spec(sha256(name).digest(), BLOCK_TOKENS)

    def _window(self, group: int, blocks: Sequence[int]) -> BlockKV:
        return BlockKV.on(self._memory[group], blocks)

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)


def _remember(tickets: OrderedDict[int, None], ticket: int) -> None:
    tickets[ticket] = None
    if len(tickets) > _REMEMBERED:
        tickets.popitem(last=False)
