"""Room: a part of a lane's queue, kept for a task before there is one."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from hexkv.core.io.scheduler import Lane


class Room:
    """Bytes of a lane's queue that are kept free for one task. Gone with its last reference.

    A context: what the task did not use of it is given back.
    """

    __slots__ = ("__weakref__", "_lane", "count", "size")

    def __init__(self, lane: Lane | None, sizes: Sequence[int], free: int | None = None) -> None:
        """For all of *sizes*; with *free* bytes for the first, and for as many more as fit."""
        self.count = len(sizes)
        """How many of the sizes that were asked for there is room for."""

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
