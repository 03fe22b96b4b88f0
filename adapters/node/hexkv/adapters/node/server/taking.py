"""The receiving side of a hand-over: a process takes the place of the running node."""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import NamedTuple, Self

from hexkv.adapters.net import unix
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.node.memory import SharedRegion
from hexkv.adapters.node.server.handover import (
    END,
    GONE,
    HANDOVER,
    HANDOVER_VERSION,
    HAVE,
    HELLO,
    MAX_STATE,
    STATE,
    STORES,
    TAKE,
    PausedConnection,
    State,
    greeting,
    receive,
    receive_descriptors,
    unpack,
)
from hexkv.adapters.node.wire import VERSION
from hexkv.peers.serving.inheritance import Place
from hexkv.peers.serving.served import ServedChunks
from hexkv.ports import FRAME_VERSION, ConfigError, FrameFile, Lease, release_all

log = logging.getLogger(__name__)

_PATIENCE = 10.0
"""Seconds for a greeting."""

_RESTING = 120.0
"""Seconds for the node to come to rest and to send its state."""

_INDEXING = 10.0
"""Seconds for tiers to index what their stores inherited. No request is answered during this time.
"""

_OWNER = "inherited"


class NotHandedOver(ConfigError):
    """The running node does not hand over, or has taken everything back, or has ended."""


class Taken(NamedTuple):
    """A connection that goes on: its former state, its socket, and its leases."""

    was: PausedConnection
    socket: socket.socket
    leases: Sequence[Lease]


@dataclass(frozen=True, slots=True)
class Inherited:
    """The state that a node has handed over, adopted by the cache of this process."""

    state: State
    connections: Sequence[Taken]
    chunks: int
    """The number of them in memory."""


