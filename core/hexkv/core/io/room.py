"""Room: a part of a lane's queue, reserved for a task before it is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from hexkv.core.io.scheduler import Lane


class Room:
    """Bytes of a lane's queue reserved for one task. Released with the last reference to it.

    A context manager: on exit it returns the bytes that the task did not use.
    """

    __slots__ = ("__weakref__", "_lane", "count", "size")

    def __init__(self, lane: Lane | None, sizes: Sequence[int], free: int | None = None) -> None:
        """Room for all of *sizes*; with *free* bytes for the first, and the next ones that fit."""
        self.count = len(sizes)
        """The number of the requested sizes that there is room for."""

        self.size = sum(sizes)
        if free is not None:
            while self.size > free and self.count > 1:
                self.count -= 1
                self.size -= sizes[self.count]
        self._lane = lane

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lane is not None:
            self._lane.leave(self)
