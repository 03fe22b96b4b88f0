"""Tenants: a tier divided into shares, so that no tenant evicts another's chunks.

A tenant is identified by the salt in its namespaces; every namespace has a prefix of its keys, so
the key of a chunk determines its tenant. Each tenant has an index, a policy and a byte budget of
its own in each tier where it has a quota; all others share the rest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, groupby
from os import urandom
from threading import Lock
from typing import ClassVar

from hexkv.core.tiers.index.bookkeeping import Reservation, in_order
from hexkv.core.tiers.index.index import TierIndex
from hexkv.ports import ChunkKey, Entry, namespace_of

_AT_ONCE = 1024
"""The number of chunks handed over before other calls may proceed."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant whose chunks are kept apart."""

    name: str
    salt: str = field(repr=False)
    """The secret in the tenant's namespaces."""

    quotas: Mapping[str, int] = field(default_factory=dict)
    """Bytes reserved for the tenant, by tier."""


class TenantsBySalt:
    """The tenant of a salt. Holds no salt: only digests under a secret random key."""

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._key = urandom(32)
        self._names = {self._digest(tenant.salt): tenant.name for tenant in tenants}

    def name(self, salt: str) -> str:
        """Return the tenant's name; empty for a salt without a tenant."""
        return self._names.get(self._digest(salt), "")

    def _digest(self, salt: str) -> bytes:
        return blake2b(salt.encode(), key=self._key, digest_size=32).digest()


