"""A node's part in moves of chunks to and from other nodes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from heapq import nsmallest
from operator import add
from typing import TypeVar

from hexkv.core.engine.calls import Calls
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.read.pieces import STEP
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.tier import Tier
from hexkv.operate.claims import Claims
from hexkv.operate.moving import Moved
from hexkv.operate.selecting import Chosen
from hexkv.operate.time_limit import TimeLimit
from hexkv.ports import (
    CLAIM_SECONDS,
    LISTED_KEYS,
    ChunkKey,
    ClaimState,
    Deadline,
    EngineClosed,
    InvalidRequest,
    Member,
    NamespaceState,
    Peer,
    Progress,
    Reason,
    Selection,
    Stored,
    Watch,
    WorkReport,
)

T = TypeVar("T")

_LONGEST_TOKEN = 200


class Relocations(ABC):
    """The verbs; see :class:`hexkv.ports.Relocation`. ``KeyedAdmin`` has them, too."""

    def __init__(self, stack: TierStack, calls: Calls, *, work: float) -> None:
        """Serve a node with *stack*, in its *calls*; a verb's time limit is *work* seconds."""
        self._stack = stack
        self._calls = calls
        self._work = work
        self._claims = Claims(stack.runtime.clock)

    @abstractmethod
    def namespaces(self) -> Sequence[NamespaceState]:
        """See :class:`hexkv.ports.Administration`."""

    def member(self) -> Member | None:
        runtime = self._stack.runtime
        known = runtime.life if runtime.peers is None else runtime.peers
        return None if known is None else known.member

    def listing(self, chosen: Selection, after: ChunkKey | None = None) -> Sequence[ChunkKey]:
        late = [tier.name for tier in self._own() if tier.indexing]
        if late:
            raise InvalidRequest(f"the content of tier {late[0]!r} is still being listed")
        found = Chosen(chosen, self.namespaces, ())
        with self._calls.call():
            keys = {key for tier in self._own() for key in found.keys(tier)}
            if chosen.keys:
                named = list(keys)
                there = self._holds(named)
                keys = {key for key, name in zip(named, there, strict=True) if name is not None}
        behind = keys if after is None else (key for key in keys if key > after)
        return nsmallest(LISTED_KEYS, behind)

    def holds(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        _check(keys)
        with self._calls.call():
            return self._holds(keys)

    def room(self) -> int:
        pool = self._stack.pool
        rooms = [0]
        with self._calls.call():
            for tier in [] if self._calls.frozen else self._own():
                free = 1 << 62 if tier.index.budget is None else tier.index.budget - tier.index.used
                if tier.lends:
                    free = min(free, pool.capacity - pool.held_bytes)
                if tier.rules.writes is Writes.ALL and not tier.indexing:
                    rooms.append(free)
        return max(rooms)

    def claim(
        self,
        token: str,
        keys: Sequence[ChunkKey],
        seconds: float,
        leaving: bool = False,
        read: bool = False,
    ) -> Sequence[ClaimState]:
        _check(keys)
        if not (0 < len(token) <= _LONGEST_TOKEN):
            raise InvalidRequest(f"the token of a move has 1 to {_LONGEST_TOKEN} characters")
        if not (math.isfinite(seconds) and 0 < seconds <= CLAIM_SECONDS):
            raise InvalidRequest(f"a claim lasts {CLAIM_SECONDS:.0f} seconds at most")
        if self._calls.frozen and not leaving:
            return [ClaimState.REFUSED] * len(keys)
        granted = self._claims.take(token, keys, seconds, leaving=leaving)
        mine = [key for key, ok in zip(keys, granted, strict=True) if ok]
        there = self._read(mine) if read else self._here(mine)
        if read:
            # Reading took its time: renew the claims of the chunks, which begin now.
            again = self._claims.take(token, mine, seconds, leaving=leaving)
            mine = [key for key, ok in zip(mine, again, strict=True) if ok]
        if not leaving and there:
            until = self._until(seconds)
            with self._calls.call():
                self._stack.pins.pin(_pins(token), sorted(there), until)
        states = dict.fromkeys(mine, ClaimState.ABSENT)
        states |= {key: ClaimState.HERE for key in mine if key in there}
        return [states.get(key, ClaimState.REFUSED) for key in keys]

    def fetch(
        self, keys: Sequence[ChunkKey], origin: Peer, watch: Watch | None = None
    ) -> WorkReport:
        _check(keys)
        peers = self._stack.runtime.peers
        if peers is None:
            raise InvalidRequest("this node has no channel to its peers: its section peers is off")
        if self._calls.frozen:
            raise InvalidRequest("this node is frozen: it keeps nothing new")
        limit, pull = self._limit(), peers.pull

        def bring(some: Sequence[ChunkKey], _: str) -> Moved:
            outcomes = pull(origin, some, limit.deadline)
            came = sum(isinstance(outcome, Stored) for outcome in outcomes)
            return Moved(came, failed=len(some) - came)

        return self._go_on(list(dict.fromkeys(keys)), watch, bring, limit, STEP)

    def give_up(self, token: str, keys: Sequence[ChunkKey]) -> WorkReport:
        _check(keys)
        mine = self._claims.held(token, keys)
        why = Reason.MOVED, "to another node"
        with self._calls.call():
            own = self._own()
            found = self._holds(mine)
            there = [key for key, name in zip(mine, found, strict=True) if name is not None]
            self._stack.forget(there, own, self._until(), why)
            left = sum(name is not None for name in self._holds(there))
        return WorkReport(
            len(keys),
            len(there) - left,
            absent=len(mine) - len(there),
            failed=left + len(keys) - len(mine),
        )

    def release(self, token: str) -> int:
        with self._calls.call():
            self._stack.pins.unpin(_pins(token))
        return self._claims.release(token)

    def _own(self) -> list[Tier]:
        """Return the tiers whose chunks are lost with this node."""
        return [tier for tier in self._stack.tiers if tier.index.decides and not tier.shared]

    def _holds(self, keys: Sequence[ChunkKey]) -> list[str | None]:
        found: list[str | None] = [None] * len(keys)
        for tier in self._own():
            for at, here in enumerate(tier.index.contains(keys)):
                if here and found[at] is None:
                    found[at] = tier.name
        return found

    def _here(self, keys: Sequence[ChunkKey]) -> set[ChunkKey]:
        with self._calls.call():
            found = self._holds(keys)
        return {key for key, name in zip(keys, found, strict=True) if name is not None}

    def _read(self, keys: Sequence[ChunkKey]) -> set[ChunkKey]:
        """Return those of *keys* that could be read from a tier and verified."""
        read: set[ChunkKey] = set()
        limit = self._limit()
        for start in range(0, len(keys), STEP):
            some = keys[start : start + STEP]
            if not limit.go_on():
                break
            with self._calls.call() as owner:
                for tier in self._own():
                    missing = [key for key in some if key not in read]
                    there = tier.index.contains(missing)
                    here = [key for key, is_here in zip(missing, there, strict=True) if is_here]
                    frames = self._stack.fetcher.frames
                    for got in frames(tier, here, owner, limit.deadline):
                        read.update(got.leases)
                        if got.leases or got.absent:
                            limit.advance()
        return read

    def _go_on(
        self,
        items: Sequence[T],
        watch: Watch | None,
        work: Callable[[Sequence[T], str], Moved],
        limit: TimeLimit,
        step: int,
    ) -> WorkReport:
        """Do *work* for *items*, a few in each call of the cache, which may close in between.

        Once the time is over, the rest has failed.
        """
        total, tried, sums = len(items), 0, Moved()
        stopped = False
        for start in range(0, total, step):
            if stopped := watch is not None and not watch(Progress(start, total)):
                break
            if not limit.go_on():
                break
            some = items[start : start + step]
            try:
                with self._calls.call() as owner:
                    got = work(some, owner)
            except EngineClosed:
                if not sums.done:
                    raise
                stopped = True
                break
            tried += len(some)
            sums = Moved(*map(add, sums, got))
            if got.done or got.absent:
                limit.advance()
        if watch is not None and not stopped:
            watch(Progress(total, total))
        failed = sums.failed if stopped else sums.failed + total - tried
        return WorkReport(total, sums.done, sums.absent, failed, sums.saved_bytes, stopped=stopped)

    def _limit(self) -> TimeLimit:
        """Begin the time of a verb."""
        return TimeLimit(self._stack.runtime.clock, self._work)

    def _until(self, seconds: float | None = None) -> Deadline:
        """Return a deadline in *seconds*, by default those of a verb that changes something."""
        return Deadline.after(self._stack.runtime.clock, self._work if seconds is None else seconds)


def _check(keys: Sequence[ChunkKey]) -> None:
    if len(keys) > LISTED_KEYS:
        raise InvalidRequest(f"{LISTED_KEYS} chunks at once, at most")


def _pins(token: str) -> str:
    return f"move {token}"
