"""Device memory into which chunks are read past the host, verified there, and scattered."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Self

import torch

from hexkv.kernels.gpu.fused import Fused
from hexkv.kernels.gpu.staging import Sent
from hexkv.ports import (
    PAGE,
    Deadline,
    DeviceRoom,
    InvalidRequest,
    KVLayout,
    RoomSpan,
    Transfer,
)

CHECKSUM = "xxh3-128"
"""The algorithm that a kernel computes."""

_IDLE = 4
"""Buffers that are kept for the next request: a library has registered them by then."""


class DeviceBuffers:
    """The buffers of one device. Safe from any thread."""

    def __init__(self, fused: Fused, layout: KVLayout) -> None:
        self.fused = fused
        self.layout = layout
        self._idle: list[torch.Tensor] = []
        self._lock = Lock()

    def take(self, size: int) -> torch.Tensor:
        """Return pages of the device of at least *size* bytes, until :meth:`give_back`.

        Raises:
            RuntimeError: the device has no such memory.
        """
        size = -(-size // PAGE) * PAGE
        with self._lock:
            for i, memory in enumerate(self._idle):
                if len(memory) >= size:
                    return self._idle.pop(i)
        device = self.fused.device
        memory = torch.empty(size + PAGE, dtype=torch.uint8, device=device)
        if device.type == "cuda":
            # torch may return memory that queued work of the stream still uses. The reader that
            # fills this knows no stream; so synchronize once, for memory that is kept.
            torch.cuda.current_stream(device).synchronize()
        start = -memory.data_ptr() % PAGE
        return memory[start : start + size]

    def give_back(self, memory: torch.Tensor) -> None:
        """Return memory that no caller and no queued work uses now."""
        with self._lock:
            self._idle.append(memory)
            del self._idle[:-_IDLE]


class _Held:
    """Memory, and its number of holders."""

    def __init__(self, buffers: DeviceBuffers, size: int) -> None:
        self.memory = buffers.take(size)
        self._buffers = buffers
        self._holds = 0
        self._lock = Lock()

    def change(self, by: int) -> None:
        with self._lock:
            self._holds += by
            last = not self._holds
        if last:
            self._buffers.give_back(self.memory)


class DeviceBuffer:
    """See :class:`hexkv.ports.DeviceRoom`."""

    def __init__(
        self,
        buffers: DeviceBuffers,
        held: _Held,
        owner: str,
        slots: Sent,
    ) -> None:
        self._buffers = buffers
        self._held = held
        self.owner = owner
        self._slots = slots
        self._released = False
        held.change(1)

    @classmethod
    def of(
        cls,
        buffers: DeviceBuffers,
        size: int,
        owner: str,
        slots: Sent,
    ) -> Self | None:
        """Return a buffer for a window at *slots*; ``None`` if memory is short."""
        try:
            held = _Held(buffers, size)
        except RuntimeError:
            return None
        return cls(buffers, held, owner, slots)

    @property
    def base(self) -> int:
        return self._held.memory.data_ptr()

    @property
    def size(self) -> int:
        return len(self._held.memory)

    def bind(self) -> None:
        device = self._buffers.fused.device
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def digests(
        self, checksum: str, parts: Sequence[tuple[int, int]], deadline: Deadline
    ) -> Sequence[bytes] | None:
        if checksum != CHECKSUM or deadline.expired:
            return None
        from hexkv.kernels.in_triton import xxh3

        with self._buffers.fused.driver.here():
            sums = xxh3.digests(self._held.memory, parts)
            if sums is None:
                return None
            # Waits for the kernel, which only reads, and ends without further work.
            return xxh3.ends(sums.cpu().numpy(), parts)

    def scatter(self, spans: Sequence[RoomSpan]) -> Transfer:
        layout, memory, fused = self._buffers.layout, self._held.memory, self._buffers.fused
        chunks: list[tuple[int, int, int]] = []
        tokens = len(self._slots.rows)
        for start, end, at in spans:
            if not 0 <= start < end <= tokens:
                raise InvalidRequest(f"span [{start}, {end}) leaves {tokens} tokens")
            size = layout.chunk_bytes(end - start)
            if at % PAGE or not 0 <= at <= len(memory) - size:
                raise InvalidRequest(f"{size} bytes at {at} leave a room of {len(memory)}")
            chunks.append((memory.data_ptr() + at, start, end - start))
        event = None
        if chunks:
            layers = range(layout.layers)
            event = fused.in_place(self._slots, chunks, layers, scatter=True)
        return fused.driver.transfer(event, 0, into=True)

    def share(self, owner: str) -> DeviceBuffer:
        if self._released:
            raise ValueError("a room that was released")
        return type(self)(self._buffers, self._held, owner, self._slots)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._held.change(-1)


def _keeps_the_port(room: DeviceBuffer) -> DeviceRoom:
    return room  # mypy checks here that it keeps the port's promises