class DividedIndex:
    """An index made of one per tenant, and one shared by all others.

    It answers as :class:`~hexkv.core.tiers.index.index.TierIndex` does; each call goes to the
    shares that its keys belong to.

    Args:
        rest: the index for chunks without a tenant's share.
        shares: the tenants' indexes, by name.
    """

    decides: ClassVar[bool] = True

    def __init__(self, rest: TierIndex, shares: Mapping[str, TierIndex]) -> None:
        self._rest = rest
        self._shares = dict(shares)
        self._owner: dict[bytes, TierIndex] = {}
        self._restored: dict[bytes, deque[list[Entry]]] = {}
        """The restored chunks of each prefix that is not assigned yet."""

        self._unmet: set[bytes] = set()
        """Prefixes of chunks that were stored by key before their prefix was assigned."""

        self._arranging = Lock()

    def assign(self, prefix: bytes, tenant: str) -> list[ChunkKey]:
        """Assign keys that begin with *prefix* to *tenant*, also those that are here already.

        Keys of a *tenant* without a share here belong to the rest.

        Returns:
            victims to delete, if its chunks exceed the quota.
        """
        share = self._shares.get(tenant, self._rest)
        while True:
            with self._arranging:
                if share is self._rest:
                    self._restored.pop(prefix, None)
                    self._unmet.discard(prefix)
                if prefix in self._unmet:
                    self._unmet.discard(prefix)
                    self._restored.setdefault(prefix, deque()).extend(self._among_the_rest(prefix))
                parts = self._restored.get(prefix)
                if not parts:
                    self._restored.pop(prefix, None)
                    self._owner[prefix] = share
                    break
                self._hand_over(parts.popleft(), share)  # in parts: other calls proceed in between
        return [] if share is self._rest else share.trim(share.budget)

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

    def ranked(self) -> list[ChunkKey]:
        return list(chain.from_iterable(index.ranked() for index in self._all()))

    def shares(self) -> Sequence[TierIndex]:
        return self._all()

    def pinned_by(self, owner: str) -> list[ChunkKey]:
        return list(chain.from_iterable(index.pinned_by(owner) for index in self._all()))

    def reserve(
        self, keys: Sequence[ChunkKey], sizes: Sequence[int], after: ChunkKey | None = None
    ) -> Reservation:
        total, start = Reservation(), 0
        for index, run in self._runs(keys):
            before = keys[start - 1] if start else after
            wanted = list(zip(run, sizes[start : start + len(run)], strict=True))
            start += len(run)
            with self._arranging:
                if index is not self._rest:
                    # A chunk evicted before its tenant was known may still be on the store.
                    busy = self._rest.pending(run)
                    total.busy.extend(key for key, b in zip(run, busy, strict=True) if b)
                    wanted = [both for both, b in zip(wanted, busy, strict=True) if not b]
                sizes_of = [size for _, size in wanted]
                within = self._room(index, sum(sizes_of), total)
                part = index.reserve([key for key, _ in wanted], sizes_of, before, within)
            total.parts.append(part)
            total.keys.extend(part.keys)
            total.victims.extend(part.victims)
            total.busy.extend(part.busy)
            total.refused.extend(part.refused)
        return total

    def commit(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """As for one share; but chunks reserved in the rest may belong to a tenant by now.

        Returns:
            victims to delete, if the chunks exceed the quota.
        """
        victims: list[ChunkKey] = []
        with self._arranging:
            for index, run in self._runs(keys):
                early = self._early(index, run)
                index.commit([key for key in run if key not in early])
                if early:
                    self._rest.commit(list(early))
                    self._hand_over(self._entries(early), index)
                    victims += index.trim(index.budget)
                if (prefix := namespace_of(run[0])) not in self._owner:
                    self._unmet.add(prefix)
        return victims

    def abort(self, keys: Sequence[ChunkKey]) -> None:
        for index, run in self._runs(keys):
            early = self._early(index, run)
            index.abort([key for key in run if key not in early])
            self._rest.abort(list(early))

    def deleted(self, keys: Sequence[ChunkKey]) -> None:
        for index, run in self._runs(keys):
            index.deleted(run)
            if index is not self._rest:  # may have evicted them before they were assigned
                self._rest.deleted(run)

    def leaving(self, keys: Sequence[ChunkKey] | None = None) -> list[ChunkKey]:
        # As for depart: both the rest and a tenant's share may hold a record of one chunk.
        return list(dict.fromkeys(key for index in self._all() for key in index.leaving(keys)))

    def depart(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        # A tenant's chunk may be in the rest, from before its prefix was assigned.
        stay = self._rest.stays(keys)
        gone = [key for key, stays in zip(keys, stay, strict=True) if not stays]
        return [key for index, run in self._runs(gone) for key in index.depart(run)]

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        for index, run in self._runs(keys):
            index.touch(run)

    def discard(self, keys: Sequence[ChunkKey], *, force: bool = True) -> list[ChunkKey]:
        return [key for index, run in self._runs(keys) for key in index.discard(run, force=force)]

    def resize(self, key: ChunkKey, size: int) -> list[ChunkKey] | None:
        with self._arranging:
            within = None if self.budget is None else self.budget - self.used
            return self._of(key).resize(key, size, within)

    def evict(self, size: int) -> list[ChunkKey]:
        """Return victims among the chunks of the rest: quotas are guaranteed."""
        return self._rest.evict(size)

    def orphans(self) -> Sequence[ChunkKey]:
        return [key for index in self._all() for key in index.orphans()]

    def restore(self, entries: Iterable[Entry]) -> list[ChunkKey]:
        for part in in_order(entries):
            found: dict[bytes, list[Entry]] = {}
            for entry in part:
                found.setdefault(namespace_of(entry.key), []).append(entry)
            with self._arranging:
                for prefix, some in found.items():
                    self._of_prefix(prefix).adopt(some)
                    if self._shares and prefix not in self._owner:
                        self._restored.setdefault(prefix, deque()).append(some)
        return self.trimmed()

    def limit(self, budget: int, quotas: Mapping[str, int]) -> list[ChunkKey]:
        """Change the budget, and the quotas of some tenants. Return victims to delete."""
        with self._arranging:
            for name, quota in quotas.items():
                self._shares[name].budget = quota
            self._rest.budget = budget - sum(self.quotas().values())
        return self.trimmed()

    def quotas(self) -> Mapping[str, int]:
        """Bytes that are each tenant's alone."""
        return {name: share.budget or 0 for name, share in self._shares.items()}

    def trimmed(self) -> list[ChunkKey]:
        """Return victims to delete, if the chunks exceed the budgets."""
        victims = [key for share in self._shares.values() for key in share.trim(share.budget)]
        # The rest may belong to tenants whose prefixes are not assigned in this life: no share
        # has these chunks yet, so none is lost that all shares together have space for.
        budget = self.budget
        others = sum(share.staying for share in self._shares.values())
        return [*victims, *self._rest.trim(None if budget is None else budget - others)]

    def pin(self, owner: str, keys: Sequence[ChunkKey]) -> int:
        with self._arranging:
            return sum(index.pin(owner, run) for index, run in self._runs(keys))

    def unpin(self, owner: str) -> int:
        with self._arranging:
            return sum(index.unpin(owner) for index in self._all())

    @property
    def pinned(self) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for index in self._all():
            total.update(index.pinned)
        return dict(total)

    def _all(self) -> list[TierIndex]:
        return [self._rest, *self._shares.values()]

    def _of(self, key: ChunkKey) -> TierIndex:
        return self._of_prefix(namespace_of(key))

    def _of_prefix(self, prefix: bytes) -> TierIndex:
        return self._owner.get(prefix, self._rest)

    def _hand_over(self, entries: Sequence[Entry], share: TierIndex) -> None:
        """Move chunks from the rest to *share*, with their pins."""
        pins = {owner: self._rest.pinned_by(owner) for owner in self._rest.pinned}
        gone = self._rest.discard([entry.key for entry in entries])
        self._rest.deleted(gone)
        here = set(gone)
        share.adopt([entry for entry in entries if entry.key in here])
        for owner, keys in pins.items():
            share.pin(owner, [key for key in keys if key in here])

    def _among_the_rest(self, prefix: bytes) -> Iterator[list[Entry]]:
        """Yield the rest's entries of *prefix*, in parts to adopt one after the other."""
        keys = [key for key in self._rest.ranked() if namespace_of(key) == prefix]
        for start in range(0, len(keys), _AT_ONCE):
            # The least valuable comes first; but within an adopted part, the first is most
            # valuable.
            yield self._entries(reversed(keys[start : start + _AT_ONCE]))

    def _entries(self, keys: Iterable[ChunkKey]) -> list[Entry]:
        return [Entry(key, self._rest.size(key) or 0, 0.0) for key in keys]

    def _room(self, index: TierIndex, size: int, total: Reservation) -> int | None:
        """Return the bytes free for *index* in the whole tier, for its growth by *size*.

        Restored chunks without a tenant yet may exceed the common share: that excess makes room,
        and is among the victims of *total*.
        """
        whole, own, common = self.budget, index.budget, self._rest.budget
        if whole is None or own is None or common is None:
            return None
        free = whole - self.used
        lent = self._rest.staying - common
        lacking = min(size, own - index.used) - free
        if index is not self._rest and lent > 0 and lacking > 0:
            gone = self._rest.evict(min(lacking, lent))
            total.victims.extend(gone)
            total.parts.append(gone)
            free += self._rest.leaving_bytes(gone)
        return free

    def _early(self, index: TierIndex, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        """Return those of *keys* that were reserved in the rest before *index* got their prefix."""
        if index is self._rest:
            return ()
        return [key for key, early in zip(keys, self._rest.pending(keys), strict=True) if early]

    def _runs(self, keys: Sequence[ChunkKey]) -> Iterable[tuple[TierIndex, Sequence[ChunkKey]]]:
        """Group neighbouring keys by share: one group, except in mixed maintenance calls."""
        return [(self._of_prefix(prefix), list(run)) for prefix, run in groupby(keys, namespace_of)]
