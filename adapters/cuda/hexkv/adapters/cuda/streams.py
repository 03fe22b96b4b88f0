"""Windows on KV in plain tensors, whose copies run beside the engine's own work.

The host makes one :class:`CudaKV` for each device and engine, and from it a window for each
request. Gathering has a stream of its own, and scattering another: a GPU has a copy engine
for either way, and neither holds up the kernels of the model. On CPU tensors there is nothing
to run beside, and the same calls make the copies before they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

import torch

from hexkv.kernels import BlockMemory, ContiguousKV, PagedMemory
from hexkv.kernels.transfer import gpus
from hexkv.ports import (
    Deadline,
    DeviceKV,
    DeviceRoom,
    EncodedSpan,
    InvalidRequest,
    KVLayout,
    LayoutMismatch,
    RoomSpan,
    Serde,
    Span,
    SupportsBackground,
    SupportsDeviceRoom,
    SupportsEncodedLayers,
    Transfer,
)

Memory = TypeVar("Memory", PagedMemory, BlockMemory)


class CudaKV:
    """Makes windows on the KV tensors of one device.

    Copies begin when the work queued so far on the caller's stream is done. Work that the caller
    queues afterwards is not held up: wait for the transfer, or call :meth:`fence`, before
    loaded KV is attended to and before stored KV is overwritten, a graph's replay included. Safe
    to call from any thread; the caller's stream is the current one of the calling thread.
    The pages that windows were made on last are kept, and looked at once.
    """

    def __init__(self, device: torch.device | str | int, *, direct: bool = False) -> None:
        """Use *device*, a GPU or the CPU.

        Args:
            device: as torch names it.
            direct: kernels read and write pinned memory of the host themselves, instead of a copy
                in the device's memory that then crosses the bus. It saves that memory, and
                holds compute units for as long as the bus takes.

        Raises:
            InvalidRequest: it is neither, or no GPU of this machine.
        """
        found = torch.device(device)
        if found.type not in ("cuda", "cpu"):
            raise InvalidRequest(f"KV on {found} is not known here, only on CUDA and the CPU")
        if found.type == "cuda":
            found = _there(found)
        gpus([found])  # here, so that no window waits until mapped memory is registered
        self.device = found
        self._direct = direct
        self._paged: _Last[PagedMemory] = _Last()
        self._blocks: _Last[BlockMemory] = _Last()
        self._out = _stream(found)
        self._into = _stream(found)

    def paged(
        self,
        layout: KVLayout,
        pages: Sequence[Sequence[torch.Tensor]],
        slots: torch.Tensor | Sequence[int],
    ) -> DeviceKV:
        """A window on ``pages[layer][plane]`` of ``[blocks, block_size, heads, width]``.

        Args:
            layout: of the KV.
            pages: of any strides.
            slots: for each token block times block size plus its place, or -1 for none.

        Raises:
            LayoutMismatch: pages are not the layout's, or not on the device.
            InvalidRequest: a slot is not there.
        """

        def make() -> PagedMemory:
            self._check(pages)
            return PagedMemory(layout, pages, direct=self._direct)

        return self._streamed(self._paged.on((layout,), pages, make).window(slots))

    def contiguous(self, layout: KVLayout, tensors: Sequence[Sequence[torch.Tensor]]) -> DeviceKV:
        """A window on ``tensors[layer][plane]`` of ``[1, heads, tokens, width]``.

        Raises:
            LayoutMismatch: tensors are not the layout's, or not on the device.
        """
        self._check(tensors)
        return self._streamed(ContiguousKV(layout, tensors, direct=self._direct))

    def blocks(
        self,
        layout: KVLayout,
        pages: Sequence[torch.Tensor],
        blocks: Sequence[int],
        block_tokens: int,
    ) -> DeviceKV:
        """A window on whole blocks, ``pages[layer]`` of ``[blocks, ...]``; see ``BlockKV``.

        Raises:
            LayoutMismatch: pages are not the layout's, or not on the device.
            InvalidRequest: a block is not there.
        """

        def make() -> BlockMemory:
            self._check([pages])
            return BlockMemory(layout, pages, block_tokens, direct=self._direct)

        memory = self._blocks.on((layout, block_tokens), [pages], make)
        return self._streamed(memory.window(blocks))

    def fence(self) -> None:
        """Make the caller's stream wait until all copies requested so far have left the tensors.

        Stored KV may still be on its way to the host then. Does not block itself. For engines
        that queue the next layer before this one's KV is there; callers that wait for transfers do
        not need it. Call it before the replay of a CUDA graph that uses the pages, and not while
        the graph is captured.

        Raises:
            InvalidRequest: the stream is being captured.
        """
        if self._out is not None and self._into is not None:
            _refuse_capture()
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._out)
            current.wait_stream(self._into)

    def _streamed(self, window: DeviceKV) -> DeviceKV:
        return _Streamed(window, self._out, self._into)

    def _check(self, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
        for given in tensors:
            for tensor in given:
                # An object that is no tensor is refused by the window.
                if getattr(tensor, "device", self.device) != self.device:
                    raise LayoutMismatch(f"a tensor is on {tensor.device}, not on {self.device}")


class _Last(Generic[Memory]):
    """The memory of the last pages that were given: an engine keeps its own for its life."""

    def __init__(self) -> None:
        self._last: tuple[object, Memory] | None = None

    def on(
        self,
        about: tuple[object, ...],
        pages: Sequence[Sequence[torch.Tensor]],
        make: Callable[[], Memory],
    ) -> Memory:
        """Return the last memory, if *about* and *pages* are the same; else *make* one."""
        try:
            places = [(t.data_ptr(), t.shape, t.stride(), t.dtype) for g in pages for t in g]
        except (AttributeError, TypeError, RuntimeError):
            return make()  # raises: these are no tensors with memory
        same = about, places
        last = self._last
        if last is None or last[0] != same:
            last = self._last = same, make()
        return last[1]


class _Streamed:
    """A window whose copies are queued on streams of their own."""

    def __init__(
        self, window: DeviceKV, out: torch.cuda.Stream | None, into: torch.cuda.Stream | None
    ) -> None:
        self._window = window
        self._out = out
        self._into = into

    @property
    def layout(self) -> KVLayout:
        return self._window.layout

    @property
    def background(self) -> bool:
        """False where copies begin behind the work queued on the caller's stream."""
        return (
            self._into is None
            and isinstance(self._window, SupportsBackground)
            and self._window.background
        )

    @property
    def tokens(self) -> int:
        return self._window.tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        with _after_the_callers(self._out):
            return self._window.gather(spans, layers)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        with _after_the_callers(self._into):
            return self._window.scatter(spans, layers)

    def decodes(self, serde: Serde) -> bool:
        return isinstance(self._window, SupportsEncodedLayers) and self._window.decodes(serde)

    def scatter_encoded(self, serde: Serde, spans: Sequence[EncodedSpan]) -> Transfer:
        return self.scatter_encoded_layers(serde, spans, range(self.layout.layers))

    def scatter_encoded_layers(
        self, serde: Serde, spans: Sequence[EncodedSpan], layers: range
    ) -> Transfer:
        # By its method: to ask for the protocol takes 15 us, for each group of layers.
        scatter = getattr(self._window, "scatter_encoded_layers", None)
        if scatter is None:
            raise InvalidRequest("blocks that only the engine understands are not decoded")
        with _after_the_callers(self._into):
            transfer: Transfer = scatter(serde, spans, layers)
        return transfer

    def device_room(self, size: int, owner: str) -> DeviceRoom | None:
        if not isinstance(self._window, SupportsDeviceRoom):
            return None
        room = self._window.device_room(size, owner)
        return None if room is None else _StreamedRoom(room, self._into)


