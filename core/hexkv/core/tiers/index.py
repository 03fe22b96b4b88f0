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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from threading import Lock

from hexkv.core.tiers.checked import CheckedPolicy
from hexkv.core.tiers.reservation import Claim, Pending, Reservation
from hexkv.ports import ChunkKey, Entry, Policy

_AT_ONCE = 1024
"""Chunks that a restart takes over at a time: others use the index in between."""


class TierIndex:
    """The chunks of one tier: which, how large, in whose use, and which goes next.

    Safe from any thread. A resident chunk costs its key, one dictionary entry and what
    the policy needs. A call takes time for the chunks it is about, never for all there
    are; looking for victims also passes by the pinned ones that the policy values least.

    Args:
        policy: says which chunk is worth least; from now on it belongs to the index.
        budget: bytes that the tier may hold; ``None`` for as many as the store takes.
    """

    def __init__(self, policy: Policy, budget: int | None) -> None:
        if budget is not None and budget < 0:
            raise ValueError(f"a budget of {budget} bytes")
        self._sizes: dict[ChunkKey, int] = {}
        self._policy = CheckedPolicy(policy, self._sizes)
        self._budget = budget
        self._lock = Lock()
        self._reserved: dict[ChunkKey, Pending] = {}
        self._leaving: dict[ChunkKey, Pending] = {}
        self._owned: dict[str, set[ChunkKey]] = {}
        self._pins: dict[ChunkKey, int] = {}
        self._used = 0

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

    def __len__(self) -> int:
        return len(self._sizes)

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each chunk is resident."""
        with self._lock:
            return [key in self._sizes for key in keys]

    def size(self, key: ChunkKey) -> int | None:
        """Bytes of a resident chunk, ``None`` for any other."""
        return self._sizes.get(key)

    def keys(self) -> list[ChunkKey]:
        """Every resident chunk, in one copy: the only call that grows with the tier."""
        with self._lock:
            return list(self._sizes)

    def pending(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that is reserved or leaving."""
        with self._lock:
            return [key in self._reserved or key in self._leaving for key in keys]

    def leaving(self, keys: Sequence[ChunkKey]) -> int:
        """Bytes that those of *keys* take that are leaving."""
        with self._lock:
            return sum(self._leaving[key].size for key in keys if key in self._leaving)

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
        claim = Claim()
        granted: dict[ChunkKey, Pending] = {}
        victims = reservation.victims
        with self._lock:
            most = math.inf if self._budget is None else self._budget
            free = most - self._used if within is None else min(most - self._used, within)
            candidates = self._evictable({*keys, after})
            before = after
            for key, size in zip(keys, sizes, strict=True):
                if key in self._sizes:
                    pass
                elif key in granted or key in self._reserved or key in self._leaving:
                    reservation.busy.append(key)
                else:
                    while free < size <= most and (victim := next(candidates, None)) is not None:
                        victims.append(victim)
                        free += self._sizes[victim]
                    if free < size:
                        reservation.refused.append(key)
                    else:
                        free -= size
                        granted[key] = Pending(size, claim, before)
                        reservation.keys.append(key)
                before = key
            # A refused chunk may have asked for more victims than the others need; where what
            # is leaving takes more than the budget, all that could be had may not be enough.
            if not granted:
                victims.clear()
            while victims and free >= self._sizes[victims[-1]]:
                free -= self._sizes[victims.pop()]
            self._dismiss(victims, claim, evicted=True)
            self._reserved.update(granted)
            self._settle(claim, writing=sum(pending.size for pending in granted.values()))
        return reservation

    def commit(self, keys: Sequence[ChunkKey]) -> None:
        """These reserved chunks are on the store now, whole. Prefix order; twice counts once.

        Raises:
            KeyError: one of them is not reserved.
        """
        with self._lock:
            run: list[ChunkKey] = []
            after: ChunkKey | None = None
            for key, (size, _, before) in self._settle_reserved(keys).items():
                self._sizes[key] = size
                self._used += size
                if run and before != run[-1]:
                    self._policy.admit(run, after)
                    run = []
                if not run:
                    after = before
                run.append(key)
            if run:
                self._policy.admit(run, after)

    def abort(self, keys: Sequence[ChunkKey]) -> None:
        """These reserved chunks are not on the store, nor will they be.

        Raises:
            KeyError: one of them is not reserved.
        """
        with self._lock:
            self._settle_reserved(keys)

    def deleted(self, keys: Sequence[ChunkKey]) -> None:
        """These leaving chunks are off the store: their bytes may be used again.

        Others are passed over: what two threads deleted is gone no less.
        """
        with self._lock:
            for key in keys:
                pending = self._leaving.pop(key, None)
                if pending is not None:
                    self._settle(pending.claim, leaving=-pending.size)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """One request met these chunks, in prefix order. Those not resident are passed over."""
        with self._lock:
            here = [key for key in keys if key in self._sizes]
            if here:
                self._policy.touch(here)

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
            gone = [
                key
                for key in dict.fromkeys(keys)
                if key in self._sizes and (force or key not in self._pins)
            ]
            for key in gone:
                if self._pins.pop(key, 0):
                    self._unown(key)
            self._dismiss(gone, Claim(), evicted=False)
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
            former = self._sizes.get(key)
            if former is None:
                return None
            grown = size - former
            most = math.inf if self._budget is None else self._budget
            free = most - self._used if within is None else min(most - self._used, within)
            over = grown - free if grown > 0 else 0
            victims: list[ChunkKey] = []
            candidates = self._evictable({key})
            while over > 0 and (victim := next(candidates, None)) is not None:
                victims.append(victim)
                over -= self._sizes[victim]
            if over > 0:
                return None
            claim = Claim()
            self._dismiss(victims, claim, evicted=True)
            self._sizes[key] = size
            self._used += grown
            return victims

    def evict(self, size: int) -> list[ChunkKey]:
        """Victims of at least *size* bytes together, or all there are, to delete now."""
        victims: list[ChunkKey] = []
        with self._lock:
            candidates = self._evictable(())
            while size > 0 and (victim := next(candidates, None)) is not None:
                victims.append(victim)
                size -= self._sizes[victim]
            self._dismiss(victims, Claim(), evicted=True)
        return victims

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
            states = (self._sizes, self._reserved, self._leaving)
            new = {
                entry.key: entry.size
                for entry in entries
                if not any(entry.key in known for known in states)
            }
            self._sizes.update(new)
            self._used += sum(new.values())
            self._policy.admit(list(new), None)

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
            here = {key for key in keys if key in self._sizes}
            if here:
                owned = self._owned.setdefault(owner, set())
                for key in here - owned:
                    self._pins[key] = self._pins.get(key, 0) + 1
                owned |= here
            return len(here)

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. How many there were."""
        with self._lock:
            owned = self._owned.pop(owner, set())
            for key in owned:
                if self._pins[key] == 1:
                    del self._pins[key]
                else:
                    self._pins[key] -= 1
            return len(owned)

    @property
    def pinned(self) -> Mapping[str, int]:
        """How many chunks each owner pins; nobody who pins none."""
        with self._lock:
            return {owner: len(owned) for owner, owned in self._owned.items()}

    def _freed(self) -> int:
        return sum(claim.freed for claim in {pending.claim for pending in self._leaving.values()})

    def _evictable(self, spared: Collection[ChunkKey | None]) -> Iterator[ChunkKey]:
        return (
            key for key in self._policy.victims() if key not in self._pins and key not in spared
        )

    def _dismiss(self, keys: Sequence[ChunkKey], claim: Claim, *, evicted: bool) -> None:
        """From resident to leaving: not found any more, but still on the store."""
        for key in keys:
            size = self._sizes.pop(key)
            self._used -= size
            self._leaving[key] = Pending(size, claim)
            self._settle(claim, leaving=size)
            self._policy.drop(key, evicted=evicted)

    def _settle_reserved(self, keys: Sequence[ChunkKey]) -> dict[ChunkKey, Pending]:
        # All of them are looked up before any is changed. A prompt may hold a segment twice.
        settled = {key: self._reserved[key] for key in keys}
        for key, pending in settled.items():
            del self._reserved[key]
            self._settle(pending.claim, writing=-pending.size)
        return settled

    def _settle(self, claim: Claim, *, writing: int = 0, leaving: int = 0) -> None:
        self._used -= max(claim.writing, claim.leaving)
        claim.writing += writing
        claim.leaving += leaving
        self._used += max(claim.writing, claim.leaving)

    def _unown(self, key: ChunkKey) -> None:
        for owner in [owner for owner, owned in self._owned.items() if key in owned]:
            self._owned[owner].discard(key)
            if not self._owned[owner]:
                del self._owned[owner]


def in_order(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """What a scan found, in parts to adopt one after the other: the oldest first.

    A prompt's chunks were written one after the other, the beginning first. Those of one
    second pass for one request, or every parent would be older than its child.
    """
    found = sorted(entries, key=lambda entry: entry.stored)
    for _, second in groupby(found, key=lambda entry: entry.stored // 1):
        together = list(second)
        # The end first: what is admitted last is the youngest, and that is the beginning.
        for start in reversed(range(0, len(together), _AT_ONCE)):
            yield together[start : start + _AT_ONCE]
