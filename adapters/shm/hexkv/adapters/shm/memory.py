"""The pools of two processes: this one's, as a file for peers, and theirs, mapped for reading."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from struct import Struct
from threading import Lock
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage, time_left
from hexkv.adapters.net.messages import HEAD_BYTES, verify
from hexkv.adapters.net.peers.direct import FarMemory, Move, OwnMemory
from hexkv.adapters.net.peers.wire import FRAMING, Kind
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.net.unix import is_sealed
from hexkv.ports import PIECE, Deadline, MemoryRegion, StoreUnreachable, SupportsMapping

log = logging.getLogger(__name__)

_SIZE = Struct("<Q")

_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class _Shown(NamedTuple):
    """The memory of this process that peers may map."""

    address: int
    size: int
    descriptor: int
    """Open for reading only: a process that receives it cannot write."""


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class PeerPool:
    """A peer's pool, mapped for reading. Pages are mapped as they are read, several at a time.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        if not size:
            return
        address = _C.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, _FAILED):
            raise OSError(ctypes.get_errno(), "a peer's memory cannot be mapped")
        self._address: int = address
        weakref.finalize(self, _C.munmap, address, size)

    @property
    def ready(self) -> bool:
        return True

    def takes(self, into: memoryview) -> bool:
        return not into.readonly

    def pull(
        self, moves: Sequence[Move], filled: Callable[[int, int], None], deadline: Deadline
    ) -> None:
        left = 0
        for place, _, into, at in moves:
            # Python's own copies of memory keep the interpreter's lock.
            to, start, size = _address(into), self._address + at, len(into)
            for done in range(0, size, PIECE):
                if left <= 0:
                    time_left(deadline)
                    left = PIECE
                count = min(PIECE, size - done)
                ctypes.memmove(to + done, start + done, count)
                left -= count
                if size > PIECE:  # a smaller part is used only when complete
                    filled(place, done + count)


class SharedMemory:
    """The pool of this process, and those of its peers. Safe from any thread."""

    magic = b"hexkvSHM"
    instant = True

    def __init__(self) -> None:
        self._shown: _Shown | None = None
        self._lock = Lock()
        self._pools: weakref.WeakValueDictionary[tuple[int, int, int], PeerPool] = (
            weakref.WeakValueDictionary()
        )
        """By device, file and size: one mapping of each, while a connection needs it."""

    def register(self, region: MemoryRegion) -> None:
        """Share *region* with peers, if it is a file that they can map."""
        size = len(region.buffer)
        if not isinstance(region, SupportsMapping) or not is_sealed(region.descriptor, size):
            log.warning("peers cannot map this pool: its chunks are sent over a socket instead")
            return
        try:
            readable = os.open(f"/proc/self/fd/{region.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            log.warning("peers cannot map this pool: %s", error)
            return
        self.close()
        self._shown = _Shown(region.address, size, readable)

    def find(self, view: memoryview) -> int | None:
        shown = self._shown
        if shown is None or view.readonly:
            return None
        start = _address(view) - shown.address
        return start if start >= 0 and start + len(view) <= shown.size else None

    def meet(self, stream: Stream, deadline: Deadline) -> FarMemory:
        shown = self._shown
        message = FRAMING.message(
            Kind.INTRODUCTION, 0, _SIZE.pack(0 if shown is None else shown.size)
        )
        if shown is None:
            stream.send([message], deadline)
        else:
            stream.send_descriptor(message, shown.descriptor, deadline)
        introduction, descriptors = stream.take_descriptors(HEAD_BYTES + _SIZE.size, deadline)
        try:
            return self._pool(introduction, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def lending(self) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        """Stop sharing the region. Mappings end with the connections that need them."""
        shown, self._shown = self._shown, None
        if shown is not None:
            os.close(shown.descriptor)

    def _pool(self, introduction: bytes, descriptors: Sequence[int]) -> PeerPool:
        """Return the pool that a peer has introduced.

        Raises:
            StoreUnreachable: it cannot be read safely.
        """
        head = FRAMING.head(introduction[:HEAD_BYTES])
        verify(head, introduction[HEAD_BYTES:])
        if head.kind != Kind.INTRODUCTION or head.length != _SIZE.size:
            raise BadMessage("another message than an introduction")
        (size,) = _SIZE.unpack(introduction[HEAD_BYTES:])
        if not size:
            return PeerPool(-1, 0)
        if not descriptors or not is_sealed(descriptors[0], size):
            raise BadMessage("a peer's memory is not sealed, or shorter than announced")
        found = os.fstat(descriptors[0])
        with self._lock:
            # The number of a file stays unique as long as a mapping of it exists.
            known = self._pools.get((found.st_dev, found.st_ino, size))
            if known is None:
                try:
                    known = PeerPool(descriptors[0], size)
                except OSError as error:
                    raise StoreUnreachable(str(error)) from error
                self._pools[found.st_dev, found.st_ino, size] = known
        return known


def _keeps_the_port(own: SharedMemory, far: PeerPool) -> tuple[OwnMemory, FarMemory]:
    return own, far  # mypy checks here that both match the channel's protocols
