"""The storage backend of SGLang's hierarchical cache: tiers behind device and host memory.

SGLang loads the class by name (``--hicache-storage-backend dynamic``), makes one in each
scheduler process, and calls it from three threads at once: ``batch_exists`` on the one that
prefetches, reads on its second one, writes on the one that backs up. A page that is damaged on
a tier is dropped there and missing here: SGLang computes it again, and stores it again.

There are three ways to ask for pages, all in use: with flat copies (``batch_get``), in the host
pool by index (``batch_get_v1``, with ``"interface_v1": 1``), and in several pools at once
(``batch_get_v2``, for models with more than one kind of state).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from hexkv.adapters.sglang.configuration import RawConfig
from hexkv.adapters.sglang.forward_times import FORWARDS
from hexkv.adapters.sglang.identity.identity import Rank
from hexkv.adapters.sglang.opening import open_engine
from hexkv.adapters.sglang.pages.aside import Aside
from hexkv.adapters.sglang.pages.page_store import PageStore
from hexkv.adapters.sglang.pages.pools import FlatPool, HostPages, Pages, packing_of, pages_of
from hexkv.adapters.sglang.pages.sides import KV, Sides
from hexkv.kernels.guard import Guard
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.support.causes import causing
from hexkv.ports import ConfigError, InvalidRequest, Namespace, PrefixCache

log = logging.getLogger("hexkv.sglang")
guarded = Guard(log)

_METRICS = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")


_ADVICE = (
    "empty SGLang's cache (/flush_cache), detach hexkv, and attach it with a new model.weights; or"
    " restart the server"
)
"""The way out once weights were replaced."""


def _no(keys: Sequence[str], *_: object, **__: object) -> list[bool]:
    return [False] * len(keys)


def _none(keys: Sequence[str], *_: object, **__: object) -> list[None]:
    return [None] * len(keys)


class HexKVStorage(HiCacheStorage):  # type: ignore[misc]  # untyped here
    """hexkv as SGLang's third level. After ``close`` everything is a miss."""

    @causing()
    def __init__(self, storage_config: Any, kwargs: object = None) -> None:
        """Read the configuration.

        Args:
            storage_config: a ``HiCacheStorageConfig``; which fields it has depends on SGLang.
            kwargs: nothing yet.

        Raises:
            ConfigError: it cannot be. SGLang does not start, or does not attach.
        """
        del kwargs
        self._raw = RawConfig(getattr(storage_config, "extra_config", None) or {}, discover())
        self._rank = Rank.of(storage_config)
        self._name = getattr(storage_config, "model_name", None)
        self._engine: PrefixCache | None = None

    def register_mem_pool_host(self, mem_pool_host: FlatPool) -> None:
        """Take the pool of the model's KV, and open the tiers.

        Raises:
            ConfigError, AdapterUnavailable, StoreError, PoolExhausted: they cannot be opened.
            LayoutMismatch: the pool's pages cannot be moved.
        """
        super().register_mem_pool_host(mem_pool_host)
        self.close()
        pages = pages_of(mem_pool_host, opaque=self._raw.chosen.layout == "opaque")
        inside = {}
        if pages.opaque:
            if self._raw.chosen.namespace == "canonical":
                raise ConfigError(
                    f"namespace: is 'canonical', but only SGLang understands the pages of a"
                    f" {type(mem_pool_host).__name__} in layout {mem_pool_host.layout}"
                )
            inside = {"pages": packing_of(mem_pool_host)}
        self._engine, deadlines, self._weights = open_engine(
            self._raw,
            pages.layout,
            self._rank,
            page=pages.page,
            name=self._name,
            inside=inside,
            advice=_ADVICE,
        )
        self._pages: Pages = pages
        self._aside = Aside()
        self._store = PageStore(
            self._engine,
            pages.page,
            deadlines,
            aside=self._aside,
            before=FORWARDS.informing(self._engine),
        )
        self._store.telemetry = self._engine.telemetry
        self._sides = Sides(self._engine, deadlines, pages, self._rank, self._aside)

    def register_mem_host_pool_v2(self, host_pool: FlatPool, host_pool_name: Any) -> None:
        """Take a further pool."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != KV and self._engine is not None:
            self._sides.register(str(host_pool_name), host_pool)

    @guarded(0)
    def batch_exists(self, keys: list[str], extra_info: object = None) -> int:
        """The number of *keys* from the first one on that are stored."""
        del extra_info
        return self._store.find(keys) if self._reads else 0

    def exists(self, key: str) -> bool:
        return bool(self.batch_exists([key]))

    @guarded(_none)
    def batch_get(
        self,
        keys: list[str],
        target_locations: Sequence[torch.Tensor] | None = None,
        target_sizes: object = None,
    ) -> list[torch.Tensor | None]:
        """Pages flattened by SGLang, in *target_locations*; ``None`` for those not found."""
        del target_sizes
        if not self._reads:
            return [None] * len(keys)
        pages = target_locations or [self.mem_pool_host.get_dummy_flat_data_page() for _ in keys]
        window, copy = self._pages.flat_window(pages)
        hit = self._store.load(keys, window)
        if not self._valid:  # the weights changed during the load
            hit = 0
        for page, row in zip(pages[:hit], copy, strict=False):
            flat = row if isinstance(self._pages, HostPages) else self._pages.flat(row)
            page.copy_(flat.view(page.shape))
        return [*pages[:hit], *[None] * (len(keys) - hit)]

    @guarded(False)
    def batch_set(
        self,
        keys: list[str],
        values: Sequence[torch.Tensor] | None = None,
        target_locations: object = None,
        target_sizes: object = None,
    ) -> bool:
        """Store pages flattened by SGLang. Return True if all are kept."""
        del target_locations, target_sizes
        if not self._writes:
            return True
        if values is None or len(values) != len(keys):
            raise InvalidRequest("one flat page is needed for each key")
        return self._store.save(keys, self._pages.flat_window(values)[0])

    def get(
        self, key: str, target_location: torch.Tensor | None = None, target_sizes: object = None
    ) -> torch.Tensor | None:
        del target_sizes
        found = self.batch_get([key], None if target_location is None else [target_location])
        return found[0]

    def set(
        self,
        key: str,
        value: torch.Tensor | None = None,
        target_location: object = None,
        target_sizes: object = None,
    ) -> bool:
        del target_location, target_sizes
        return self.batch_set([key], None if value is None else [value])

    @guarded(_no)
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: object = None
    ) -> list[bool]:
        """Load pages into the host pool, at the slots *host_indices*. Which ones arrived."""
        del extra_info
        if not self._reads:
            return [False] * len(keys)
        starts = self._starts(keys, host_indices)
        hit = self._pages.fill(starts, lambda window: self._store.load(keys, window))
        valid = self._valid  # False if the weights changed during the load
        return [valid and i < hit for i in range(len(keys))]

    @guarded(_no)
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: object = None
    ) -> list[bool]:
        """Store pages of the host pool. All are kept, or none can be relied on."""
        del extra_info
        if not self._writes:
            return [True] * len(keys)
        starts = self._starts(keys, host_indices)
        return [self._store.save(keys, self._pages.window(starts))] * len(keys)

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: Sequence[Any] | None = None,
        extra_info: object = None,
    ) -> object:
        """The number of pages from the first one on that are usable with those of other pools."""
        del extra_info
        found = self._find_all(keys, list(pool_transfers or ()))
        return self._sides.result(found)

    @guarded(lambda *_, **__: None)
    def _find_all(self, keys: list[str], transfers: list[Any]) -> object:
        pages = self._store.find(keys) if self._reads else 0
        return self._sides.find(keys, pages, transfers)

    def batch_get_v2(
        self, transfers: Sequence[Any], extra_info: object = None
    ) -> dict[str, list[bool]]:
        """Load pages of several pools. By pool, which ones arrived."""
        return {t.name: self._move(t, "get", extra_info) for t in transfers}

    def batch_set_v2(
        self, transfers: Sequence[Any], extra_info: object = None
    ) -> dict[str, list[bool]]:
        """Store pages of several pools. By pool, which ones are kept."""
        return {t.name: self._move(t, "set", extra_info) for t in transfers}

    def _move(self, transfer: Any, way: str, extra_info: object) -> list[bool]:
        keys = list(transfer.keys or ())
        if str(transfer.name) == KV:
            chosen = self.batch_get_v1 if way == "get" else self.batch_set_v1
            return chosen(keys, transfer.host_indices, extra_info)
        if way == "set" and not self._writes:
            return [True] * len(keys)
        return self._move_side(keys, transfer, way)

    @guarded(_no)
    def _move_side(self, keys: list[str], transfer: Any, way: str) -> list[bool]:
        if way == "get" and not self._reads:
            return [False] * len(keys)
        side = self._sides[str(transfer.name)]
        starts = _starts(keys, transfer.host_indices, side.pages.page)
        if way == "set":
            return side.save(keys, starts)
        found = side.load(keys, starts)
        return found if self._valid else _no(keys)

    @guarded(None)
    def clear(self) -> None:
        """Delete every page of this model that the rank knows. Logs where some may be left."""
        if self._engine is None:
            return
        for tier, why in self._engine.clear().left.items():
            log.error("tier %s was not cleared, pages may be left: %s", tier, why)

    @guarded(None)
    def get_stats(self) -> object:
        """SGLang's ``StorageMetrics`` of the traffic since the last call."""
        if self._engine is None:
            return None
        loaded, saved = self._store.traffic()
        for module in _METRICS:
            try:
                kind = import_module(module).StorageMetrics
            except (ImportError, AttributeError):
                continue
            metrics: object = kind(loaded[0], saved[0], loaded[1], saved[1])
            return metrics
        return None

    @guarded(None)
    def close(self) -> None:
        """Finish writes under way, and close the tiers. Twice is allowed."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._aside.close()
            engine.close()

    @contextmanager
    def hexkv_stopped(self) -> Iterator[None]:
        """While SGLang stops its threads: no call of theirs waits, or moves anything."""
        if self._engine is None:
            yield
            return
        self._aside.stop()
        try:
            yield
        finally:
            self._aside.go_on()

    @property
    def namespace(self) -> Namespace | None:
        """The namespace of the pages, once the pool is known."""
        return None if self._engine is None else self._engine.namespace

    @property
    def _reads(self) -> bool:
        return self._raw.chosen.read and self._valid

    @property
    def _writes(self) -> bool:
        return self._raw.chosen.write and self._valid

    @property
    def _valid(self) -> bool:
        return self._engine is not None and not self._weights.off

    def _starts(self, keys: Sequence[str], host_indices: torch.Tensor) -> list[int]:
        return _starts(keys, host_indices, self._pages.page)


def _starts(keys: Sequence[str], indices: torch.Tensor | None, page: int) -> list[int]:
    """The index of each page's first slot.

    Raises:
        InvalidRequest: there are other slots than the pages have.
    """
    if indices is None or indices.numel() != len(keys) * page:
        count = 0 if indices is None else indices.numel()
        raise InvalidRequest(f"{len(keys)} pages of {page} slots are not {count} slots")
    starts: list[int] = indices[::page].tolist()
    return starts