class Predecessor:
    """The running node, as seen by the process that is to take its place. A context.

    Leaving it before :meth:`gone` has the node go on as before.
    """

    def __init__(self, path: Path) -> None:
        """Connect to the node at *path* and start a hand-over.

        Raises:
            NotHandedOver: it does not answer, or does not hand over to this process.
            FileNotFoundError, ConnectionRefusedError: no node runs there.
        """
        self.region: SharedRegion | None = None
        """The pool's memory, if the hand-over can be used; the caller then owns it."""

        self.stores: dict[str, FrameFile] = {}
        """By tier, the memory that its store has beside the pool, until :meth:`gone`."""

        self.unfit = ""
        """The reason why it cannot be used."""

        self.listening: tuple[int, int] = -1, -1
        """Descriptors of the lock and of the listening socket, once it is :meth:`gone`."""

        self._opened = ExitStack()
        self._left: list[socket.socket] = []
        self._busy: list[Lease] = []
        self._given = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._opened.callback(self._socket.close)
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.connect(str(path))
            self._socket.sendall(greeting())
            self._read_hello()
        except (FileNotFoundError, ConnectionRefusedError):
            self._opened.close()
            raise
        except (OSError, ValueError) as error:
            self._opened.close()
            raise NotHandedOver(f"the node at {path} cannot be taken over: {error}") from error
        except BaseException:
            self._opened.close()
            raise

    def _read_hello(self) -> None:
        said, descriptors = unix.receive_descriptors(self._socket, HELLO.size)
        for descriptor in descriptors:
            self._opened.callback(os.close, descriptor)
        if not said or not descriptors:
            raise ValueError("it does not hand over, or not to this user")
        said += receive(self._socket, HELLO.size - len(said))
        magic, version, frames, self.clients, self.pool_bytes = HELLO.unpack(said)
        if magic != HANDOVER:
            raise ValueError("it speaks another protocol")
        self._pool = descriptors[0]
        if version != HANDOVER_VERSION:
            self.unfit = f"it hands over by version {version}, this is {HANDOVER_VERSION}"
        elif frames != FRAME_VERSION:
            self.unfit = f"its frames are of version {frames}, these are of {FRAME_VERSION}"

    def end(self) -> None:
        """Have the node end, because nothing of it can be used, and wait until it has.

        Raises:
            NotHandedOver: it does not end.
        """
        try:
            self._socket.sendall(END)
            self._socket.settimeout(_RESTING)
            with suppress(ConnectionError):
                receive(self._socket, 1)
        except OSError as error:
            raise NotHandedOver(f"the node does not end: {error}") from error

    def take(self) -> State:
        """Map its memory, have it come to rest, and return its state. No client is served now.

        Raises:
            NotHandedOver: the memory cannot be mapped, or the node takes it back.
        """
        try:
            self.region = SharedRegion.of(self._pool, self.pool_bytes)
            self._socket.sendall(TAKE)
            self._socket.settimeout(_RESTING)
            return self._receive()
        except (OSError, BadMessage) as error:
            raise NotHandedOver(f"the node does not hand over: {error}") from error

    def _receive(self) -> State:
        size, count = STATE.unpack(receive(self._socket, STATE.size))
        if size > MAX_STATE:
            raise BadMessage(f"a state of {size} bytes")
        state = unpack(receive(self._socket, size))
        if count < 2 + len(state.connections):
            raise BadMessage("descriptors are missing")
        lock, listening, *rest = receive_descriptors(self._socket, count)
        for descriptor in (lock, listening):
            self._opened.callback(os.close, descriptor)
        sockets = [self._opened.enter_context(socket.socket(fileno=other)) for other in rest]
        self.listening = lock, listening
        self._sockets = sockets[: len(state.connections)]
        self._left = sockets[len(state.connections) :]
        if state.stores:
            self._socket.sendall(STORES)
            descriptors = receive_descriptors(self._socket, len(state.stores))
            for (tier, file), descriptor in zip(state.stores, descriptors, strict=True):
                self._opened.callback(os.close, descriptor)
                self.stores[tier] = file._replace(descriptor=descriptor)
        return state

    def adopt(self, served: ServedChunks, state: State) -> Inherited:
        """Have *served* go on with the node's state; it lends nothing until :meth:`gone`.

        Raises:
            InvalidRequest: the state cannot be adopted.
        """
        heirs = served.inheritance
        heirs.freeze_now()
        goes_on = state.clients == VERSION
        places: list[Place] = [place for _, place in state.chunks]
        for one in state.connections:
            places += [place for *_, place in one.leases]
        places += state.busy
        leases = iter(heirs.adopt(places, _OWNER))
        by_tier: dict[str, list[Lease]] = {}
        for tier, _ in state.chunks:
            by_tier.setdefault(tier, []).append(next(leases))
        for tier, chunks in by_tier.items():
            kept = heirs.keep(tier, chunks)
            if kept < len(chunks):
                log.warning("tier %s keeps %d of %d chunks", tier, kept, len(chunks))
            release_all(chunks)
        connections = []
        for one, sock in zip(state.connections, self._sockets, strict=True):
            mine = [next(leases) for _ in one.leases]
            if goes_on:
                connections.append(Taken(one, sock, mine))
            else:
                self._busy += mine
                self._left.append(sock)
        self._busy += leases
        beside = self._count_stores(served, state)
        heirs.pin(state.pins)
        return Inherited(state, connections, len(state.chunks) + beside)

    def _count_stores(self, served: ServedChunks, state: State) -> int:
        """Return the number of chunks beside the pool, once tiers have indexed them for pins."""
        found = served.inheritance.counted(_INDEXING)
        if state.stores is None and found:
            log.warning("tiers %s begin empty: the node did not hand them over", ", ".join(found))
        for tier, file in self.stores.items():
            kept = found.get(tier, 0)
            if kept < len(file.frames):
                log.warning("tier %s keeps %d of %d chunks", tier, kept, len(file.frames))
        return sum(found.values())

    def gone(self, served: ServedChunks) -> None:
        """Exchange the last messages: from now on all of it is this process's.

        Raises:
            NotHandedOver: the node has taken it back, and goes on.
        """
        try:
            self._socket.settimeout(_PATIENCE)
            self._socket.sendall(HAVE)
            word = receive(self._socket, 1)
        except OSError as error:
            raise NotHandedOver(f"the node does not hand over: {error}") from error
        if word != GONE:
            raise NotHandedOver(f"the node does not hand over: it answers {word!r}")
        self._given = True
        served.inheritance.thaw()
        self._opened.pop_all()
        for descriptor in (self._pool, *(file.descriptor for file in self.stores.values())):
            os.close(descriptor)
        Thread(target=self._quarantine, name="hexkv node heir", daemon=True).start()

    def _quarantine(self) -> None:
        """Keep blocks that others may still write to, until the last of them is gone."""
        poll = select.poll()
        for sock in self._left:
            with suppress(OSError):  # this makes the client reconnect
                sock.shutdown(socket.SHUT_WR)
        waiting = {sock.fileno(): sock for sock in (self._socket, *self._left)}
        for descriptor in waiting:
            poll.register(descriptor, select.POLLHUP)
        while waiting:
            for descriptor, _ in poll.poll():
                poll.unregister(descriptor)
                waiting.pop(descriptor).close()
        release_all(self._busy)
        self._busy = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
