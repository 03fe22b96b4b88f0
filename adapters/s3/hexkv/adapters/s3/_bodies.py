"""The two ways of moving an object's bytes, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hexkv.ports import Deadline, ReadOutcome

Room = Callable[[int], memoryview | None]
"""Gives the memory for an object of so many bytes, or ``None`` where it is not wanted."""


class Parts(NamedTuple):
    """When objects are moved in parts, side by side."""

    size: int
    """Bytes of a part, but the last."""

    above: int
    """Objects of more bytes than this are written so; all larger than a part are read so."""


class Bodies(Protocol):
    """Moves whole objects. Safe from any thread."""

    def get(self, name: str, room: Room, deadline: Deadline) -> ReadOutcome:
        """Read an object into the memory that *room* gives.

        Raises:
            OutOfTime: the deadline passed; nothing is written into that memory any more.
            Absent: there is no such object.
            StoreError: it could not be read.
        """
        ...

    def put(self, name: str, frame: memoryview, deadline: Deadline) -> None:
        """Write an object, in place of what was there.

        Raises:
            OutOfTime: the deadline passed; nobody looks at *frame* any more.
            StoreError: it could not be written.
        """
        ...

    def close(self) -> None:
        """End everything under way. Calling it twice is allowed."""
        ...
