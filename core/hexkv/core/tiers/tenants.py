"""Tenants: a tier divided into shares, so that one tenant never pushes out another's chunks.

A tenant is known by the salt in its namespaces; every namespace has a prefix of its keys,
so whose a chunk is can be read off its key. Each tenant has an index, a policy and a byte
budget of its own in each tier where it has a quota; everybody else shares the rest.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from threading import Lock

from hexkv.core.tiers.index import Reservation, TierIndex
from hexkv.ports import ChunkKey, Entry, namespace_of


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody whose chunks are kept apart."""

    name: str
    salt: str = field(repr=False)
    """The secret in the tenant's namespaces."""

    quotas: Mapping[str, int] = field(default_factory=dict)
    """Bytes that are the tenant's alone, by tier."""


class DividedIndex:
    """An index made of one per tenant, and one that the others share.

    Answers as :class:`~hexkv.core.tiers.index.TierIndex` does; each call goes to the shares that
    its keys belong to.

    Args:
        rest: for chunks of nobody in particular.
        shares: by a tenant's name.
    """

    def __init__(self, rest: TierIndex, shares: Mapping[str, TierIndex]) -> None:
        self._rest = rest
        self._shares = dict(shares)
        self._owner: dict[bytes, TierIndex] = {}
        self._restored: dict[bytes, list[Entry]] = {}
        self._assigning = Lock()

    def assign(self, prefix: bytes, tenant: str) -> list[ChunkKey]:
        """From now on keys that begin with *prefix* are *tenant*'s; those restored before, too.

        A *tenant* who has no share here is nobody in particular.

        Returns:
            victims to delete, where those are more than the quota.
        """
        share = self._shares.get(tenant)
        with self._assigning:
            if share is None:
                self._restored.pop(prefix, None)
                return []
            if self._owner.get(prefix) is share:
                return []
            entries = self._restored.pop(prefix, [])
            here = [entry for entry in entries if self._rest.size(entry.key) is not None]
            gone = self._rest.discard([entry.key for entry in here])
            self._rest.deleted(gone)
            victims = share.restore(here)
            self._owner[prefix] = share
            return victims

    def used_by(self) -> Mapping[str, int]:
        """Bytes in each tenant's share."""
        return {name: share.used for name, share in self._shares.items()}

    @property
    def policy(self) -> str:
        return self._rest.policy

    @property
    def budget(self) -> int | None:
        budgets = [index.budget for index in self._all()]
        return None if None in budgets else sum(budget or 0 for budget in budgets)

    @property
    def used(self) -> int:
        return sum(index.used for index in self._all())

    def __len__(self) -> int:
        return sum(len(index) for index in self._all())

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        return [here for index, run in self._runs(keys) for here in index.contains(run)]

    def size(self, key: ChunkKey) -> int | None:
        return self._of(key).size(key)

    def keys(self) -> list[ChunkKey]:
        return list(chain.from_iterable(index.keys() for index in self._all()))

    def reserve(
        self, keys: Sequence[ChunkKey], sizes: Sequence[int], after: ChunkKey | None = None
    ) -> Reservation:
        total, start = Reservation(), 0
        # What was restored and has not found its tenant may take more than the common share.
        if self._restored and self.budget is not None and keys:
            share = self._of(keys[0])
            grown = min(sum(sizes), max(0, (share.budget or 0) - share.used))
            total.victims.extend(self._rest.evict(self.used + grown - self.budget))
        for index, run in self._runs(keys):
            before = keys[start - 1] if start else after
            part = index.reserve(run, sizes[start : start + len(run)], before)
            start += len(run)
            total.keys.extend(part.keys)
            total.victims.extend(part.victims)
            total.busy.extend(part.busy)
            total.refused.extend(part.refused)
        return total

    def commit(self, keys: Sequence[ChunkKey]) -> None:
        for index, run in self._runs(keys):
            index.commit(run)

    def abort(self, keys: Sequence[ChunkKey]) -> None:
        for index, run in self._runs(keys):
            index.abort(run)

    def deleted(self, keys: Sequence[ChunkKey]) -> None:
        for index, run in self._runs(keys):
            index.deleted(run)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        for index, run in self._runs(keys):
            index.touch(run)

    def discard(self, keys: Sequence[ChunkKey], *, force: bool = True) -> list[ChunkKey]:
        return [key for index, run in self._runs(keys) for key in index.discard(run, force=force)]

    def resize(self, key: ChunkKey, size: int) -> list[ChunkKey] | None:
        return self._of(key).resize(key, size)

    def evict(self, size: int) -> list[ChunkKey]:
        """Victims among the chunks that are no tenant's: quotas are not given away."""
        return self._rest.evict(size)

    def restore(self, entries: Iterable[Entry]) -> list[ChunkKey]:
        found: dict[bytes, list[Entry]] = {}
        for entry in entries:
            found.setdefault(namespace_of(entry.key), []).append(entry)
        victims: list[ChunkKey] = []
        strangers: list[Entry] = []
        with self._assigning:
            for prefix, part in found.items():
                share = self._owner.get(prefix)
                if share is not None:
                    victims.extend(share.restore(part))
                elif self._shares:
                    self._restored[prefix] = part
                    strangers.extend(part)
                else:
                    strangers.extend(part)
        # They may be tenants' who have not been met in this life: nobody's share is theirs yet,
        # so nothing is lost that the shares together have room for.
        budget = self.budget
        others = sum(share.used for share in self._shares.values())
        limit = None if budget is None else budget - others
        return [*victims, *self._rest.restore(strangers, limit)]

    def pin(self, owner: str, keys: Sequence[ChunkKey]) -> int:
        return sum(index.pin(owner, run) for index, run in self._runs(keys))

    def unpin(self, owner: str) -> int:
        return sum(index.unpin(owner) for index in self._all())

    @property
    def pinned(self) -> Mapping[str, int]:
        total: Tally[str] = Tally()
        for index in self._all():
            total.update(index.pinned)
        return dict(total)

    def _all(self) -> list[TierIndex]:
        return [self._rest, *self._shares.values()]

    def _of(self, key: ChunkKey) -> TierIndex:
        return self._owner.get(namespace_of(key), self._rest)

    def _runs(self, keys: Sequence[ChunkKey]) -> Iterable[tuple[TierIndex, Sequence[ChunkKey]]]:
        """Neighbouring keys of one share together: all of them, but for mixed maintenance calls."""
        return [
            (self._owner.get(prefix, self._rest), list(run))
            for prefix, run in groupby(keys, namespace_of)
        ]


Index = TierIndex | DividedIndex
"""What a tier holds, with or without tenants."""