class _StreamedRoom:
    """A room that is scattered on a stream of its own."""

    def __init__(self, room: DeviceRoom, into: torch.cuda.Stream | None) -> None:
        self._room = room
        self._into = into

    @property
    def owner(self) -> str:
        return self._room.owner

    @property
    def base(self) -> int:
        return self._room.base

    @property
    def size(self) -> int:
        return self._room.size

    def bind(self) -> None:
        self._room.bind()

    def digests(
        self, checksum: str, parts: Sequence[tuple[int, int]], deadline: Deadline
    ) -> Sequence[bytes] | None:
        return self._room.digests(checksum, parts, deadline)

    def scatter(self, spans: Sequence[RoomSpan]) -> Transfer:
        with _after_the_callers(self._into):
            return self._room.scatter(spans)

    def share(self, owner: str) -> DeviceRoom:
        return _StreamedRoom(self._room.share(owner), self._into)

    def release(self) -> None:
        self._room.release()


def _there(device: torch.device) -> torch.device:
    """The GPU that *device* means, by its number."""
    if not torch.cuda.is_available():
        raise InvalidRequest(f"there is no CUDA device on this machine, so no {device}")
    number = torch.cuda.current_device() if str(device) == "cuda" else device.index
    if number >= torch.cuda.device_count():
        raise InvalidRequest(f"there are {torch.cuda.device_count()} CUDA devices, so no {device}")
    return torch.device("cuda", number)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    made: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return made


def _refuse_capture() -> None:
    """Copies and waits in a graph would be made again by each replay, of whatever is there then.

    Raises:
        InvalidRequest: the calling thread captures its stream.
    """
    if torch.cuda.is_current_stream_capturing():
        raise InvalidRequest("a CUDA graph is being captured: copy and fence before its replay")


def _after_the_callers(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Queue on *stream*, behind the work that the calling thread has queued on its own."""
    if stream is None:
        return nullcontext()
    _refuse_capture()
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    return torch.cuda.stream(stream)
