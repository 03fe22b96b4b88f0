"""The device port: a serving engine's KV memory as one sequence of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.layout import KVLayout
from hexkv.ports.runtime.clock import Deadline


class Span(NamedTuple):
    """A run of token positions, and the chunk bytes for it."""

    start: int
    end: int
    """Positions ``[start, end)`` of the sequence."""

    data: memoryview
    """``layout.chunk_bytes(end - start)`` bytes, layer-major."""


class Transfer(Protocol):
    """A copy under way between a device and host memory.

    Several may be under way at once, of spans that do not overlap. Each may be waited for
    in any order, repeatedly, from any thread.
    """

    def wait(self, deadline: Deadline) -> bool:
        """Wait until the copy is done. ``False`` if the deadline passed first.

        Until it returns ``True`` the spans' memory belongs to the transfer; from then on the
        transfer keeps no view of it. An error means that the copy failed and is over, too; a
        ``TimeoutError`` only that it is late.
        """
        ...


class Finished:
    """The transfer of a device that copies while it is called."""

    __slots__ = ()

    def wait(self, deadline: Deadline) -> bool:
        """Return True: the copy is already done."""
        del deadline
        return True


@runtime_checkable
class DeviceKV(Protocol):
    """One request's window on a serving engine's KV memory.

    The host adapter makes one per request: over a slot mapping (paged memory) or over
    contiguous tensors. The engine calls it from the thread that called the engine, unless
    it :class:`SupportsBackground`. It never touches positions outside the given spans, and
    copies the content of the memory at the time of the call. Where that memory is, its shape and
    its strides stay the same while the window is used: it may keep tables of them.

    A position may have no slot (``-1`` in a slot mapping): scattering skips it, and gathering
    it is an error, because the chunk would be stored with a hole.
    """

    @property
    def layout(self) -> KVLayout:
        """Dtype and shape of the KV of one token here; must equal the namespace's."""
        ...

    @property
    def tokens(self) -> int:
        """The number of token positions in the window: the length of the slot mapping."""
        ...

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        """Copy KV from the device into each span's data.

        With *layers*, a run of them, only those are copied, to their place in the chunk.

        Raises:
            InvalidRequest: before anything is copied: a span is outside of the window or has a
                position without a slot, its data is read-only or has another size than its
                chunk, or *layers* do not exist.
        """
        ...

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        """Copy each span's data, which may be read-only, into the device.

        With *layers*, only those are copied, from their place in the chunk.

        Raises:
            InvalidRequest: before anything is copied: a span is outside of the window, its data
                has another size than its chunk, or *layers* do not exist.
        """
        ...
