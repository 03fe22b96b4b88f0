"""The device port: a serving engine's KV memory, seen as one sequence of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.clock import Deadline
from hexkv.ports.layout import KVLayout


class Span(NamedTuple):
    """A run of token positions, and the chunk bytes that go with it."""

    start: int
    end: int
    """Positions ``[start, end)`` of the sequence."""

    data: memoryview
    """``layout.chunk_bytes(end - start)`` bytes, layer-major."""


class Transfer(Protocol):
    """A copy under way between a device and host memory.

    Several may be under way at once, of spans that do not overlap, and be waited for in
    any order, again and again, each from any thread.
    """

    def wait(self, deadline: Deadline) -> bool:
        """Wait until the copy is done. ``False`` if the deadline passed first.

        Until it returns ``True`` the spans' memory belongs to the transfer; then nobody
        keeps a view of it.
        """
        ...


class Finished:
    """The transfer of a device that copies while it is called."""

    __slots__ = ()

    def wait(self, deadline: Deadline) -> bool:
        """Done already."""
        del deadline
        return True


@runtime_checkable
class DeviceKV(Protocol):
    """One request's window on a serving engine's KV memory.

    The host adapter makes one per request: over a slot mapping (paged memory) or over
    contiguous tensors. The engine calls it from the thread that called the engine, unless
    it :class:`SupportsBackground`. It never touches positions outside the spans it is given,
    and moves what the memory holds at the time of the call.

    A position may have no place (``-1`` in a slot mapping): scattering passes it over, and
    gathering it is an error, for the chunk would be stored with a hole.
    """

    @property
    def layout(self) -> KVLayout:
        """Shape of the KV of one token here; must equal the namespace's."""
        ...

    @property
    def tokens(self) -> int:
        """How many token positions the window addresses: the length of the slot mapping."""
        ...

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        """Copy KV from the device into each span's data.

        With *layers*, a run of them, only those are copied, to their place in the chunk.

        Raises:
            InvalidRequest: before anything moves: a span leaves the window or has a
                position without a place, its data is read-only or has another size than its
                chunk, or *layers* are not there.
        """
        ...

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        """Copy each span's data, which may be read-only, into the device; likewise.

        Raises:
            InvalidRequest: before anything moves; likewise.
        """
        ...


@runtime_checkable
class SupportsBackground(Protocol):
    """A window that copies while it is called, whichever thread calls it.

    While requests move layer by layer, a worker calls it then beside the host, which computes.
    Not for windows whose copies take their place in the order of a thread's own work, as on a
    CUDA stream: they are called by the caller's thread alone.
    """

    @property
    def background(self) -> bool:
        """True if any thread may call :meth:`~DeviceKV.gather` and :meth:`~DeviceKV.scatter`."""
        ...
