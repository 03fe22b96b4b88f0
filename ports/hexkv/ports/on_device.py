"""Reading past the host: from a store into the memory of a device, and there into a window.

A window lends memory of its device, a store fills it, the device verifies what came, and the
window scatters it. No byte of a payload passes through the host's memory: only header pages do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.clock import Deadline
from hexkv.ports.device import Transfer
from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import ReadOutcome


class DeviceRange(NamedTuple):
    """A part of a :class:`DeviceRoom`."""

    base: int
    """The address of the whole room on its device, aligned to ``PAGE``: for registration."""

    size: int
    """Bytes of the whole room."""

    at: int
    """Where the part begins in it, a multiple of ``PAGE``."""

    length: int
    """Bytes of the part."""


class RoomSpan(NamedTuple):
    """A run of token positions, and where in a room the payload of their chunk begins."""

    start: int
    end: int
    """Positions ``[start, end)`` of the sequence."""

    at: int


class DeviceRoom(Protocol):
    """Memory of a window's device, of several who share it until the last one releases it."""

    @property
    def owner(self) -> str:
        """In whose name it is held."""
        ...

    @property
    def base(self) -> int:
        """Its address on the device, aligned to ``PAGE``."""
        ...

    @property
    def size(self) -> int:
        """Its bytes, a multiple of ``PAGE``."""
        ...

    def bind(self) -> None:
        """Make its device the calling thread's. Called by a worker before it has it filled."""
        ...

    def digests(
        self, checksum: str, parts: Sequence[tuple[int, int]], deadline: Deadline
    ) -> Sequence[bytes] | None:
        """The digest of each of *parts*, ``(start, end)`` in the room, computed by the device.

        Called by the worker that had the room filled, after that. ``None``: not of such parts,
        not by this algorithm, or not in time.
        """
        ...

    def scatter(self, spans: Sequence[RoomSpan]) -> Transfer:
        """Copy raw payloads into the window, as ``DeviceKV.scatter`` does from the host.

        Called as the methods of the window are. The room belongs to the transfer until it is over.

        Raises:
            InvalidRequest: before anything moves: a span leaves the window or the room.
        """
        ...

    def share(self, owner: str) -> DeviceRoom:
        """One more hold on it, in the name of *owner*."""
        ...

    def release(self) -> None:
        """Let go. Calling it twice is allowed."""
        ...


@runtime_checkable
class SupportsDeviceRoom(Protocol):
    """A window that lends memory of its device, to be read into."""

    def device_room(self, size: int, owner: str) -> DeviceRoom | None:
        """At least *size* bytes in the name of *owner*; ``None``: not now, or not here."""
        ...


@runtime_checkable
class SupportsDeviceRead(Protocol):
    """A store that reads frames into the memory of a device."""

    @property
    def reads_to_devices(self) -> bool:
        """True while it has a way. It may lose it, and is then a store as any other."""
        ...

    def read_to_device(
        self, key: ChunkKey, page: memoryview, into: DeviceRange, deadline: Deadline
    ) -> ReadOutcome:
        """Read a frame's header page into *page*, and all behind it into the device.

        A frame of another length than both is ``Miss(REFUSED)``: the caller reads it another
        way. As the library may write to the device until it says that it is done, this does
        not return before that, whatever the deadline.
        """
        ...
