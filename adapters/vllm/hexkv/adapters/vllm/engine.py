"""What is needed of a cache engine; :func:`hexkv.plugins.compose.build` gives one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from hexkv.ports import ChunkKey, Cleared, DeviceKV, Namespace


class Lookup(Protocol):
    """What the tiers hold of a prompt."""

    @property
    def hit_tokens(self) -> int: ...
    @property
    def tiers(self) -> Mapping[str, int]: ...


class Retrieved(Protocol):
    """What was loaded."""

    @property
    def hit_tokens(self) -> int: ...
    @property
    def loaded_tokens(self) -> int: ...
    @property
    def loaded_bytes(self) -> int: ...
    @property
    def tiers(self) -> Mapping[str, int]: ...


class Stored(Protocol):
    """What was kept."""

    @property
    def stored_tokens(self) -> int: ...
    @property
    def queued_tokens(self) -> int: ...
    @property
    def dropped_tokens(self) -> int: ...


class Layers(Protocol):
    """A retrieve under way, layer by layer."""

    @property
    def hit_tokens(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def __next__(self) -> int: ...
    def result(self) -> Retrieved: ...


class Engine(Protocol):
    """One rank's engine. Safe from any thread."""

    namespace: Namespace

    def lookup(
        self, tokens: memoryview, *, pin: str | None = None, namespace: Namespace | None = None
    ) -> Lookup: ...

    def prefetch(
        self, lookup_id: str, tokens: memoryview, *, namespace: Namespace | None = None
    ) -> int | None: ...

    def cancel(self, lookup_id: str) -> bool: ...

    def unpin(self, owner: str) -> int: ...

    def retrieve(
        self,
        tokens: memoryview,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> Retrieved: ...

    def retrieve_layers(
        self,
        tokens: memoryview,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> AbstractContextManager[Layers]: ...

    def store(
        self,
        tokens: memoryview,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> Stored: ...

    def names(
        self, tokens: memoryview, *, namespace: Namespace | None = None
    ) -> Sequence[ChunkKey]: ...

    def flush(self, seconds: float) -> bool: ...

    def clear(self) -> Cleared: ...

    def close(self) -> None: ...
