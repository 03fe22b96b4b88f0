"""A rank's KV that is stored in shards: a cache and windows that are several, side by side.

One engine, one namespace for each shard. A rank has the tokens that all its shards have. Nothing is
copied or put together: each frame goes straight to and from its heads and layers in vLLM's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import torch

from hexkv.adapters.vllm.configuration.identity import Rank
from hexkv.adapters.vllm.configuration.inspection import Memory, inside_of_blocks, tokens_lie_apart
from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.adapters.vllm.configuration.shards import Shard, narrowed, own_partition, shards_of
from hexkv.adapters.vllm.configuration.windows import BlockPages, Pages, pages_of
from hexkv.adapters.vllm.worker.rank_cache import stored_by_all
from hexkv.ports import (
    SHARED_OWNER,
    ChunkCache,
    ChunkKey,
    Cleared,
    DeviceKV,
    Health,
    KVLayout,
    LayeredRead,
    Lookup,
    Namespace,
    ParallelSlice,
    PrefixCache,
    Retrieved,
    StoreReport,
    Telemetry,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_NAMESPACES = 256
"""Requests' namespaces that are kept, as for ranks that are not cut."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One shard: its name, and its place."""

    piece: ParallelSlice
    pages: Pages
    inside: Mapping[str, str]
    """Further facts that decide about the bytes in a block that only vLLM understands."""

    positions: tuple[int, ...]
    """Its layers among the rank's, ascending."""


def slices_of(
    config: VllmConfig,
    memory: Memory,
    rank: Rank,
    own: ConnectorSettings,
    caches: Mapping[str, torch.Tensor],
    version: str,
) -> list[Slice]:
    """A rank's KV as it is stored: in shards, or in one piece if none are configured.

    Args:
        config: vLLM's.
        memory: the rank's.
        rank: which one.
        own: the connector's settings.
        caches: its tensors by layer, in the order of the layers.
        version: of vLLM.

    Raises:
        ConfigError: the rank does not hold whole shards, or the place of its heads is not known.
        LayoutMismatch: vLLM's tensors do not match its configuration.
    """
    apart = own.layout == "auto" and tokens_lie_apart(caches)
    names, slices = list(caches), []
    heads = range(max(shape.heads for shape in memory.layers.values()))
    shards = [Shard(rank.piece, tuple(names), heads)]
    partition = own_partition(config, rank)
    if own.shards is not None:
        shards, partition = shards_of(config, memory, rank, own.shards), {}
    for shard in shards:
        part, views = narrowed(shard, memory, caches, apart=apart)
        count, block = memory.blocks, memory.block
        pages = pages_of(views, part.layers, count=count, block=block, apart=apart)
        opaque = isinstance(pages, BlockPages)
        inside = partition | (inside_of_blocks(config, part, views, version) if opaque else {})
        places = tuple(names.index(name) for name in shard.layers)
        slices.append(Slice(shard.piece, pages, inside, places))
    return slices


