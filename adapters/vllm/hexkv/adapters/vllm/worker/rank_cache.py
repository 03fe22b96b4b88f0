"""The part of a cache by tokens that a rank uses, over its KV as a whole or cut into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from hexkv.adapters.vllm.messages import Load
from hexkv.ports import (
    ChunkCache,
    ChunkKey,
    Cleared,
    Health,
    InvalidRequest,
    LayeredRead,
    Lookup,
    Namespace,
    Retrieved,
    StoreReport,
    Telemetry,
)

Window = TypeVar("Window", contravariant=True)
"""On a request's KV: a ``DeviceKV``, or one for each shard."""

_Whole = TypeVar("_Whole")
_Made = TypeVar("_Made", covariant=True)


class RankLookups(Protocol):
    """The methods that answer the scheduler's questions. As in ``PrefixCache``."""

    def lookup(
        self, tokens: memoryview, *, pin: str | None = None, namespace: Namespace | None = None
    ) -> Lookup: ...
    def prefetch(
        self, lookup_id: str, tokens: memoryview, *, namespace: Namespace | None = None
    ) -> int | None: ...
    def cancel(self, lookup_id: str) -> bool: ...
    def unpin(self, owner: str) -> int: ...
    def clear(self, *, tiers: Sequence[str] | None = None) -> Cleared: ...
    def computes(self, tokens_per_second: float | None) -> None: ...
    def chunk_keys(
        self, tokens: memoryview, *, namespace: Namespace | None = None
    ) -> Sequence[ChunkKey]: ...


class RankCache(RankLookups, Protocol[Window]):
    """The methods that move a worker's KV. As in ``PrefixCache``."""

    @property
    def namespace(self) -> Namespace: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def chunks(self) -> ChunkCache: ...
    def health(self) -> Health: ...
    def close(self) -> None: ...
    def pin(
        self,
        tokens: memoryview,
        owner: str,
        *,
        seconds: float | None = None,
        namespace: Namespace | None = None,
    ) -> int: ...
    def retrieve(
        self,
        tokens: memoryview,
        device: Window,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> Retrieved: ...
    def retrieve_layers(
        self,
        tokens: memoryview,
        device: Window,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> AbstractContextManager[LayeredRead]: ...
    def store(
        self,
        tokens: memoryview,
        device: Window,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> StoreReport: ...


class LayerParts(Protocol[Window]):
    """A rank's cache whose chunks are kept in parts by layers, each under a key of its own."""

    @property
    def layer_parts(self) -> Sequence[Sequence[int]]:
        """Numbers of the rank's layers that are stored with each other."""
        ...

    def store_part(
        self,
        part: int,
        tokens: memoryview,
        device: Window,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
    ) -> StoreReport:
        """Store one of :attr:`layer_parts`, without waiting for it to be written."""
        ...


class Windows(Protocol[_Made]):
    """The rank's KV memory.

    For instance :class:`~hexkv.adapters.vllm.configuration.windows.BlockPages`.
    """

    @property
    def block(self) -> int: ...

    def window(self, blocks: Sequence[int], start: int) -> _Made: ...


class KVMemory(Generic[_Whole]):
    """Windows on a rank's KV memory, which vLLM takes away while it sleeps. Safe from any thread.

    Args:
        windows: on the memory that is there at first.
    """

    def __init__(self, windows: Windows[_Whole]) -> None:
        self._windows: Windows[_Whole] | None = windows
        self.block = windows.block

    @property
    def there(self) -> bool:
        """True while there is memory."""
        return self._windows is not None

    def window(self, blocks: Sequence[int], start: int) -> _Whole:
        """As :meth:`Windows.window`.

        Raises:
            InvalidRequest: the memory is gone.
        """
        windows = self._windows
        if windows is None:
            raise InvalidRequest("vLLM's KV memory is gone: it sleeps")
        return windows.window(blocks, start)

    def swap(self, windows: Windows[_Whole] | None) -> Windows[_Whole] | None:
        """Use *windows* from now on; ``None``: there is no memory. Return the former ones."""
        before, self._windows = self._windows, windows
        return before


class Together(Protocol[_Whole]):
    """:class:`~hexkv.adapters.vllm.worker.together.LoadsTogether`, for ranks of one window each."""

    def load(
        self,
        order: int,
        load: Load,
        window: _Whole,
        read: Callable[[_Whole], Retrieved] | None,
    ) -> Retrieved: ...

    def close(self) -> None: ...


def stored_by_all(reports: Sequence[StoreReport]) -> StoreReport:
    """The report of a prompt whose parts have *reports*."""
    # A chunk of which one part was dropped is of no use.
    least = max(reports, key=lambda report: report.dropped_tokens)
    return replace(least, stored_bytes=sum(report.stored_bytes for report in reports))
