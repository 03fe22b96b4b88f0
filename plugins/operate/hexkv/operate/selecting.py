"""The chunks of a tier that an operator selects, and the tenants of namespaces."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock

from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    ChunkKey,
    ChunkSpec,
    InvalidRequest,
    NamespaceState,
    Selection,
    namespace_of,
)

_INDEXING = "its content is still being listed"

Read = Callable[[ChunkKey, Tier], ChunkSpec | None]
"""Reads the spec of a chunk on a tier."""


class Namespaces:
    """The namespaces with chunks on the tiers. Safe from any thread.

    Each is identified by the header of one of its chunks, which is read once.
    """

    def __init__(self, stack: TierStack, tenants: Mapping[str, str]) -> None:
        """List those of *stack*; *tenants* are names by the digest of the salt in identities."""
        self._stack = stack
        self._tenants = dict(tenants)
        self._identities: dict[bytes, str] = {}
        self._lock = Lock()

    def states(self, read: Read) -> list[NamespaceState]:
        """Return every namespace that has chunks, or was used; the largest first."""
        counts: dict[bytes, dict[str, int]] = {}
        met = self._stack.tenants
        for tier in self._stack.tiers:
            keys = tier.index.keys()
            examples = dict(zip(map(namespace_of, keys), keys, strict=True))
            for prefix, count in Counter(map(namespace_of, keys)).items():
                counts.setdefault(prefix, {})[tier.name] = count
                self._meet(prefix, examples[prefix], tier, read)
        for prefix in met:
            counts.setdefault(prefix, {})
        with self._lock:
            known = dict(self._identities)
        return [
            NamespaceState(
                prefix,
                known.get(prefix, ""),
                met.get(prefix, "") or self._tenant(known.get(prefix, "")),
                chunks,
            )
            for prefix, chunks in sorted(counts.items(), key=lambda item: -sum(item[1].values()))
        ]

    def _meet(self, prefix: bytes, key: ChunkKey, tier: Tier, read: Read) -> None:
        with self._lock:
            if prefix in self._identities:
                return
        spec = read(key, tier)
        if spec is not None:
            with self._lock:
                self._identities[prefix] = spec.identity

    def _tenant(self, identity: str) -> str:
        try:
            return self._tenants.get(json.loads(identity)["salt"], "")
        except (ValueError, TypeError, LookupError, RecursionError):
            return ""  # of another version, or of a host that names its keys itself


class Chosen:
    """A resolved selection. Raises ``InvalidRequest`` when it is made for an unknown tenant."""

    def __init__(
        self,
        selection: Selection,
        namespaces: Callable[[], Sequence[NamespaceState]],
        late: Collection[str],
    ) -> None:
        """Resolve *selection*.

        Args:
            selection: of chunks.
            namespaces: called if a tenant is selected.
            late: names of the tiers whose content is still being listed.
        """
        self._selection = selection
        self._late = late
        self.prefixes: Collection[bytes] | None = selection.namespaces or None
        """Prefixes of the keys; ``None`` if they are selected otherwise."""

        self._unknown: Counter[str] = Counter()
        """By tier, the number of unreadable chunks that may be the tenant's."""

        if selection.tenant:
            states = namespaces()
            self.prefixes = [it.prefix for it in states if it.tenant == selection.tenant]
            for it in states:
                if not (it.identity or it.tenant):
                    self._unknown.update(it.chunks)
            if not self.prefixes:
                names = ", ".join(sorted({it.tenant for it in states if it.tenant})) or "none"
                raise InvalidRequest(
                    f"no namespace of a tenant {selection.tenant!r} is known; there are: {names}"
                )

    def left(self, tiers: Sequence[Tier]) -> dict[str, str]:
        """Return by tier why more selected chunks may be there."""
        found = {tier.name: _INDEXING for tier in tiers if tier.name in self._late}
        if self._selection.tenant:
            for tier in tiers:
                if not tier.index.decides:
                    found[tier.name] = "only its store knows of other namespaces of the tenant"
                elif unknown := self._unknown[tier.name]:
                    found[tier.name] = f"{unknown} chunks cannot be read: whose they are is unknown"
        return found

    def keys(self, tier: Tier) -> list[ChunkKey]:
        """Return the selected chunks on *tier*; for a share, the least valuable ones first.

        Raises:
            InvalidRequest: only its store knows its content.
        """
        chosen = self._selection
        if chosen.keys and chosen.oldest == 1:
            return list(dict.fromkeys(chosen.keys))
        if not tier.index.decides:
            raise InvalidRequest(f"only the store of tier {tier.name!r} knows its chunks")
        wanted, prefixes = set(chosen.keys), set(self.prefixes or ())

        def meant(keys: list[ChunkKey]) -> list[ChunkKey]:
            if wanted:
                return [key for key in keys if key in wanted]
            if self.prefixes is not None:
                return [key for key in keys if namespace_of(key) in prefixes]
            return keys

        if chosen.oldest == 1:
            return meant(tier.index.keys())
        shares = [meant(share.ranked()) for share in tier.index.shares()]
        return [key for share in shares for key in share[: math.ceil(len(share) * chosen.oldest)]]
