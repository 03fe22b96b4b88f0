"""Files behind a throttle: a slow medium that takes none of the machine's time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import TypeVar

from hexkv.contracts.faults import Wrapped
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Origin, Registry
from hexkv.ports import ChunkKey, Deadline, ReadOutcome, SupportsRangeRead

T = TypeVar("T")


class Throttle:
    """How fast reads of the medium are. One after the other, as over one line."""

    def __init__(self, frame: int) -> None:
        """Chunks lie in frames of *frame* bytes."""
        self.rate: float | None = None
        """Bytes per second; ``None``: as fast as it is."""

        self.frame = frame
        self._line = Lock()

    def wait(self, size: int) -> None:
        """Sleep for *size* bytes; later calls wait for that, too."""
        if self.rate is not None:
            with self._line:
                time.sleep(size / self.rate)


class _Throttled(Wrapped):
    """A store with reads of ranges, whose reads take time."""

    inner: SupportsRangeRead  # type: ignore[assignment]

    def __init__(self, store: SupportsRangeRead, throttle: Throttle) -> None:
        super().__init__(store)  # type: ignore[arg-type]
        self._throttle = throttle

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        self._throttle.wait(len(into))
        return self.inner.read_range(key, start, into, deadline)

    def _do(
        self,
        operation: str,
        keys: Sequence[ChunkKey],
        deadline: Deadline | None,
        work: Callable[[], T],
    ) -> T:
        del deadline
        if operation == "read":
            self._throttle.wait(self._throttle.frame * len(keys))
        return work()


def behind(throttle: Throttle | None) -> Registry:
    """The installed adapters, and files behind *throttle* as the store ``throttled``."""
    registry = discover()
    if throttle is not None:
        disk = registry.find("store", "disk")

        def opening(settings: object, context: object) -> object:
            store = disk.open(settings, context)  # type: ignore[arg-type]
            return _Throttled(store, throttle)  # type: ignore[arg-type]

        slow = replace(disk, name="throttled", open=opening, back_door=None, isolate=None)
        registry.offer(Origin("benchmarks", ""), [slow])
    return registry
