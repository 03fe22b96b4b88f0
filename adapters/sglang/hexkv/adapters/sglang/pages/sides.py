"""Pools beside the model's KV: recurrent states, sliding windows, indexes of sparse attention.

SGLang names their pages like the KV's pages that they go with. Each pool has a namespace of its
own. Windows of plain KV move as the KV does, in any layout of host memory; pages of every
other kind as SGLang flattens them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.srt.mem_cache import hicache_storage

from hexkv.adapters.sglang.identity.arguments import joined_by_draft
from hexkv.adapters.sglang.identity.identity import Rank, server_arguments
from hexkv.adapters.sglang.pages.aside import Aside
from hexkv.adapters.sglang.pages.page_store import PageStore
from hexkv.adapters.sglang.pages.pools import (
    FlatPool,
    HostPages,
    OpaquePages,
    Pages,
    packing_of,
    pages_of,
)
from hexkv.plugins.configuration.schema import Calls
from hexkv.ports import PrefixCache

KV = "kv"
"""SGLang's name of the model's own pool."""

_OWN = "mamba"
"""A state that each rank has a share of, also where the KV is the same on all."""

_DRAFT = "draft"
"""The prefix of SGLang's names of a draft model's pools."""

_TRAILING = "trailing_pages"
_ALL = "all_pages"


@dataclass(frozen=True, slots=True)
class PrefixEnds:
    """The places where a prefix may end."""

    lengths: list[int]
    """In pages, ascending: every length at which all pools have the pages that they need."""

    pools: dict[str, int]
    """By pool, the longest that it would allow."""


@dataclass(frozen=True, slots=True)
class Side:
    """One pool."""

    pages: Pages
    store: PageStore

    def load(self, keys: Sequence[str], starts: Sequence[int]) -> list[bool]:
        """Load pages into the pool. Which ones arrived."""
        hit = self.pages.fill(starts, lambda window: self.store.load(keys, window))
        return [i < hit for i in range(len(keys))]

    def save(self, keys: Sequence[str], starts: Sequence[int]) -> list[bool]:
        """Store pages of the pool. Which ones are kept."""
        return [self.store.save(keys, self.pages.window(starts))] * len(keys)


class Sides:
    """The pools beside the model's own, by name."""

    def __init__(
        self, engine: PrefixCache, deadlines: Calls, main: Pages, rank: Rank, aside: Aside
    ) -> None:
        self._engine = engine
        self._deadlines = deadlines
        self._main = main
        self._rank = rank
        self._aside = aside
        self._sides: dict[str, Side] = {}

    def register(self, name: str, pool: FlatPool) -> None:
        """Take a pool.

        Raises:
            LayoutMismatch: its pages cannot be moved.
        """
        pages = self._pages_of(pool)
        base = self._engine.namespace
        extra = dict(base.extra) | {"engine": "sglang", "pool": name}
        if name.startswith(_DRAFT):
            extra |= joined_by_draft(server_arguments())
        if isinstance(pages, OpaquePages):
            extra["pages"] = packing_of(pool)
        namespace = replace(
            base,
            layout=pages.layout,
            parallel=self._rank.whole if name == _OWN else base.parallel,
            extra=tuple(sorted(extra.items())),
        )
        store = PageStore(
            self._engine,
            self._main.page,
            self._deadlines,
            namespace,
            pages.pieces,
            aside=self._aside,
        )
        self._sides[name] = Side(pages, store)

    def _pages_of(self, pool: FlatPool) -> Pages:
        """Pages of *pool*, in chunks that are no larger than those of the KV."""
        most = self._main.layout.chunk_bytes(self._main.page)
        known = pages_of(pool) if not self._main.opaque else None
        if (
            isinstance(known, HostPages)
            and known.page == self._main.page
            and known.layout.chunk_bytes(known.page) <= most
        ):
            return known
        return OpaquePages(pool, self._main.page, most)

    def __getitem__(self, name: str) -> Side:
        """The pool of that name.

        Raises:
            KeyError: it was not registered.
        """
        return self._sides[name]

    def find(self, keys: Sequence[str], pages: int, transfers: Sequence[Any]) -> PrefixEnds:
        """Where a prefix of *keys* may end, of which *pages* pages of KV are stored."""
        lengths = list(range(1, pages + 1))
        pools = {KV: pages}
        for transfer in transfers:
            name, policy = str(transfer.name), str(getattr(transfer.hit_policy, "value", ""))
            if name == KV or policy not in (_ALL, _TRAILING):
                continue  # a second form of the KV, which does not limit it
            side = self._sides.get(name)
            if side is None:
                pools[name], lengths = 0, []
                continue
            if policy == _ALL:
                here = side.store.find(keys[:pages])
                fits = set(range(1, here + 1))
            else:
                there = side.store.present(keys[:pages])
                need = max(1, len(transfer.keys or ()))
                fits = {n for n in range(1, pages + 1) if all(there[max(0, n - need) : n])}
            pools[name] = max(fits, default=0)
            lengths = [length for length in lengths if length in fits]
        return PrefixEnds(lengths, pools)

    @staticmethod
    def result(found: object) -> object:
        """SGLang's ``PoolTransferResult``; older versions have fewer fields."""
        answer = found if isinstance(found, PrefixEnds) else PrefixEnds([], {})
        names = {str(name): name for name in getattr(hicache_storage, "PoolName", ())}
        hits = {names.get(name, name): count for name, count in answer.pools.items() if count}
        kind = hicache_storage.PoolTransferResult
        result: object = kind(max(answer.lengths, default=0), hits)
        if hasattr(result, "restorable_prefix_pages"):
            result.restorable_prefix_pages = answer.lengths
        return result
