"""Reads past the host: from a store into the memory of a device, and there into a window.

A window lends memory of its device, a store fills it, the device verifies the bytes, and the
window scatters them. No byte of a payload passes through the host's memory: only header pages do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.device import Transfer
from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import ReadOutcome
from hexkv.ports.runtime.clock import Deadline


class DeviceRange(NamedTuple):
    """A part of a :class:`DeviceRoom`."""

    base: int
    """The address of the whole room on its device, aligned to ``PAGE``: for registration."""

    size: int
    """Bytes of the whole room."""

    at: int
    """Offset of the part in the room, a multiple of ``PAGE``."""

    length: int
    """Bytes of the part."""


class RoomSpan(NamedTuple):
    """A run of token positions, and the offset of their chunk's payload in a room."""

    start: int
    end: int
    """Positions ``[start, end)`` of the sequence."""

    at: int


class DeviceRoom(Protocol):
    """Memory of a window's device, shared by several holds until the last one is released."""

    @property
    def owner(self) -> str:
        """The name under which it is held."""
        ...

    @property
    def base(self) -> int:
        """The address on the device, aligned to ``PAGE``."""
        ...

    @property
    def size(self) -> int:
        """The size in bytes, a multiple of ``PAGE``."""
        ...

    def bind(self) -> None:
        """Make its device current in the calling thread. A worker calls it before the read."""
        ...

    def digests(
        self, checksum: str, parts: Sequence[tuple[int, int]], deadline: Deadline
    ) -> Sequence[bytes] | None:
        """Return the digest of each of *parts*, ``(start, end)`` in the room, from the device.

        Called by the worker of the read, after it. ``None`` if the device cannot digest such
        parts, or by this algorithm, or in time.
        """
        ...

    def scatter(self, spans: Sequence[RoomSpan]) -> Transfer:
        """Copy raw payloads into the window, as ``DeviceKV.scatter`` does from the host.

        Called as the methods of the window are. The room belongs to the transfer until it is over.

        Raises:
            InvalidRequest: before anything is copied: a span is outside of the window or room.
        """
        ...

    def share(self, owner: str) -> DeviceRoom:
        """Return one more hold on it, in the name of *owner*."""
        ...

    def release(self) -> None:
        """Release the hold. Calling it twice is allowed."""
        ...


@runtime_checkable
class SupportsDeviceRoom(Protocol):
    """A window that lends memory of its device for reads."""

    def device_room(self, size: int, owner: str) -> DeviceRoom | None:
        """Return at least *size* bytes in the name of *owner*; ``None`` if it cannot lend them."""
        ...


@runtime_checkable
class SupportsDeviceRead(Protocol):
    """A store that reads frames into the memory of a device."""

    @property
    def reads_to_devices(self) -> bool:
        """True while it can. It may lose that ability, and is then a store as any other."""
        ...

    def read_to_device(
        self, key: ChunkKey, page: memoryview, into: DeviceRange, deadline: Deadline
    ) -> ReadOutcome:
        """Read a frame's header page into *page*, and all bytes behind it into the device.

        A frame of another length than both is ``Miss(REFUSED)``: the caller reads it another
        way. As the library may write to the device until it reports completion, this does not
        return before that, even after the deadline.
        """
        ...
