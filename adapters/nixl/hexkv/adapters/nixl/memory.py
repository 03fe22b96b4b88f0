"""Memory that NIXL reads and writes: this process's registered memory, and that of peers."""

from __future__ import annotations

import ctypes
import importlib
import logging
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from secrets import token_hex
from struct import Struct
from typing import Any

from hexkv.adapters.net.errors import BadMessage, OutOfTime, time_left
from hexkv.adapters.net.messages import HEAD_BYTES, verify
from hexkv.adapters.net.peers.direct import FarMemory, Move, OwnMemory
from hexkv.adapters.net.peers.line import OWNER
from hexkv.adapters.net.peers.wire import FRAMING, Kind
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.nixl.agent import DRAM, Agent, Transfer
from hexkv.ports import (
    AdapterUnavailable,
    Deadline,
    Lease,
    MemoryRegion,
    release_all,
    share_all,
)

HINT = "pip install hexkv-nixl[cuda12], or [cuda13]; both work without CUDA"

_WHEELS = ("nixl_cu12", "nixl_cu13")

_PLACE = Struct("<QQ")
"""The address and the size of the registered memory; NIXL's metadata follow."""

_MOST = 64 << 10
"""The most bytes of an introduction. NIXL's metadata have about 430 for a plain region."""

_FAREWELL = 0.5
"""Seconds for the thread to end if no transfer is under way."""


def _library() -> Any:
    """The module of NIXL's agent, from the installed wheel."""
    for name in _WHEELS:
        try:
            return importlib.import_module(f"{name}._api")
        except ModuleNotFoundError as error:
            if error.name != name:
                raise AdapterUnavailable("nixl", str(error), HINT) from error
        except ImportError as error:
            raise AdapterUnavailable("nixl", str(error), HINT) from error
    raise AdapterUnavailable("nixl", "there is no NIXL", HINT)


def made(name: str, backends: Sequence[str] = ("UCX",)) -> Any:
    """NIXL's agent, with *backends* of default settings.

    Raises:
        AdapterUnavailable: it is not installed.
    """
    library = _library()
    for handler in logging.getLogger("nixl").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)  # standard output belongs to the program
    config = library.nixl_agent_config(enable_prog_thread=False, backends=list(backends))
    return library.nixl_agent(name, config)


@dataclass(slots=True, eq=False)
class _Remote:
    """The library's present record of a peer's agent. For the agent's thread, except *left*."""

    name: str
    connections: int = 0
    moving: set[Transfer] = field(default_factory=set)
    """The reads from it that are under way."""

    unwanted: bool = False
    """True if it must be forgotten once no read is under way."""

    left: list[Transfer] = field(default_factory=list)
    """Reads that were given up and may still be under way. Safe from any thread."""

    @property
    def stands_still(self) -> bool:
        """True while a read that was given up is under way."""
        for transfer in list(self.left):
            if transfer.is_over:
                with suppress(ValueError):  # another thread was first
                    self.left.remove(transfer)
        return bool(self.left)


