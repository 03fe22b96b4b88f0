"""What a tier's index writes down, and how it is mended after a change that did not end.

Of all that is written down, sizes, reservations, what is leaving and who pins what are the truth.
The sum of bytes, the counts of pins and the policy follow from them, so an exception out of nowhere
in the middle of a change costs nothing: the next change derives them anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import attrgetter
from threading import Lock
from typing import NamedTuple, Self
from weakref import ref

from hexkv.core.tiers.checked import CheckedPolicy
from hexkv.ports import ChunkKey, Entry, Policy


@dataclass(slots=True, weakref_slot=True)  # a frozen one takes three times as long to make
class Reservation:
    """The verdict of :meth:`hexkv.core.tiers.index.TierIndex.reserve`.

    Keys of the batch in none of these are there.
    """

    keys: list[ChunkKey] = field(default_factory=list)
    """To write, in prefix order. Each must be committed or aborted."""

    victims: list[ChunkKey] = field(default_factory=list)
    """To delete before the first write, worst first. Nobody finds them any more."""

    busy: list[ChunkKey] = field(default_factory=list)
    """Being written, or deleted, by somebody else: leave them alone."""

    refused: list[ChunkKey] = field(default_factory=list)
    """There is no room: larger than the budget, or what is there may not go."""

    parts: list[object] = field(default_factory=list)
    """Reservations and victims that this one was put together from, and stands for."""


class Victims(list[ChunkKey]):
    """Chunks to delete from the store now. Nobody finds them any more."""


class Claimed:
    """Room that writes and deletions of one call share.

    Victims make room for the writes that wait for them, so the two do not add up: until
    the victims are gone they take the room, afterwards the writes do.

    The call has the *holder* until it is done. Once nobody has it, nobody will end what the
    call began.
    """

    __slots__ = ("_holder", "leaving", "writing")

    def __init__(self, holder: Reservation | Victims | None = None) -> None:
        self.leaving = 0
        self.writing = 0
        self._holder = None if holder is None else ref(holder)

    @property
    def freed(self) -> int:
        """Bytes that come free when the victims are gone."""
        return max(0, self.leaving - self.writing)

    @property
    def dead(self) -> bool:
        """True once nobody will end it."""
        return self._holder is None or self._holder() is None


class Pending(NamedTuple):
    """A chunk on its way to the store or out of it. There are few at any time."""

    size: int
    claim: Claimed
    before: ChunkKey | None = None
    """The chunk before it in its prompt."""

    @classmethod
    def run(
        cls, keys: Sequence[ChunkKey], sizes: Sequence[int], claim: Claimed, after: ChunkKey | None
    ) -> Iterator[tuple[ChunkKey, Self]]:
        """Those of neighbouring chunks, behind the chunk *after*."""
        rows = zip(sizes, repeat(claim), (after, *keys), strict=False)
        # By column: to call the class for each row takes three times as long.
        return zip(keys, map(tuple.__new__, repeat(cls), rows), strict=True)


def recount(reserved: Mapping[ChunkKey, Pending], leaving: Mapping[ChunkKey, Pending]) -> int:
    """Bytes that chunks on their way take, each call's counted anew."""
    claims = {pending.claim for pending in (*reserved.values(), *leaving.values())}
    for claim in claims:
        claim.writing = claim.leaving = 0
    for pending in reserved.values():
        pending.claim.writing += pending.size
    for pending in leaving.values():
        pending.claim.leaving += pending.size
    return sum(max(claim.writing, claim.leaving) for claim in claims)


class KeyPins:
    """Chunks that some owner uses. A chunk is pinned while anybody pins it."""

    def __init__(self) -> None:
        self.owned: dict[str, set[ChunkKey]] = {}
        """What each owner pins; nobody who pins nothing."""

        self._count: dict[ChunkKey, int] = {}

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._count

    def pin(self, owner: str, keys: AbstractSet[ChunkKey]) -> None:
        """Pin chunks for *owner*; twice counts once."""
        if keys:
            owned = self.owned.setdefault(owner, set())
            for key in keys - owned:
                self._count[key] = self._count.get(key, 0) + 1
            owned |= keys

    def unpin(self, owner: str) -> int:
        """End every pin of *owner*. How many there were."""
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
        """How many chunks each owner pins; nobody who pins none."""
        return {owner: len(owned) for owner, owned in self.owned.items()}

    def derive(self, here: Collection[ChunkKey]) -> None:
        """Count anew, of the chunks that are *here*, after a change that did not end."""
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
"""Chunks that a restart takes over at a time: others use the index in between."""


