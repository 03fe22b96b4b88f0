"""The blocks that vLLM's offloading may count on: those that every rank holds.

A block is looked up when a request asks for it first, and held until all requests that
asked for it are done. A hit stays true until then. A miss is final for the requests that
asked; for others the block is looked up again, for it may have been stored since.

vLLM can load a block that it did not look up (a window that begins in the middle of one), and
cannot learn that a load failed. Such a load waits until the block is there, and is given up
with its request.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from hexkv.adapters.vllm.messages import RankClient

log = logging.getLogger("vllm.hexkv")

_STEPS = 16
"""Steps of vLLM after which all loads that were under way when the cache was emptied are over."""

_MOST = 1 << 16
"""Tickets in one message."""

_HELD, _NOT_HELD = -1, 0


@dataclass(slots=True)
class _Block:
    ticket: int
    group: int
    asked_at: float
    queries: list[int]
    """By rank, the number of the one under way, or ``_HELD`` or ``_NOT_HELD``."""

    held: bool | None = None
    """True if all ranks hold it; ``None`` while one has not answered."""

    users: set[str] = field(default_factory=set)
    loading: int = 0

    outlived: bool = False
    """True if the cache was emptied since: the end of its load may never be reported."""


class Promises:
    """Blocks that ranks hold, for vLLM's scheduler. For one thread.

    Args:
        ranks: ways to them. Closed with this.
        patience: seconds to wait for a block.
        now: the time.
    """

    def __init__(
        self,
        ranks: Sequence[RankClient],
        patience: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranks = ranks
        self._patience = patience
        self._now = now
        self._blocks: dict[bytes, _Block] = {}
        self._wanted_by: defaultdict[str, set[bytes]] = defaultdict(set)
        self._tickets = count(1)
        self._steps = 0
        self._emptied: deque[tuple[int, int]] = deque()
        self._missing: set[bytes] = set()
        """Blocks to be loaded that are not there."""

        self._loads: dict[str, int] = {}
        """By request, the ticket of its load under way."""

        self._unsent: list[dict[str, list[int]]] = [{"release": [], "give_up": []} for _ in ranks]
        """By rank, the tickets of the messages that are still to be sent."""

        self._logged = ""

    def held(self, key: bytes, group: int, request: str) -> bool | None:
        """True if all ranks hold a block for *request*; ``None``: ask again."""
        block = self._blocks.get(key)
        if block is not None:
            self._hear(key, block)
        if key in self._missing:
            return False  # computing it ends the wait of the request that is to load it
        if block is None or (block.held is False and request not in block.users):
            block = self._ask(key, group)
        self._use(key, block, request)
        return block.held

    def load(self, blocks: Iterable[tuple[bytes, int]], request: str) -> tuple[int, list[int]]:
        """A ticket for a load, and those of its blocks, each given with its group.

        They stay until :meth:`loaded`. A block that is not held is looked up until it is, or
        until the request has left, which gives the load up.
        """
        tickets, waits = [], False
        for key, group in blocks:
            block = self._blocks.get(key)
            if block is None or not block.held:
                self._missing.add(key)  # before it is asked for: its ticket is to stay
                if block is None or block.held is False:
                    block = self._ask(key, group)
            block.loading += 1
            self._use(key, block, request)
            tickets.append(block.ticket)
            waits = waits or key in self._missing
        if waits:
            log.warning("request %s waits for blocks that no lookup has named", request)
        self._loads[request] = next(self._tickets)
        return self._loads[request], tickets

    def loaded(self, keys: Iterable[bytes], request: str) -> None:
        """Note that a request has got blocks."""
        self._loads.pop(request, None)
        keys = list(keys)
        for key in keys:
            block = self._blocks.get(key)
            if block is not None and block.loading:
                block.loading -= 1
        self._leave(keys, request)

    def stored(self, keys: Iterable[bytes]) -> None:
        """Note that blocks are being stored: a request that asks again may get them."""
        for key in keys:
            block = self._blocks.get(key)
            if block is not None and not block.held and key not in self._missing:
                block.users.clear()

    def left(self, request: str) -> None:
        """Note that a request is over, which gives up its load."""
        keys = self._wanted_by.pop(request, set())
        for key in keys & self._missing:
            block = self._blocks[key]
            block.users.discard(request)
            if not block.users:
                self._missing.discard(key)
                self._take_back(block)
                del self._blocks[key]
        if load := self._loads.pop(request, 0):
            self._owe("give_up", [load])
        self._leave(keys, request)

    def forget(self) -> None:
        """Hold nothing from now on: the cache is being emptied."""
        missing = {key: self._blocks[key] for key in self._missing}
        gone = [block for key, block in self._blocks.items() if key not in missing]
        # A step that is under way may still load some.
        self._emptied.extend((self._steps + _STEPS, b.ticket) for b in gone if b.loading)
        self._release([b.ticket for b in gone if not b.loading and _may_be_held(b)])
        self._blocks = missing
        self._wanted_by.clear()
        for key, block in missing.items():
            block.outlived = True
            for request in block.users:
                self._wanted_by[request].add(key)

    def step(self) -> None:
        """Note that another step has been planned."""
        self._steps += 1
        over = []
        while self._emptied and self._emptied[0][0] <= self._steps:
            over.append(self._emptied.popleft()[1])
        for key in list(self._missing):
            self._hear(key, self._blocks[key])
        self._release(over)

    def close(self) -> None:
        """Close the connections to the ranks. Twice is allowed."""
        for rank in self._ranks:
            rank.close()

    def _ask(self, key: bytes, group: int) -> _Block:
        """Begin to look up a block anew, for the requests that wait for it already."""
        before = self._blocks.get(key)
        users = set() if before is None else before.users
        ticket = next(self._tickets)
        queries = [rank.ask("hold", key, ticket=ticket, group=group) for rank in self._ranks]
        block = _Block(ticket, group, self._now(), queries, users=users)
        self._blocks[key] = block
        self._hear(key, block)
        return block

    def _use(self, key: bytes, block: _Block, request: str) -> None:
        block.users.add(request)
        self._wanted_by[request].add(key)

    def _hear(self, key: bytes, block: _Block) -> None:
        """Take in the ranks' answers about a block, if it is still undecided."""
        if block.held is not None and key not in self._missing:
            return
        late = self._now() - block.asked_at > self._patience
        for place, number in enumerate(block.queries):
            answer = self._ranks[place].take(number) if number > 0 else None
            if answer is not None:
                block.queries[place] = _HELD if answer.get("held") is True else _NOT_HELD
                self._complain(str(answer.get("error", "")))
        if max(block.queries) == min(block.queries) == _HELD:
            block.held = True
            self._missing.discard(key)
        elif key in self._missing:
            if late:
                self._ask_again(key, block)
        elif _NOT_HELD in block.queries or late:
            block.held = False
            self._take_back(block)

    def _ask_again(self, key: bytes, block: _Block) -> None:
        """Ask the ranks that did not have a block again: it may have been stored since."""
        block.asked_at = self._now()
        for place, number in enumerate(block.queries):
            if number == _NOT_HELD:
                block.queries[place] = self._ranks[place].ask(
                    "hold", key, ticket=block.ticket, group=block.group
                )

    def _take_back(self, block: _Block) -> None:
        """Release a block that some rank does not have: no other one needs it."""
        for rank, unsent, number in zip(self._ranks, self._unsent, block.queries, strict=True):
            if number != _NOT_HELD:
                rank.drop(number)
                unsent["release"].append(block.ticket)
        self._pay()

    def _complain(self, error: str) -> None:
        if error and error != self._logged:
            log.warning("a block cannot be looked for: %s", error)
            self._logged = error

    def _leave(self, keys: Iterable[bytes], request: str) -> None:
        """Remove a request from blocks, and release those that no request waits for."""
        gone: list[int] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is not None:
                block.users.discard(request)
                if not block.users and (not block.loading or block.outlived):
                    del self._blocks[key]
                    if block.loading:
                        self._missing.discard(key)
                        self._emptied.append((self._steps + _STEPS, block.ticket))
                    elif key in self._missing:  # it was loaded before all ranks had answered
                        self._missing.discard(key)
                        self._take_back(block)
                    elif _may_be_held(block):
                        gone.append(block.ticket)
        self._release(gone)

    def _release(self, tickets: Sequence[int]) -> None:
        self._owe("release", tickets)

    def _owe(self, op: str, tickets: Sequence[int]) -> None:
        for unsent in self._unsent:
            unsent[op].extend(tickets)
        self._pay()

    def _pay(self) -> None:
        """Send ranks the messages due to them; a rank whose queue is full gets them later."""
        for rank, unsent in zip(self._ranks, self._unsent, strict=True):
            for op, tickets in unsent.items():
                if tickets and rank.ask(op, wanted=False, tickets=tickets[:_MOST]):
                    del tickets[:_MOST]


def _may_be_held(block: _Block) -> bool:
    """True if a rank may hold it."""
    return block.held is not False