class NixlMemory:
    """This process's registered memory. Safe from any thread.

    Raises:
        AdapterUnavailable: NIXL is not installed.
    """

    magic = b"hexkvNXL"
    instant = False

    def __init__(self) -> None:
        name = f"hexkv-{token_hex(8)}"
        self._agent = Agent(lambda: made(name), time.sleep)
        self._start = self._size = 0
        self._metadata = b""
        self._remotes: dict[str, _Remote] = {}
        """The library's records of peers, by their agents' names. For the agent's thread."""

    def register(self, region: MemoryRegion, seconds: float) -> None:
        """Register *region* with NIXL.

        Raises:
            StoreError: NIXL refuses it.
        """
        start, size = region.address, len(region.buffer)

        def register(agent: Any) -> bytes:
            agent.register_memory([(start, size, 0, "")], DRAM)
            return bytes(agent.get_agent_metadata())

        self._metadata = self._agent.call(register, seconds)
        self._start, self._size = start, size

    def find(self, view: memoryview) -> int | None:
        if view.readonly or not self._size:
            return None
        start = ctypes.addressof(ctypes.c_char.from_buffer(view)) - self._start
        return start if start >= 0 and start + len(view) <= self._size else None

    def meet(self, stream: Stream, deadline: Deadline) -> FarMemory:
        introduction = _PLACE.pack(self._start, self._size) + self._metadata
        stream.send([FRAMING.message(Kind.INTRODUCTION, 0, introduction)], deadline)
        head = FRAMING.head(stream.take(HEAD_BYTES, deadline))
        if head.kind != Kind.INTRODUCTION or not _PLACE.size <= head.length <= _MOST:
            raise BadMessage("another message than an introduction")
        body = stream.take(head.length, deadline)
        verify(head, body)
        start, size = _PLACE.unpack_from(body)
        if not size:
            return PeerMemory(self, _Remote(""), 0, 0)
        if start + size > 1 << 64:
            raise BadMessage("memory beyond the end of all memory")
        remote = self._agent.call(self._adds(body[_PLACE.size :]), time_left(deadline))
        return PeerMemory(self, remote, start, size)

    def lending(self) -> AbstractContextManager[object]:
        return self._agent.lending()

    def begin(self, transfer: Transfer) -> None:
        """Begin to read from a peer."""
        self._agent.begin(transfer)

    def leave(self, remote: _Remote) -> None:
        """Drop a connection to a peer; with the last one, forget the peer."""

        def leave(agent: Any) -> None:
            remote.connections -= 1
            if not remote.connections:
                self._forget(remote, agent)

        self._agent.later(leave)

    def renew(self, remote: _Remote) -> None:
        """Forget the peer, so that the next connection starts afresh: a transfer has failed."""
        self._agent.later(lambda agent: self._forget(remote, agent))

    def begun(self, remote: _Remote, transfer: Transfer) -> _Remote:
        """Record a read from a peer, until :meth:`ended`. For the agent's thread.

        Returns:
            the library's present record of the peer, which may be newer than *remote*.
        """
        remote = self._remotes.get(remote.name, remote)
        remote.moving.add(transfer)
        return remote

    def ended(self, remote: _Remote, transfer: Transfer, agent: Any) -> None:
        """Remove the record of *transfer*, which has ended. For the agent's thread."""
        remote.moving.discard(transfer)
        if remote.unwanted:
            self._forget(remote, agent)

    def close(self) -> None:
        """Refuse new calls."""
        self._agent.close(_FAREWELL)

    def _forget(self, remote: _Remote, agent: Any) -> None:
        """Forget a peer, now or at the end of its last read.

        The library reports reads from a removed peer as failed, but still writes their bytes:
        memory
        released then would change under its next owner.
        """
        if self._remotes.get(remote.name) is not remote:
            return
        remote.unwanted = bool(remote.moving)
        if not remote.unwanted:
            del self._remotes[remote.name]
            agent.remove_remote_agent(remote.name)

    def _adds(self, metadata: bytes) -> Callable[[Any], _Remote]:
        def add(agent: Any) -> _Remote:
            answer = agent.add_remote_agent(metadata)
            name = answer.decode() if isinstance(answer, bytes) else str(answer)
            remote = self._remotes.setdefault(name, _Remote(name))
            remote.connections += 1
            return remote

        return add


class _Shares:
    """Shares of leases, for as long as a transfer may write to their blocks."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._shares = list(share_all(leases, OWNER))

    def release(self) -> None:
        """See :class:`hexkv.adapters.nixl.agent.Hold`."""
        release_all(self._shares)


class PeerMemory:
    """A peer's registered memory."""

    def __init__(self, own: NixlMemory, remote: _Remote, start: int, size: int) -> None:
        self.size = size
        self._own = own
        self._remote = remote
        self._start = start
        if size:
            weakref.finalize(self, own.leave, remote)

    @property
    def ready(self) -> bool:
        """False while a read that was given up is under way.

        The library has one connection to a peer. After an outage the system retransmits ever more
        rarely, for about as long again: all reads behind the lost one would wait, too.
        """
        return not self._remote.stands_still

    def takes(self, into: memoryview) -> bool:
        return self.ready and self._own.find(into) is not None

    def pull(
        self, moves: Sequence[Move], filled: Callable[[int, int], None], deadline: Deadline
    ) -> None:
        del filled  # the library reports only the end
        seconds = time_left(deadline)
        into = [
            (ctypes.addressof(ctypes.c_char.from_buffer(move.into)), len(move.into), 0)
            for move in moves
        ]
        far = [(self._start + move.at, len(move.into), 0) for move in moves]

        remote = self._remote

        def make(agent: Any) -> Any:
            nonlocal remote
            remote = self._own.begun(remote, transfer)
            here, there = agent.get_xfer_descs(into, DRAM), agent.get_xfer_descs(far, DRAM)
            return agent.initialize_xfer("READ", here, there, self._remote.name, b"")

        transfer = Transfer(
            make,
            [_Shares([move.lease for move in moves])],
            [move.into for move in moves],
            over=lambda agent: self._own.ended(remote, transfer, agent),
        )
        self._own.begin(transfer)
        try:
            over = transfer.wait(seconds)
        except BaseException:
            self._own.renew(self._remote)
            raise
        if not over:
            self._remote.left.append(transfer)
            raise OutOfTime("NIXL is not done")


def _keeps_the_port(own: NixlMemory, far: PeerMemory) -> tuple[OwnMemory, FarMemory]:
    return own, far  # mypy checks here that both have what a channel needs
