"""Wrappers of stores, with the same abilities, and one that only records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Entry,
    Item,
    Lease,
    ReadOutcome,
    SharedMedium,
    Sink,
    SupportsClear,
    SupportsLimit,
    SupportsOwnMemory,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
    WriteOutcome,
)

T = TypeVar("T")


class Wrapped:
    """A wrapper of a store, with the optional abilities of the store inside."""

    def __init__(self, store: ChunkStore) -> None:
        self.inner = store
        # A protocol check sees only methods of the class, so each set of abilities has a class.
        self.__class__ = _able(type(self), store)

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self._do("contains", keys, deadline, lambda: self.inner.contains(keys, deadline))

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return self._do("read", keys, deadline, lambda: self.inner.read(keys, sink, deadline))

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        keys = [item.key for item in items]
        return self._do("write", keys, deadline, lambda: self.inner.write(items, deadline))

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self._do("delete", keys, deadline, lambda: self.inner.delete(keys, deadline))

    def close(self) -> None:
        self._do("close", (), None, self.inner.close)

    def _do(
        self,
        operation: str,
        keys: Sequence[ChunkKey],
        deadline: Deadline | None,
        work: Callable[[], T],
    ) -> T:
        """Every call goes through here."""
        raise NotImplementedError


class _Scans(Wrapped):
    inner: SupportsScan  # type: ignore[assignment]

    def scan(self) -> Iterator[Entry]:
        return iter(self._do("scan", (), None, lambda: list(self.inner.scan())))


class _Quarantines(Wrapped):
    inner: SupportsQuarantine  # type: ignore[assignment]

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        self._do("quarantine", keys, deadline, lambda: self.inner.quarantine(keys, deadline))


class _Clears(Wrapped):
    inner: SupportsClear  # type: ignore[assignment]

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int:
        def work() -> int:
            return self.inner.clear_prefix(prefix, deadline)

        return self._do("clear_prefix", (), deadline, work)


class _Shares(Wrapped):
    inner: SupportsZeroCopy  # type: ignore[assignment]

    def put_lease(self, keys: Sequence[ChunkKey], leases: Sequence[Lease]) -> None:
        self._do("put_lease", keys, None, lambda: self.inner.put_lease(keys, leases))

    def get_lease(self, keys: Sequence[ChunkKey], owner: str) -> Sequence[Lease | None]:
        return self._do("get_lease", keys, None, lambda: self.inner.get_lease(keys, owner))


class _HasOthers(Wrapped):
    inner: SharedMedium  # type: ignore[assignment]

    @property
    def shared(self) -> bool:
        return self.inner.shared


class _OwnsMemory(Wrapped):
    inner: SupportsOwnMemory  # type: ignore[assignment]

    @property
    def own_memory(self) -> bool:
        return self.inner.own_memory


class _Limits(Wrapped):
    inner: SupportsLimit  # type: ignore[assignment]

    def limit(self, size: int) -> None:
        self._do("limit", (), None, lambda: self.inner.limit(size))


class _ReadsRanges(Wrapped):
    inner: SupportsRangeRead  # type: ignore[assignment]

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        def work() -> ReadOutcome:
            return self.inner.read_range(key, start, into, deadline)

        return self._do("read_range", [key], deadline, work)


_ABILITIES: Sequence[tuple[type, type[Wrapped]]] = (
    (SupportsScan, _Scans),
    (SupportsQuarantine, _Quarantines),
    (SupportsClear, _Clears),
    (SupportsZeroCopy, _Shares),
    (SharedMedium, _HasOthers),
    (SupportsOwnMemory, _OwnsMemory),
    (SupportsLimit, _Limits),
    (SupportsRangeRead, _ReadsRanges),
)
_able_types: dict[tuple[type, tuple[type, ...]], type] = {}


def _able(wrapper: type, store: ChunkStore) -> type:
    able = tuple(mixin for ability, mixin in _ABILITIES if isinstance(store, ability))
    if (wrapper, able) not in _able_types:
        _able_types[wrapper, able] = type(wrapper.__name__, (wrapper, *able), {})
    return _able_types[wrapper, able]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store."""

    operation: str
    """The method's name."""

    keys: Sequence[ChunkKey] = ()


class RecordingStore(Wrapped):
    """Passes every call on, and keeps a list of them in the order in which they came."""

    def __init__(self, store: ChunkStore) -> None:
        super().__init__(store)
        self.calls: list[Call] = []

    def _do(
        self,
        operation: str,
        keys: Sequence[ChunkKey],
        deadline: Deadline | None,
        work: Callable[[], T],
    ) -> T:
        del deadline
        self.calls.append(Call(operation, tuple(keys)))
        return work()
