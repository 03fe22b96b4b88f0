"""The records of a tier's index, and their repair after an interrupted change.

Of these records, the sizes, the reservations, the leaving chunks and the pins by owner are
authoritative. The sum of bytes, the counts of pins and the policy follow from them, so an
unexpected exception in the middle of a change does no harm: the next change derives them again.

Like stores, policies are foreign code. One that fails, or names other chunks than those of the
tier, is not used again: the tier continues, and evicts its oldest chunks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby, repeat
from threading import Lock
from typing import NamedTuple, Self
from weakref import ref

from hexkv.core.tiers.stores.answers import words
from hexkv.ports import ChunkKey, Entry, Policy, StoreError

log = logging.getLogger(__name__)


class Reservation:
    """The result of :meth:`hexkv.core.tiers.index.index.TierIndex.reserve`.

    Keys of the batch in none of these lists are resident.
    """

    __slots__ = ("__weakref__", "busy", "keys", "parts", "refused", "victims")

    def __init__(self, keys: Iterable[ChunkKey] = ()) -> None:
        """Reserve *keys*, so far."""
        self.keys: list[ChunkKey] = [*keys]
        """Chunks to write, in prefix order. Each must be committed or aborted."""

        self.victims: list[ChunkKey] = []
        """Chunks to delete before the first write, worst first. Lookups miss them already."""

        self.busy: list[ChunkKey] = []
        """Chunks that another call is writing or deleting: leave them alone."""

        self.refused: list[ChunkKey] = []
        """Chunks without room: larger than the budget, or no resident chunk may be evicted."""

        self.parts: list[object] = []
        """Reservations and victims that this one combines, and keeps alive."""


class Victims(list[ChunkKey]):
    """Chunks to delete from the store now. Lookups miss them already."""


class Claimed:
    """Space that the writes and deletions of one call share.

    Victims make room for the writes that wait for them, so the two do not add up: until the victims
    are deleted they take the space, afterwards the writes do.

    The call holds *holder* until it is done. Once the holder is gone, no caller is left to end what
    the call began.
    """

    __slots__ = ("_holder", "leaving", "writing")

    def __init__(self, holder: Reservation | Victims | None = None) -> None:
        self.leaving = 0
        self.writing = 0
        self._holder = None if holder is None else ref(holder)

    @property
    def freed(self) -> int:
        """Bytes that come free once the victims are deleted."""
        return max(0, self.leaving - self.writing)

    @property
    def dead(self) -> bool:
        """True once no caller is left to end it."""
        return self._holder is None or self._holder() is None


class Pending(NamedTuple):
    """A chunk on its way to the store or out of it. Few exist at any time."""

    size: int
    claim: Claimed
    before: ChunkKey | None = None
    """The chunk before it in its prompt."""

    @classmethod
    def run(
        cls, keys: Sequence[ChunkKey], sizes: Sequence[int], claim: Claimed, after: ChunkKey | None
    ) -> Iterator[tuple[ChunkKey, Self]]:
        """Yield key and entry of each of some neighbouring chunks, behind the chunk *after*."""
        rows = zip(sizes, repeat(claim), (after, *keys), strict=False)
        # By column: calling the class for each row takes three times as long.
        return zip(keys, map(tuple.__new__, repeat(cls), rows), strict=True)


def recount(reserved: Mapping[ChunkKey, Pending], leaving: Mapping[ChunkKey, Pending]) -> int:
    """Return the bytes that chunks on their way take, and recount those of each call."""
    claims = {pending.claim for pending in (*reserved.values(), *leaving.values())}
    for claim in claims:
        claim.writing = claim.leaving = 0
    for pending in reserved.values():
        pending.claim.writing += pending.size
    for pending in leaving.values():
        pending.claim.leaving += pending.size
    return sum(max(claim.writing, claim.leaving) for claim in claims)


class KeyPins:
    """Chunks in use by some owner. A chunk is pinned as long as any owner pins it."""

    def __init__(self) -> None:
        self.owned: dict[str, set[ChunkKey]] = {}
        """The chunks that each owner pins; owners without pins are absent."""

        self._count: dict[ChunkKey, int] = {}

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._count

    def pin(self, owner: str, keys: AbstractSet[ChunkKey]) -> None:
        """Pin chunks for *owner*; a second pin of a chunk has no effect."""
        if keys:
            owned = self.owned.setdefault(owner, set())
            for key in keys - owned:
                self._count[key] = self._count.get(key, 0) + 1
            owned |= keys

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. Return their number."""
        owned = self.owned.pop(owner, set())
        for key in owned:
            if self._count[key] == 1:
                del self._count[key]
            else:
                self._count[key] -= 1
        return len(owned)

    def end(self, key: ChunkKey) -> None:
        """End every pin of a chunk."""
        if not self._count.pop(key, 0):
            return
        for owner in [owner for owner, owned in self.owned.items() if key in owned]:
            self.owned[owner].discard(key)
            if not self.owned[owner]:
                del self.owned[owner]

    def count(self) -> Mapping[str, int]:
        """The number of chunks that each owner pins; owners without pins are absent."""
        return {owner: len(owned) for owner, owned in self.owned.items()}

    def derive(self, here: Collection[ChunkKey]) -> None:
        """Count again, for the chunks in *here* only, after an interrupted change."""
        self._count = {}
        for owner, owned in list(self.owned.items()):
            left = {key for key in owned if key in here}
            if left:
                self.owned[owner] = left
            else:
                del self.owned[owner]
            for key in left:
                self._count[key] = self._count.get(key, 0) + 1


