"""The index of one tier: the authority on its chunks, its bytes and its pins.

The index does no I/O. It decides which chunks to write and which to delete first, and the caller
reports the result, so its lock is never held while a store works:

    reservation = index.reserve(keys, sizes, after)
    ... delete reservation.victims from the store ...
    index.deleted(reservation.victims)
    ... write reservation.keys ...
    index.commit(written)
    index.abort(failed)

A chunk is in one of four states:

    absent --reserve--> reserved --commit--> resident --evicted, discard--> leaving
       ^                   |                                                   |
       +-------abort-------+-------------------------------deleted-------------+

Only resident chunks are found, touched, pinned and evicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import groupby
from operator import attrgetter
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

from hexkv.core.tiers.index.bookkeeping import (
    Bookkeeping,
    Claimed,
    Pending,
    Reservation,
    Victims,
    in_order,
)
from hexkv.ports import ChunkKey, Entry, Policy

P = ParamSpec("P")
R = TypeVar("R")


def _change(
    method: Callable[Concatenate[TierIndex, P], R],
) -> Callable[Concatenate[TierIndex, P], R]:
    """Make *method* one change, under the lock; an interrupted one is repaired before the next."""

    @wraps(method)
    def changing(self: TierIndex, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            result = method(self, *args, **kwargs)
            self._torn = False
            return result

    return changing


class TierIndex(Bookkeeping):
    """The chunks of one tier: their sizes, their pins, and the order of eviction.

    Safe from any thread. A resident chunk costs its key, one dictionary entry and the state of the
    policy. The cost of a call grows with its chunks, not with the tier; a search for victims also
    passes over the pinned chunks that the policy values least.

    Args:
        policy: ranks the chunks by value; from now on it belongs to the index.
        budget: bytes that the tier may hold; ``None`` for as many as the store takes.
    """

    decides: ClassVar[bool] = True

    def __init__(self, policy: Policy, budget: int | None) -> None:
        if budget is not None and budget < 0:
            raise ValueError(f"a budget of {budget} bytes")
        super().__init__(policy)
        self.budget = budget
        """Bytes that the tier may hold."""

    @property
    def policy(self) -> str:
        failed = ", which failed" if self._policy is None else ""
        return f"{self._policy_name}{failed}"

    @property
    def used(self) -> int:
        """Bytes resident, leaving, or about to be written; at rest the bytes that the store holds.

        Never above the budget, unless :meth:`restore` found more than that.
        """
        with self._lock:
            return self._used

    @property
    def staying(self) -> int:
        """Bytes used once all leaving chunks are deleted."""
        with self._lock:
            return self._used - self._freed()

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that is resident."""
        # Without the lock: each of them is looked up in one step.
        return list(map(self._sizes.__contains__, keys))

    def reserve(
        self,
        keys: Sequence[ChunkKey],
        sizes: Sequence[int],
        after: ChunkKey | None = None,
        within: int | None = None,
    ) -> Reservation:
        """Reserve space for the missing chunks, before any of them is written.

        Pinned chunks, the batch itself and *after* are never evicted for it; without enough space
        for all, the first of the batch get it. This does not count as a use of the chunks that are
        resident already: see :meth:`touch`.

        Args:
            keys: chunks of one prompt, in prefix order.
            sizes: bytes that each would take on the store.
            after: the chunk before the first of *keys* in its prompt, if there is one.
            within: bytes that are free apart from those of victims, where that is less than the
                budget leaves.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            reservation = Reservation()
            claim = Claimed(reservation)
            granted: dict[ChunkKey, Pending] = {}
            victims = reservation.victims
            most = math.inf if self.budget is None else self.budget
            free = most - self._used if within is None else min(most - self._used, within)
            candidates: Iterator[ChunkKey] | None = None
            before, writing, total = after, 0, sum(sizes)
            each: Iterable[tuple[ChunkKey, int]] = zip(keys, sizes, strict=True)
            if total <= most and self._are_new(keys):  # the usual case: all are granted by column
                going = self._victims(total - free, {*keys, after}) if total > free else []
                room = free + sum(map(self._sizes.__getitem__, going))
                if room >= total:
                    victims += going
                    granted = dict(Pending.run(keys, sizes, claim, after))
                    reservation.keys += keys
                    each, writing, free = (), total, room - total
            for key, size in each:
                if key in self._sizes:
                    pass
                elif key in granted or key in self._reserved or key in self._leaving:
                    reservation.busy.append(key)
                else:
                    if free < size <= most and candidates is None:
                        candidates = self._evictable({*keys, after})
                    while (
                        free < size <= most
                        and candidates is not None
                        and (victim := next(candidates, None)) is not None
                    ):
                        victims.append(victim)
                        free += self._sizes[victim]
                    if free < size:
                        reservation.refused.append(key)
                    else:
                        free -= size
                        writing += size
                        granted[key] = Pending(size, claim, before)
                        reservation.keys.append(key)
                before = key
            # A refused chunk may have taken more victims than the others need; if leaving chunks
            # take more than the budget, all available victims may not be enough.
            if not granted:
                victims.clear()
            while victims and free >= self._sizes[victims[-1]]:
                free -= self._sizes[victims.pop()]
            if victims:
                self._dismiss(victims, claim, evicted=True)
            self._reserved.update(granted)
            self._settle(claim, writing=writing)
            self._torn = False
        return reservation

    def commit(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Make reserved chunks resident: stored whole. Prefix order; duplicates count once.

        Returns:
            no victims: space was found when they were reserved.

        Raises:
            KeyError: one of them is not reserved.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            settled = {key: self._reserved[key] for key in keys}
            run: list[ChunkKey] = []
            before: ChunkKey | None = None
            for key, (size, _, after) in settled.items():
                self._sizes[key] = size
                self._used += size
                if not run:
                    before = after
                elif after != run[-1]:
                    self._admit(run, before)
                    run, before = [], after
                run.append(key)
            if run:
                self._admit(run, before)
            self._settle_reserved(settled)
            self._torn = False
        return []

    @_change
    def abort(self, keys: Sequence[ChunkKey]) -> None:
        """End the reservations of chunks that are not on the store, and will not be.

        Raises:
            KeyError: one of them is not reserved.
        """
        self._settle_reserved({key: self._reserved[key] for key in keys})

    @_change
    def deleted(self, keys: Sequence[ChunkKey]) -> None:
        """Note that these leaving chunks are deleted from the store: their bytes are free again.

        Others are ignored: two threads may have deleted the same chunk.
        """
        pop = self._leaving.pop
        gone = [pending for key in keys if (pending := pop(key, None)) is not None]
        for claim, run in groupby(gone, key=attrgetter("claim")):
            self._settle(claim, leaving=-sum([pending.size for pending in run]))

    @_change
    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Note that one request used these chunks, in prefix order. Others are ignored."""
        here = [key for key in keys if key in self._sizes]
        if here and self._policy is not None:
            try:
                self._policy.touch(here)
            except Exception as error:  # noqa: BLE001 - a policy's failure is never the engine's
                self._give_up("touch", error)

    @_change
    def discard(self, keys: Sequence[ChunkKey], *, force: bool = True) -> list[ChunkKey]:
        """Remove chunks that are damaged, missing or unwanted.

        Args:
            keys: those that are not resident are ignored, also those being written.
            force: also remove pinned chunks, and end their pins; otherwise these stay.

        Returns:
            the chunks to delete from the store; like victims, they count until :meth:`deleted`.
        """
        gone = Victims(
            key
            for key in dict.fromkeys(keys)
            if key in self._sizes and (force or key not in self._pins)
        )
        for key in gone:
            self._pins.end(key)
        self._dismiss(gone, Claimed(gone), evicted=False)
        return gone

    @_change
    def resize(self, key: ChunkKey, size: int, within: int | None = None) -> list[ChunkKey] | None:
        """Count a resident chunk as *size* bytes from now on, because it is replaced.

        Before the write if it grows, after the write if it shrinks. *within* as for
        :meth:`reserve`.

        Returns:
            victims to delete first; ``None``, without any change, if the chunk is not resident or
            there is no space for its growth.
        """
        former = self._sizes.get(key)
        if former is None:
            return None
        grown = size - former
        most = math.inf if self.budget is None else self.budget
        free = most - self._used if within is None else min(most - self._used, within)
        over = grown - free if grown > 0 else 0
        victims = Victims(self._victims(over, {key}))
        if over > sum([self._sizes[key] for key in victims]):
            return None
        self._dismiss(victims, Claimed(victims), evicted=True)
        self._sizes[key] = size
        self._used += grown
        return victims

    @_change
    def evict(self, size: int) -> list[ChunkKey]:
        """Return victims of at least *size* bytes together, or all there are, to delete now."""
        victims = Victims(self._victims(size, ()))
        self._dismiss(victims, Claimed(victims), evicted=True)
        return victims

    def orphans(self) -> Sequence[ChunkKey]:
        """Return chunks to delete because the call that was to write or delete them has ended."""
        if not self._reserved and not self._leaving:
            return ()
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            for key, pending in list(self._reserved.items()):
                if pending.claim.dead:
                    self._leaving[key] = Pending(pending.size, Claimed())
                    self._settle(self._leaving[key].claim, leaving=pending.size)
                    self._settle_reserved({key: pending})
            self._torn = False
            return [key for key, pending in self._leaving.items() if pending.claim.dead]

    def restore(self, entries: Iterable[Entry]) -> list[ChunkKey]:
        """Adopt chunks that an earlier process or another one has put on the store.

        Returns:
            victims to delete, if the chunks exceed the budget.
        """
        for part in in_order(entries):
            self.adopt(part)
        return self.trimmed()

    @_change
    def adopt(self, entries: Sequence[Entry]) -> None:
        """Adopt chunks of one request, in prefix order; known chunks stay as they are.

        The budget does not limit this: call :meth:`trim` afterwards.
        """
        states = (self._sizes, self._reserved, self._leaving)
        new = {
            entry.key: entry.size
            for entry in entries
            if not any(entry.key in known for known in states)
        }
        self._sizes.update(new)
        self._used += sum(new.values())
        self._admit(list(new), None)

    def trim(self, limit: int | None) -> list[ChunkKey]:
        """Return victims to delete so that at most *limit* bytes stay."""
        excess = 0 if limit is None else self.staying - limit
        return self.evict(excess) if excess > 0 else []

    def trimmed(self) -> list[ChunkKey]:
        """Return victims to delete, if the chunks exceed the budget."""
        return self.trim(self.budget)

    def limit(self, budget: int, quotas: Mapping[str, int]) -> list[ChunkKey]:
        """Change the budget. Return victims to delete, if the chunks exceed it."""
        del quotas  # all tenants share this index
        self.budget = budget
        return self.trimmed()

    @_change
    def pin(self, owner: str, keys: Sequence[ChunkKey]) -> int:
        """Keep resident chunks from being evicted while *owner* uses them.

        A chunk stays as long as any owner pins it; a second pin by the same owner has no effect.

        Returns:
            the number of *keys* that are resident, and pinned for *owner* now.
        """
        here = {key for key in keys if key in self._sizes}
        self._pins.pin(owner, here)
        return len(here)

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. Return their number."""
        if owner not in self._pins.owned:  # most calls pin no chunks
            return 0
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            ended = self._pins.unpin(owner)
            self._torn = False
            return ended

    def assign(self, prefix: bytes, tenant: str) -> list[ChunkKey]:
        """Return no victims: here all tenants share one index."""
        del prefix, tenant
        return []

    def used_by(self) -> Mapping[str, int]:
        """Return bytes by tenant: empty, since tenants have no shares here."""
        return {}

    quotas = used_by

    @property
    def pinned(self) -> Mapping[str, int]:
        """The number of chunks that each owner pins; owners without pins are absent."""
        with self._lock:
            return self._pins.count()