class ShardedPages:
    """A rank's KV memory, as a sequence of shards."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._pages = [piece.pages for piece in slices]
        self.block = self._pages[0].block

    def window(self, blocks: Sequence[int], start: int) -> Sequence[DeviceKV]:
        """One window for each shard.

        As :class:`~hexkv.adapters.vllm.configuration.windows.BlockPages` makes it.
        """
        return [pages.window(blocks, start) for pages in self._pages]


class ShardedCache:
    """A rank's cache over one *engine*, all of whose *slices* are stored and loaded together.

    Methods are those of :class:`~hexkv.ports.PrefixCache`, with a window for each shard in place of
    one. Numbers of tokens are those that all shards have; the engine counts each shard's chunks.
    """

    def __init__(self, engine: PrefixCache, slices: Sequence[Slice]) -> None:
        self._engine = engine
        self._slices = slices
        whole = [group for piece in slices for group in piece.pages.layout.groups]
        layout = KVLayout(slices[0].pages.layout.dtype, tuple(whole))
        self.namespace = replace(engine.namespace, layout=layout)
        """The rank's, of which no chunk is stored: shards have their own."""

        self._named = lru_cache(_NAMESPACES)(self._name)

    @property
    def telemetry(self) -> Telemetry:
        return self._engine.telemetry

    @property
    def chunks(self) -> ChunkCache:
        return self._engine.chunks

    def health(self) -> Health:
        return self._engine.health()

    def computes(self, tokens_per_second: float | None) -> None:
        # Of each token, all shards are loaded.
        rate = None if tokens_per_second is None else tokens_per_second * len(self._slices)
        self._engine.computes(rate)

    def flush(self, seconds: float | None = None) -> bool:
        return self._engine.flush(seconds)

    def clear(self, *, tiers: Sequence[str] | None = None) -> Cleared:
        return self._engine.clear(tiers=tiers)

    def close(self) -> None:
        self._engine.close()

    def chunk_keys(
        self, tokens: memoryview, *, namespace: Namespace | None = None
    ) -> Sequence[ChunkKey]:
        """The keys of the first chunk of every shard, then of the second of every shard, ..."""
        names = self._names(namespace)
        keys = [self._engine.chunk_keys(tokens, namespace=name) for name in names]
        return [key for chunk in zip(*keys, strict=True) for key in chunk]

    def lookup(
        self, tokens: memoryview, *, pin: str | None = None, namespace: Namespace | None = None
    ) -> Lookup:
        whole, found = len(tokens), None
        for name in self._names(namespace):
            one = self._engine.lookup(tokens, pin=pin, namespace=name)
            if found is None or one.hit_tokens < found.hit_tokens:
                found = one
                tokens = tokens[: one.hit_tokens]  # no shard is of use beyond another one's end
            if not one.hit_tokens:
                break
        return Lookup(whole, 0) if found is None else found._replace(tokens=whole)

    def prefetch(
        self, lookup_id: str, tokens: memoryview, *, namespace: Namespace | None = None
    ) -> int | None:
        prefetch, least = self._engine.prefetch, len(tokens)
        waits = False
        for index, name in enumerate(self._names(namespace)):
            found = prefetch(_part_of(lookup_id, index), tokens, namespace=name)
            waits = waits or found is None
            least = min(least, found or 0)
        return None if waits else least

    def cancel(self, lookup_id: str) -> bool:
        cancelled = [
            self._engine.cancel(_part_of(lookup_id, index)) for index in range(len(self._slices))
        ]
        return any(cancelled)

    def pin(
        self,
        tokens: memoryview,
        owner: str,
        *,
        seconds: float | None = None,
        namespace: Namespace | None = None,
    ) -> int:
        pins = zip(self._owners(owner), self._names(namespace), strict=True)
        pin = self._engine.pin
        return min([pin(tokens, name, seconds=seconds, namespace=its) for name, its in pins])

    def unpin(self, owner: str) -> int:
        # Chunks that were pushed to another node are pinned there for all shards at once.
        return sum(self._engine.unpin(name) for name in {owner, *self._owners(owner)})

    def retrieve(
        self,
        tokens: memoryview,
        device: Sequence[DeviceKV],
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> Retrieved:
        got: list[Retrieved] = []
        for index, (window, name) in enumerate(zip(device, self._names(namespace), strict=True)):
            asked = None if lookup_id is None else _part_of(lookup_id, index)
            if got and got[-1].hit_tokens <= skip:
                # Of no use without the one before, and a dead tier costs its deadline once.
                if asked is not None:
                    self._engine.cancel(asked)
                continue
            one = self._engine.retrieve(tokens, window, skip=skip, namespace=name, lookup_id=asked)
            got.append(one)
        return _all_of(got)

    @contextmanager
    def retrieve_layers(
        self,
        tokens: memoryview,
        device: Sequence[DeviceKV],
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> Iterator[LayeredRead]:
        retrieve, reads = self._engine.retrieve_layers, []
        with ExitStack() as opened:
            for index, (window, name) in enumerate(
                zip(device, self._names(namespace), strict=True)
            ):
                asked = None if lookup_id is None else _part_of(lookup_id, index)
                read = retrieve(tokens, window, skip=skip, namespace=name, lookup_id=asked)
                reads.append(opened.enter_context(read))
            yield _ShardedRead(reads, [piece.positions for piece in self._slices])

    def store(
        self,
        tokens: memoryview,
        device: Sequence[DeviceKV],
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> StoreReport:
        return stored_by_all(
            self._store_slices(range(len(self._slices)), tokens, device, skip, namespace, wait)
        )

    @property
    def layer_parts(self) -> Sequence[Sequence[int]]:
        """The layers of the rank that are stored with each other, for each part of them."""
        return sorted({piece.positions for piece in self._slices})

    def store_part(
        self,
        part: int,
        tokens: memoryview,
        device: Sequence[DeviceKV],
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
    ) -> StoreReport:
        """As :meth:`store` of one of :attr:`layer_parts`, without waiting for writes."""
        layers = self.layer_parts[part]
        slices = [at for at, piece in enumerate(self._slices) if piece.positions == layers]
        return stored_by_all(
            self._store_slices(slices, tokens, device, skip, namespace, wait=False)
        )

    def _store_slices(
        self,
        slices: Iterable[int],
        tokens: memoryview,
        device: Sequence[DeviceKV],
        skip: int,
        namespace: Namespace | None,
        wait: bool,
    ) -> list[StoreReport]:
        store, names = self._engine.store, self._names(namespace)
        return [
            store(tokens, device[at], skip=skip, namespace=names[at], wait=wait) for at in slices
        ]

    def _names(self, namespace: Namespace | None) -> Sequence[Namespace]:
        return self._named(self.namespace if namespace is None else namespace)

    def _name(self, namespace: Namespace) -> Sequence[Namespace]:
        """The namespaces of the shards of a request's, or of the rank's."""
        return [
            replace(
                namespace,
                layout=piece.pages.layout,
                parallel=piece.piece,
                extra=tuple(sorted({**dict(namespace.extra), **piece.inside}.items())),
            )
            for piece in self._slices
        ]

    def _owners(self, owner: str) -> Sequence[str]:
        """The owner of the pin of each shard.

        A pin that any client may end is of one shard: ranks of the decoder that have other shards
        of the same chunks end theirs at other times.
        """
        if not owner.startswith(SHARED_OWNER):
            return [owner] * len(self._slices)
        return [f"{owner} {piece.piece.rank}" for piece in self._slices]


class _ShardedRead:
    """A read of every shard, which go on together layer by layer."""

    def __init__(self, reads: Sequence[LayeredRead], positions: Sequence[Sequence[int]]) -> None:
        self._reads = reads
        layers = 1 + max(places[-1] for places in positions)
        self._of: list[list[LayeredRead]] = [[] for _ in range(layers)]
        for read, places in zip(reads, positions, strict=True):
            for place in places:
                self._of[place].append(read)
        self._next = 0

    @property
    def hit_tokens(self) -> int:
        return min(read.hit_tokens for read in self._reads)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if self._next == len(self._of):
            raise StopIteration
        for read in self._of[self._next]:
            next(read)
        self._next += 1
        return self._next - 1

    def result(self) -> Retrieved:
        return _all_of([read.result() for read in self._reads])


def _part_of(lookup_id: str, index: int) -> str:
    """The name under which a shard of *lookup_id* is prefetched."""
    return f"{lookup_id} {index}"


def _all_of(got: Sequence[Retrieved]) -> Retrieved:
    """The result of a rank whose shards have *got* these."""
    least = min(got, key=lambda one: one.hit_tokens)
    return replace(least, loaded_bytes=sum(one.loaded_bytes for one in got))