_AT_ONCE = 1024
"""The number of chunks that a restart adopts at a time: other calls use the index in between."""


class Bookkeeping:
    """The records of one index. All of it is used under its lock."""

    def __init__(self, policy: Policy) -> None:
        self._sizes: dict[ChunkKey, int] = {}
        self._policy: Policy | None = policy
        """``None`` once it has failed."""

        self._policy_name = type(policy).__name__
        self._lock = Lock()
        self._reserved: dict[ChunkKey, Pending] = {}
        self._leaving: dict[ChunkKey, Pending] = {}
        self._pins = KeyPins()
        self._used = 0
        self._torn = False
        """True while a change is in progress; a change that finds it True derives everything
        again."""

    def __len__(self) -> int:
        return len(self._sizes)

    def size(self, key: ChunkKey) -> int | None:
        """The size of a resident chunk in bytes, ``None`` for any other."""
        return self._sizes.get(key)

    def keys(self) -> list[ChunkKey]:
        """A copy of all resident keys: the only call whose cost grows with the tier."""
        with self._lock:
            return list(self._sizes)

    def ranked(self) -> list[ChunkKey]:
        """All resident chunks, the least valuable first."""
        with self._lock:
            return list(self._victims_in_order())

    def pending(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that is reserved or leaving."""
        with self._lock:
            return [key in self._reserved or key in self._leaving for key in keys]

    def stays(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that is resident or reserved."""
        with self._lock:
            return [key in self._sizes or key in self._reserved for key in keys]

    def depart(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that may be deleted now: neither resident nor reserved.

        Each of them is leaving until ``deleted``, also one that was not evicted: until then it
        cannot be reserved, or the delete would remove a chunk written just then.
        """
        with self._lock:
            if self._torn:
                self._derive()
            self._torn = True
            going = [key for key in keys if key not in self._sizes and key not in self._reserved]
            for key in going:
                if key not in self._leaving:
                    self._leaving[key] = Pending(0, Claimed())
            self._torn = False
            return going

    def leaving(self, keys: Sequence[ChunkKey] | None = None) -> list[ChunkKey]:
        """Return those of *keys* (default: all) that are leaving: the store may still hold them."""
        with self._lock:
            if keys is None:
                return list(self._leaving)
            return [key for key in keys if key in self._leaving]

    def leaving_bytes(self, keys: Sequence[ChunkKey]) -> int:
        """The bytes that the leaving chunks among *keys* take."""
        with self._lock:
            return sum(self._leaving[key].size for key in keys if key in self._leaving)

    def shares(self) -> Sequence[Self]:
        """The indexes that have a policy of their own: this one alone."""
        return [self]

    def pinned_by(self, owner: str) -> list[ChunkKey]:
        """The chunks that *owner* pins."""
        with self._lock:
            return list(self._pins.owned.get(owner, ()))

    def _are_new(self, keys: Sequence[ChunkKey]) -> bool:
        """True if no chunk is resident, reserved or leaving, and *keys* has no duplicates."""
        strange = self._sizes.keys().isdisjoint(keys)
        if strange and (self._reserved or self._leaving):
            strange = not any(key in self._reserved or key in self._leaving for key in keys)
        return strange and len({*keys}) == len(keys)

    def _freed(self) -> int:
        return sum(claim.freed for claim in {pending.claim for pending in self._leaving.values()})

    def _evictable(self, spared: Collection[ChunkKey | None]) -> Iterator[ChunkKey]:
        order = self._victims_in_order()
        return (key for key in order if key not in self._pins and key not in spared)

    def _victims(self, size: float, spared: Collection[ChunkKey | None]) -> list[ChunkKey]:
        """The chunks to evict for *size* bytes, worst first; all evictable ones if too few."""
        victims: list[ChunkKey] = []
        if size > 0:
            for key in self._evictable(spared):
                victims.append(key)
                size -= self._sizes[key]
                if size <= 0:
                    break
        return victims

    def _dismiss(self, keys: Sequence[ChunkKey], claim: Claimed, *, evicted: bool) -> None:
        """Move chunks from resident to leaving: lookups miss them; the store still holds them."""
        sizes = [self._sizes[key] for key in keys]
        self._leaving.update(Pending.run(keys, sizes, claim, None))
        for key in keys:
            del self._sizes[key]
        self._used -= sum(sizes)
        self._settle(claim, leaving=sum(sizes))
        self._drop(keys, evicted=evicted)

    def _settle_reserved(self, settled: Mapping[ChunkKey, Pending]) -> None:
        """End these reservations; all were looked up before anything was changed."""
        ended: dict[Claimed, int] = {}
        for key, (size, claim, _) in settled.items():
            ended[claim] = ended.get(claim, 0) + size
            del self._reserved[key]
        for claim, writing in ended.items():
            self._settle(claim, writing=-writing)

    def _settle(self, claim: Claimed, *, writing: int = 0, leaving: int = 0) -> None:
        self._used -= max(claim.writing, claim.leaving)
        claim.writing += writing
        claim.leaving += leaving
        self._used += max(claim.writing, claim.leaving)

    def _derive(self) -> None:
        for key in self._leaving:
            self._sizes.pop(key, None)
            self._reserved.pop(key, None)
        for key in [key for key in self._reserved if key in self._sizes]:
            del self._reserved[key]
        self._used = sum(self._sizes.values()) + recount(self._reserved, self._leaving)
        self._pins.derive(self._sizes)
        known: set[ChunkKey] = set()
        if self._policy is not None:
            try:
                known.update(self._policy.victims())
            except Exception as error:  # noqa: BLE001 - a policy's failure is never the engine's
                self._give_up("victims", error)
        self._drop([*known.difference(self._sizes)], evicted=False)
        if new := [key for key in self._sizes if key not in known]:
            self._admit(new, None)

    def _admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """Have the policy rank new chunks."""
        if self._policy is not None:
            try:
                self._policy.admit(keys, after)
            except Exception as error:  # noqa: BLE001
                self._give_up("admit", error)

    def _drop(self, keys: Sequence[ChunkKey], *, evicted: bool) -> None:
        """Have the policy forget chunks that left the tier, one after the other."""
        if self._policy is not None:
            try:
                for key in keys:
                    self._policy.drop(key, evicted=evicted)
            except Exception as error:  # noqa: BLE001
                self._give_up("drop", error)

    def _victims_in_order(self) -> Iterator[ChunkKey]:
        """Yield each resident chunk once, the least valuable first, whatever the policy answers."""
        seen: set[ChunkKey] = set()
        if self._policy is not None:
            try:
                for key in self._policy.victims():
                    if type(key) is not bytes or key not in self._sizes or key in seen:
                        kind = type(key).__qualname__
                        raise StoreError(f"no chunk of the tier, or one twice: a {kind}")  # noqa: TRY301
                    seen.add(key)
                    yield key
                if hidden := len(self._sizes) - len(seen):
                    raise StoreError(f"it hides {hidden} chunks of the tier")  # noqa: TRY301
            except Exception as error:  # noqa: BLE001
                self._give_up("victims", error)
        if len(seen) != len(self._sizes):
            for key in self._sizes:
                if key not in seen:
                    yield key

    def _give_up(self, what: str, error: Exception) -> None:
        """Give the policy up, which has failed."""
        self._policy = None
        log.error(
            "policy %s: %s failed: %s; from now on the oldest chunks go first",
            self._policy_name,
            what,
            words(error),
        )


def in_order(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries of a scan in parts to adopt one after the other, the oldest first.

    A prompt's chunks were written one after the other, the beginning first. Those of one second
    count as one request, or every parent would be older than its child.
    """
    found = sorted(entries, key=lambda entry: entry.stored)
    for _, second in groupby(found, key=lambda entry: entry.stored // 1):
        together = list(second)
        # The end first: the chunk admitted last is the youngest, and that is the beginning.
        for start in reversed(range(0, len(together), _AT_ONCE)):
            yield together[start : start + _AT_ONCE]
