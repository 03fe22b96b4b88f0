"""The node's side of a hand-over: it comes to rest, sends its state, and ends or goes on."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection
from contextlib import suppress

from hexkv.adapters.net.rpc.barrier import Barrier
from hexkv.adapters.node.server.handover import (
    GONE,
    HAVE,
    STATE,
    STORES,
    PausedConnection,
    State,
    pack,
    receive,
    send_descriptors,
)
from hexkv.adapters.node.server.session import NodeSession
from hexkv.adapters.node.wire import VERSION
from hexkv.peers.serving.inheritance import Place
from hexkv.peers.serving.served import ServedChunks
from hexkv.ports import Clock, Deadline

log = logging.getLogger(__name__)

REST = 5.0
"""Seconds for requests under way to end, and then for queued writes."""

_ADOPTING, _EACH = 20.0, 2e-4
"""Seconds that the successor has to adopt the state, and for each chunk of it. No request is
answered during this time; it takes 50 us a chunk, of both processes together."""


class Giving:
    """One hand-over. Used only by the thread that accepts clients."""

    def __init__(self, served: ServedChunks, barrier: Barrier, clock: Clock) -> None:
        self._served = served
        self._barrier = barrier
        self._clock = clock

    def run(
        self,
        sock: socket.socket,
        sessions_now: Callable[[], Collection[NodeSession]],
        rested: Callable[[Callable[[], bool], float], bool],
        state: tuple[int, int],
        descriptors: Collection[int],
    ) -> bool:
        """Hand everything over, or go on as before. True if the successor owns it now.

        Either way the sessions at the barrier are the caller's to leave or to resume.

        Args:
            sock: the connection over which the successor sent ``TAKE``.
            sessions_now: returns those of all clients.
            rested: waits until a condition holds, for seconds at most; sessions wake it.
            state: the generation, and the next client's number.
            descriptors: of the lock and of the listening socket.
        """
        gone = False
        try:
            self._barrier.lower()
            sessions = sessions_now()  # a client that is let in after this has no answer yet
            log.info("node: %d clients are handed over", len(sessions))
            if not rested(lambda: all(one.state != "open" for one in sessions), REST):
                for session in sessions:
                    if session.state == "open":
                        session.dismiss("its request does not end, and the node is handed over")
            parked = [session for session in sessions if session.state == "parked"]
            whole = self._state(parked, *state)
            said = pack(whole)
            left = [session for session in sessions if session.state == "dismissed"]
            passed = [*descriptors, *(session.descriptor for session in (*parked, *left))]
            stores = whole.stores or ()
            count = len(whole.chunks) + sum(len(file.frames) for _, file in stores)
            sock.settimeout(_ADOPTING + _EACH * count)
            sock.sendall(STATE.pack(len(said), len(passed)) + said)
            send_descriptors(sock, passed)
            word = receive(sock, 1)
            if word == STORES:
                send_descriptors(sock, [file.descriptor for _, file in stores])
                word, stores = receive(sock, 1), ()
            if word == HAVE:
                sock.sendall(GONE)
                gone = True
                for tier, file in stores:
                    log.warning(
                        "node: tier %s: %d chunks of %d bytes are left behind: the process that"
                        " takes over is of a version that does not ask for them",
                        tier,
                        len(file.frames),
                        sum(frame.size for frame in file.frames),
                    )
            else:
                log.error("node: the process that takes over sends an unknown answer: going on")
        except OSError as error:
            log.warning("node: the process that was to take over did not: %s; going on", error)
        except Exception:
            log.exception("node: handing over failed: going on")
        if gone:  # after this, also on an error, nothing of it is this process's
            self._leave()
            return True
        with suppress(OSError):  # first, so that a late message does not count as an answer
            sock.shutdown(socket.SHUT_RDWR)
        self._served.inheritance.thaw()
        self._barrier.lift()
        return False

    def _leave(self) -> None:
        try:
            self._served.inheritance.give()
        except Exception:
            log.exception("node: closing the parts handed over failed")

    def _state(self, parked: Collection[NodeSession], generation: int, numbers: int) -> State:
        inheritance = self._served.inheritance
        blocks = inheritance.freeze(Deadline.after(self._clock, REST))
        chunks = inheritance.chunks()
        connections = [_connection(session, inheritance.place) for session in parked]
        places = [place for _, place in chunks]
        places += [place for one in connections for *_, place in one.leases]
        busy = inheritance.busy(blocks, places)
        return State(
            generation,
            VERSION,
            numbers,
            chunks,
            inheritance.pins(),
            connections,
            busy,
            inheritance.stores(),
        )


def _connection(session: NodeSession, place: Callable[..., Place | None]) -> PausedConnection:
    leases = [
        (request, at, fresh, place(lease)) for request, at, lease, fresh in session.granted.rows()
    ]
    return PausedConnection(
        session.name,
        dict(session.spaces),
        sorted(session.pinned),
        bytes(session.ahead),
        [(request, at, fresh, where) for request, at, fresh, where in leases if where is not None],
        session.granted.limits(),
    )