class Bookkeeping:
    """The books of one index. All of it is used under its lock."""

    def __init__(self, policy: Policy) -> None:
        self._sizes: dict[ChunkKey, int] = {}
        self._policy = CheckedPolicy(policy, self._sizes)
        self._lock = Lock()
        self._reserved: dict[ChunkKey, Pending] = {}
        self._leaving: dict[ChunkKey, Pending] = {}
        self._pins = KeyPins()
        self._used = 0
        self._torn = False
        """True while a change is under way; a change that finds it so derives everything anew."""

    def __len__(self) -> int:
        return len(self._sizes)

    def size(self, key: ChunkKey) -> int | None:
        """Bytes of a resident chunk, ``None`` for any other."""
        return self._sizes.get(key)

    def keys(self) -> list[ChunkKey]:
        """Every resident chunk, in one copy: the only call that grows with the tier."""
        with self._lock:
            return list(self._sizes)

    def ranked(self) -> list[ChunkKey]:
        """Every resident chunk, the one that is worth least first."""
        with self._lock:
            return list(self._policy.victims())

    def pending(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that is reserved or leaving."""
        with self._lock:
            return [key in self._reserved or key in self._leaving for key in keys]

    def stays(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that is resident, or reserved to be."""
        with self._lock:
            return [key in self._sizes or key in self._reserved for key in keys]

    def depart(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Those of *keys* that may be deleted now: neither resident nor reserved.

        Each of them is leaving until ``deleted``, also one that nobody had let go of: it
        cannot be reserved meanwhile, or the delete would take what was written just then.
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
        """Those of *keys* that are leaving, by default all: the store may still have them."""
        with self._lock:
            if keys is None:
                return list(self._leaving)
            return [key for key in keys if key in self._leaving]

    def leaving_bytes(self, keys: Sequence[ChunkKey]) -> int:
        """Bytes that those of *keys* take that are leaving."""
        with self._lock:
            return sum(self._leaving[key].size for key in keys if key in self._leaving)

    def shares(self) -> Sequence[Self]:
        """The indexes of which each has a policy of its own: this one alone."""
        return [self]

    def pinned_by(self, owner: str) -> list[ChunkKey]:
        """The chunks that *owner* pins."""
        with self._lock:
            return list(self._pins.owned.get(owner, ()))

    def _are_new(self, keys: Sequence[ChunkKey]) -> bool:
        """True if no chunk is here or on its way, and none of *keys* comes twice."""
        strange = self._sizes.keys().isdisjoint(keys)
        if strange and (self._reserved or self._leaving):
            strange = not any(key in self._reserved or key in self._leaving for key in keys)
        return strange and len({*keys}) == len(keys)

    def _freed(self) -> int:
        return sum(claim.freed for claim in {pending.claim for pending in self._leaving.values()})

    def _evictable(self, spared: Collection[ChunkKey | None]) -> Iterator[ChunkKey]:
        return (
            key for key in self._policy.victims() if key not in self._pins and key not in spared
        )

    def _victims(self, size: float, spared: Collection[ChunkKey | None]) -> list[ChunkKey]:
        """What has to go for *size* bytes, worst first; all that may, where that is less."""
        victims: list[ChunkKey] = []
        if size > 0:
            for key in self._evictable(spared):
                victims.append(key)
                size -= self._sizes[key]
                if size <= 0:
                    break
        return victims

    def _dismiss(self, keys: Sequence[ChunkKey], claim: Claimed, *, evicted: bool) -> None:
        """From resident to leaving: not found any more, but still on the store."""
        sizes = [self._sizes[key] for key in keys]
        self._leaving.update(Pending.run(keys, sizes, claim, None))
        for key in keys:
            del self._sizes[key]
        self._used -= sum(sizes)
        self._settle(claim, leaving=sum(sizes))
        self._policy.drop(keys, evicted=evicted)

    def _settle_reserved(self, settled: Mapping[ChunkKey, Pending]) -> None:
        """These are reserved no more; all were looked up before anything was changed."""
        for claim, run in groupby(settled.values(), key=attrgetter("claim")):
            self._settle(claim, writing=-sum([pending.size for pending in run]))
        for key in settled:
            del self._reserved[key]

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
        known = set(self._policy.known())
        self._policy.drop([*known.difference(self._sizes)], evicted=False)
        if new := [key for key in self._sizes if key not in known]:
            self._policy.admit(new, None)


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
