"""The channel by Mooncake's transfer engine: peers read each other's memory, agreed over TCP.

A read cannot be cancelled, and hangs for 30 s if the peer is frozen. So each runs on a thread that
the caller leaves at the deadline, and the memory that it may write stays leased until the engine
returns.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from struct import Struct
from typing import Any

from hexkv.adapters.mooncake import _errands
from hexkv.adapters.mooncake._native import Engine, engine
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage, OutOfTime, time_left
from hexkv.adapters.net.messages import HEAD_BYTES, verify
from hexkv.adapters.net.peers.direct import FarMemory, Move, OwnMemory
from hexkv.adapters.net.peers.line import OWNER
from hexkv.adapters.net.peers.over_tcp import TcpPeers
from hexkv.adapters.net.peers.wire import FRAMING, Kind
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    Clock,
    ConfigError,
    Deadline,
    MemoryRegion,
    StoreUnreachable,
    SupportsRegistration,
    release_all,
    share_all,
)

log = logging.getLogger(__name__)

_PLACE = Struct("<QQ")
"""The address and the size of the registered memory; the engine's address follows."""

_MOST = 512
"""The most bytes of an introduction."""


class EngineMemory:
    """This process's memory, registered with the engine.

    Args:
        host: by which other machines reach this one's engine.
        protocol: ``tcp`` or ``rdma``.
        devices: RDMA devices, separated by commas.

    Raises:
        AdapterUnavailable, ConfigError: there is no engine here.
    """

    magic = b"hexkvMTE"
    instant = False

    def __init__(self, host: str, protocol: str, devices: str) -> None:
        self.threads = _errands.CallThreads("mooncake read")
        self.engine: Engine = engine()
        code = self.engine.initialize(host, "P2PHANDSHAKE", protocol, devices)
        if code:
            raise ConfigError(f"mooncake's transfer engine does not begin at {host}: {code}")
        self._place = f"{host}:{self.engine.get_rpc_port()}"
        self._start = self._size = 0

    def register(self, region: MemoryRegion) -> None:
        """Register *region* with the engine."""
        start, size = region.address, len(region.buffer)
        code = self.engine.register_memory(start, size)
        if code:
            log.warning("mooncake cannot use this pool (%d): its chunks are sent over TCP", code)
            return
        self._start, self._size = start, size

    def forget(self) -> None:
        """Release all waiters, and unregister the memory from the engine."""
        self.threads.close()
        start, self._size = (self._start if self._size else 0), 0
        if start:
            self.engine.unregister_memory(start)

    def find(self, view: memoryview) -> int | None:
        if view.readonly or not self._size:
            return None
        start = ctypes.addressof(ctypes.c_char.from_buffer(view)) - self._start
        return start if start >= 0 and start + len(view) <= self._size else None

    def meet(self, stream: Stream, deadline: Deadline) -> FarMemory:
        introduction = _PLACE.pack(self._start, self._size) + self._place.encode()
        stream.send([FRAMING.message(Kind.INTRODUCTION, 0, introduction)], deadline)
        head = FRAMING.head(stream.take(HEAD_BYTES, deadline))
        if head.kind != Kind.INTRODUCTION or not _PLACE.size < head.length <= _MOST:
            raise BadMessage("another message than an introduction")
        body = stream.take(head.length, deadline)
        verify(head, body)
        start, size = _PLACE.unpack_from(body)
        try:
            place = str(Address.parse(body[_PLACE.size :].decode()))
        except ValueError as error:
            raise BadMessage(f"a peer's engine: {error}") from error
        if start + size > 1 << 64:
            raise BadMessage("memory beyond the end of all memory")
        return PeerMemory(self, place, start, size)

    def lending(self) -> AbstractContextManager[object]:
        return nullcontext()  # the engine has threads of its own


class PeerMemory:
    """A peer's memory, by its engine."""

    def __init__(self, own: EngineMemory, place: str, start: int, size: int) -> None:
        self.size = size
        self._own = own
        self._place = place
        self._start = start

    @property
    def ready(self) -> bool:
        return True

    def takes(self, into: memoryview) -> bool:
        return self._own.find(into) is not None

    def pull(
        self, moves: Sequence[Move], filled: Callable[[int, int], None], deadline: Deadline
    ) -> None:
        del filled  # the engine reports only the end
        seconds = time_left(deadline)
        leases = list(share_all([move.lease for move in moves], OWNER))
        to = [ctypes.addressof(ctypes.c_char.from_buffer(move.into)) for move in moves]
        at = [self._start + move.at for move in moves]
        sizes = [len(move.into) for move in moves]
        # Keep the views, too: memory with a view is not unmapped when the pool closes.
        kept = leases, moves
        try:
            code = self._own.threads.run(
                lambda: self._own.engine.batch_transfer_sync_read(self._place, to, at, sizes),
                seconds,
                lambda: release_all(kept[0]),
            )
        except _errands.OutOfTime as error:
            raise OutOfTime("mooncake's engine is not done") from error
        if code:
            raise StoreUnreachable(f"mooncake's engine reads nothing from {self._place}: {code}")


class MooncakeChannel(TcpPeers):
    """Reads from peers by Mooncake's transfer engine, and lets them read.

    Loans are negotiated over TCP.

    Args:
        address: where :meth:`serve` listens; port 0 takes a free one.
        clock: for deadlines.
        memory: by which peers read.
        options: as of :class:`TcpPeers`.
    """

    def __init__(
        self, address: Address, clock: Clock, memory: EngineMemory, **options: Any
    ) -> None:
        super().__init__(address, clock, memory=memory, **options)
        self._engine = memory

    def register(self, region: MemoryRegion) -> None:
        """Have peers read *region*. Chunks that lie elsewhere are sent over TCP."""
        self._engine.register(region)

    def close(self) -> None:
        super().close()
        self._engine.forget()


def _registers(channel: MooncakeChannel) -> SupportsRegistration:
    return channel  # mypy checks here that it can register the pool's memory


def _keeps_the_port(own: EngineMemory, far: PeerMemory) -> tuple[OwnMemory, FarMemory]:
    return own, far  # mypy checks here that both have what a channel needs
