"""The common interface of the two ways to move an object's bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hexkv.ports import Deadline, ReadOutcome

Allocate = Callable[[int], memoryview | None]
"""Returns the memory for an object of that many bytes, or ``None`` to refuse it."""


class Parts(NamedTuple):
    """The sizes for moving objects in concurrent parts."""

    size: int
    """Bytes of each part but the last."""

    above: int
    """Objects larger than this are written in parts; all larger than a part are read in parts."""


class Bodies(Protocol):
    """Moves whole objects. Safe from any thread."""

    def get(self, name: str, room: Allocate, deadline: Deadline) -> ReadOutcome:
        """Read an object into the memory that *room* returns.

        Raises:
            OutOfTime: the deadline passed; nothing is written into that memory afterwards.
            Absent: the object does not exist.
            StoreError: it could not be read.
        """
        ...

    def put(self, name: str, frame: memoryview, deadline: Deadline) -> None:
        """Write an object, replacing an earlier one.

        Raises:
            OutOfTime: the deadline passed; *frame* is not read afterwards.
            StoreError: it could not be written.
        """
        ...

    def close(self) -> None:
        """End everything under way. Calling it twice is allowed."""
        ...
