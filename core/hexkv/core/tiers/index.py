"""What one tier holds: the single truth about its chunks, its bytes and its pins.

The index does no I/O. It says what to write and what to delete first, and is told what
became of that, so its lock is never held while a store works:

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import ClassVar

from hexkv.core.tiers.bookkeeping import (
    Bookkeeping,
    Claimed,
    Pending,
    Reservation,
    Victims,
    in_order,
)
from hexkv.ports import ChunkKey, Entry, Policy


class TierIndex(Bookkeeping):
    """The chunks of one tier: which, how large, in whose use, and which goes next.

    Safe from any thread. A resident chunk costs its key, one dictionary entry and what
    the policy needs. A call takes time for the chunks it is about, never for all there
    are; looking for victims also passes by the pinned ones that the policy values least.

    Args:
        policy: says which chunk is worth least; from now on it belongs to the index.
        budget: bytes that the tier may hold; ``None`` for as many as the store takes.
    """

    decides: ClassVar[bool] = True

    def __init__(self, policy: Policy, budget: int | None) -> None:
        if budget is not None and budget < 0:
            raise ValueError(f"a budget of {budget} bytes")
        super().__init__(policy)
        self._budget = budget

    @property
    def budget(self) -> int | None:
        """Bytes that the tier may hold."""
        return self._budget

    @property
    def policy(self) -> str:
        return self._policy.name

    @property
    def used(self) -> int:
        """Bytes resident, leaving, or about to be written; at rest what the store holds.

        Never above the budget, unless :meth:`restore` found more than that.
        """
        with self._lock:
            return self._used

    @property
    def staying(self) -> int:
        """Bytes used once all that is leaving is gone."""
        with self._lock:
            return self._used - self._freed()

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each chunk is resident."""
        with self._lock:
            return list(map(self._sizes.__contains__, keys))

    def reserve(
        self,
        keys: Sequence[ChunkKey],
        sizes: Sequence[int],
        after: ChunkKey | None = None,
        within: int | None = None,
    ) -> Reservation:
        """Take room for the chunks that are not there, before anything is written.

        Neither pinned chunks nor those of the batch itself, nor *after*, have to go for
        it; where there is not enough room for all, the first of the batch get it. This is
        no use of the chunks that are there already: see :meth:`touch`.

        Args:
            keys: chunks of one prompt, in prefix order.
            sizes: bytes that each would take on the store.
            after: the chunk before the first of *keys* in its prompt, if there is one.
            within: bytes that are free beside those of victims, where that is less than
                the budget leaves.
        """
        reservation = Reservation()
        claim = Claimed(reservation)
        granted: dict[ChunkKey, Pending] = {}
        victims = reservation.victims
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            most = math.inf if self._budget is None else self._budget
            free = most - self._used if within is None else min(most - self._used, within)
            candidates: Iterator[ChunkKey] | None = None
            before, writing, total = after, 0, sum(sizes)
            each: Iterable[tuple[ChunkKey, int]] = zip(keys, sizes, strict=True)
            if total <= most and self._are_new(keys):  # mostly: so all are granted by column
                going = self._victims(total - free, {*keys, after})
                room = free + sum([self._sizes[key] for key in going])
                if room >= total:
                    victims += going
                    granted.update(Pending.run(keys, sizes, claim, after))
                    reservation.keys.extend(keys)
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
            # A refused chunk may have asked for more victims than the others need; where what
            # is leaving takes more than the budget, all that could be had may not be enough.
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
        """These reserved chunks are on the store now, whole. Prefix order; twice counts once.

        Returns:
            no victims: room was found when they were reserved.

        Raises:
            KeyError: one of them is not reserved.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            settled = {key: self._reserved[key] for key in keys}
            if settled:
                sizes, _, after = zip(*settled.values(), strict=True)
                run = [*settled]
                self._sizes.update(zip(run, sizes, strict=True))
                self._used += sum(sizes)
                cuts = [i for i in range(1, len(run)) if after[i] != run[i - 1]]
                for start, end in pairwise((0, *cuts, len(run))):
                    self._policy.admit(run[start:end], after[start])
            self._settle_reserved(settled)
            self._torn = False
        return []

    def abort(self, keys: Sequence[ChunkKey]) -> None:
        """These reserved chunks are not on the store, nor will they be.

        Raises:
            KeyError: one of them is not reserved.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            self._settle_reserved({key: self._reserved[key] for key in keys})
            self._torn = False

    def deleted(self, keys: Sequence[ChunkKey]) -> None:
        """These leaving chunks are off the store: their bytes may be used again.

        Others are passed over: what two threads deleted is gone no less.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            pop = self._leaving.pop
            gone = [pending for key in keys if (pending := pop(key, None)) is not None]
            for claim, run in groupby(gone, key=attrgetter("claim")):
                self._settle(claim, leaving=-sum([pending.size for pending in run]))
            self._torn = False

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """One request met these chunks, in prefix order. Those not resident are passed over."""
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            here = [key for key in keys if key in self._sizes]
            if here:
                self._policy.touch(here)
            self._torn = False

    def discard(self, keys: Sequence[ChunkKey], *, force: bool = True) -> list[ChunkKey]:
        """Let go of chunks that are damaged, gone or unwanted.

        Args:
            keys: those not resident are passed over, those being written too.
            force: also the pinned, whose pins end with them; otherwise they stay.

        Returns:
            the chunks to delete from the store; like victims, they count until
            :meth:`deleted`.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            gone = Victims(
                key
                for key in dict.fromkeys(keys)
                if key in self._sizes and (force or key not in self._pins)
            )
            for key in gone:
                self._pins.end(key)
            self._dismiss(gone, Claimed(gone), evicted=False)
            self._torn = False
            return gone

    def resize(self, key: ChunkKey, size: int, within: int | None = None) -> list[ChunkKey] | None:
        """Count a resident chunk as *size* bytes from now on, because it is replaced.

        Before the write for one that grows, afterwards for one that shrinks. *within* as
        for :meth:`reserve`.

        Returns:
            victims to delete first; ``None``, and nothing has changed, if the chunk is not
            resident or there is no room for what it grows by.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            former = self._sizes.get(key)
            if former is None:
                self._torn = False
                return None
            grown = size - former
            most = math.inf if self._budget is None else self._budget
            free = most - self._used if within is None else min(most - self._used, within)
            over = grown - free if grown > 0 else 0
            victims = Victims(self._victims(over, {key}))
            if over > sum([self._sizes[key] for key in victims]):
                self._torn = False
                return None
            self._dismiss(victims, Claimed(victims), evicted=True)
            self._sizes[key] = size
            self._used += grown
            self._torn = False
            return victims

    def evict(self, size: int) -> list[ChunkKey]:
        """Victims of at least *size* bytes together, or all there are, to delete now."""
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            victims = Victims(self._victims(size, ()))
            self._dismiss(victims, Claimed(victims), evicted=True)
            self._torn = False
        return victims

    def orphans(self) -> Sequence[ChunkKey]:
        """Chunks to delete, because the call that was to write or delete them is gone."""
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
        """Take over what an earlier life left on the store, or others have put there.

        Returns:
            victims to delete, where that is more than the budget.
        """
        for part in in_order(entries):
            self.adopt(part)
        return self.trim(self._budget)

    def adopt(self, entries: Sequence[Entry]) -> None:
        """Take over chunks of one request, in prefix order; those that are known stay as they are.

        The budget does not limit this: :meth:`trim` afterwards.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            states = (self._sizes, self._reserved, self._leaving)
            new = {
                entry.key: entry.size
                for entry in entries
                if not any(entry.key in known for known in states)
            }
            self._sizes.update(new)
            self._used += sum(new.values())
            self._policy.admit(list(new), None)
            self._torn = False

    def trim(self, limit: int | None) -> list[ChunkKey]:
        """Victims to delete so that no more than *limit* bytes stay."""
        return [] if limit is None else self.evict(self.staying - limit)

    def pin(self, owner: str, keys: Sequence[ChunkKey]) -> int:
        """Keep resident chunks from being evicted while *owner* uses them.

        A chunk stays while anybody pins it; pinning it twice for one owner counts once.

        Returns:
            how many of *keys* are resident, and pinned for *owner* now.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            here = {key for key in keys if key in self._sizes}
            self._pins.pin(owner, here)
            self._torn = False
            return len(here)

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. How many there were."""
        if owner not in self._pins.owned:  # most calls pin nothing
            return 0
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            ended = self._pins.unpin(owner)
            self._torn = False
            return ended

    def assign(self, prefix: bytes, tenant: str) -> list[ChunkKey]:
        """Nothing: here chunks are all tenants' alike."""
        del prefix, tenant
        return []

    def used_by(self) -> Mapping[str, int]:
        """Bytes in each tenant's share: there are none."""
        return {}

    @property
    def pinned(self) -> Mapping[str, int]:
        """How many chunks each owner pins; nobody who pins none."""
        with self._lock:
            return self._pins.count()
