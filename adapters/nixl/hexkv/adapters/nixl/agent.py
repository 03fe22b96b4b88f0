"""NIXL's agent in a thread of its own: transfers, and the progress that peers' transfers need.

The library has no timeouts, and a transfer goes on writing after its handle is released. So only
this thread waits for it, and the memory that a transfer writes stays leased until the library
reports its end. NIXL's own progress thread spins for as long as the process lives; this one calls
the library while transfers or loans are under way, and sleeps otherwise.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition, Event, Thread
from typing import Any, Protocol

from hexkv.ports import StoreError, StoreUnreachable

log = logging.getLogger(__name__)

_PAUSE = 50e-6
"""Seconds between two polls of transfers."""

_LENT_PAUSE = 500e-6
"""The same while only peers read: most transports need no progress by this process."""

_LINGERING = 4000
"""Polls after the return of the last lease. A peer that gave up still needs its bytes: it ignores
them, but its block stays leased until the library has written it."""

_IDLE = 1.0
"""Seconds between two polls if nothing is expected."""

_LAST = 40.0
"""Seconds that the end of the process waits for a request to a service that does not answer: the
library gives up after 26 s."""

DRAM = "DRAM"


class Hold(Protocol):
    """A resource that a transfer needs until its end: a lease, a file, a turn."""

    def release(self) -> None:
        """Release it: no byte moves from now on. Called by the agent's thread; never raises."""
        ...


class Transfer:
    """One transfer, from its request until the library reports its end.

    Args:
        make: makes the library's transfer, not yet begun. Called with the agent by its thread.
        leases: released once no byte can move.
        views: of the memory written to: memory with a view is not unmapped when the pool closes.
        over: called with the agent at the end, successful or not.
    """

    def __init__(
        self,
        make: Callable[[Any], Any],
        leases: Sequence[Hold],
        views: Sequence[memoryview] = (),
        over: Callable[[Any], object] | None = None,
    ) -> None:
        self.make = make
        self.over = over
        self._leases = leases

        self._views = views
        self._ended = Event()
        self.handle: Any = None
        self.state = ""
        self._error: Exception | None = None

    def wait(self, seconds: float) -> bool:
        """Wait for the end; return False if it is not reached within *seconds*.

        Raises:
            StoreUnreachable: it failed.
        """
        if not self._ended.wait(seconds):
            return False
        if self._error is not None:
            raise StoreUnreachable(f"NIXL: {self._error}") from self._error
        return True

    @property
    def is_over(self) -> bool:
        """True once no byte can move, after success or failure; or after :meth:`leave`."""
        return self._ended.is_set()

    def leave(self) -> None:
        """Release all waiters. The transfer may go on, and keeps its leases."""
        self._error = StoreError("NIXL's agent is closed")
        self._ended.set()

    def end(self, error: Exception | None = None) -> None:
        """Set the result, release the leases, and wake the waiters."""
        self._error = error
        for lease in self._leases:
            lease.release()
        self._ended.set()


class Agent:
    """Owns NIXL's agent. Safe from any thread.

    Args:
        make: makes the library's agent, in the thread that calls it from then on.
        pause: called between two polls, with the seconds that it should take.
        peers: True if it has peers, which may read and whose transfers need its progress.

    Raises:
        Exception: any error of *make*.
    """

    def __init__(
        self, make: Callable[[], Any], pause: Callable[[float], object], *, peers: bool = True
    ) -> None:
        self._pause = pause
        self._peers = peers
        self._changed = Condition()
        self._calls: deque[Callable[[Any], object]] = deque()
        self._waiters: set[Event] = set()
        """The events of calls with a waiter."""

        self._moving: list[Transfer] = []
        self._lent = 0
        self._lingering = 0
        self._closed = False
        ready: list[Exception | None] = []
        self._thread = Thread(target=self._run, args=(make, ready), name="hexkv nixl", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: ready)
        if ready[0] is not None:
            raise ready[0]

    def call(self, work: Callable[[Any], Any], seconds: float) -> Any:
        """Call *work* with the library's agent and return its result.

        Raises:
            StoreUnreachable: it failed, or was not reached in time.
            StoreError: this is closed.
        """
        done, given, failed = Event(), list[Any](), list[Exception]()
        self._waiters.add(done)

        def run(agent: Any) -> None:
            error = _tried(lambda: given.append(work(agent)))
            if error is not None:
                failed.append(error)
            done.set()

        try:
            self._soon(run)
            if not done.wait(seconds):
                raise StoreUnreachable("NIXL is busy for too long")
        finally:
            self._waiters.discard(done)
        if failed:
            raise StoreUnreachable(f"NIXL: {failed[0]}") from failed[0]
        if not given:
            raise StoreError("NIXL's agent is closed")
        return given[0]

    def later(self, work: Callable[[Any], object]) -> None:
        """Have *work* called later, unless this is closed before."""
        with self._changed:
            if not self._closed:
                self._calls.append(work)
                self._changed.notify()

    def begin(self, transfer: Transfer) -> None:
        """Begin *transfer*.

        Raises:
            StoreError: this is closed, and the transfer's leases are released.
        """
        try:
            self._soon(lambda agent: self._start(agent, transfer))
        except StoreError as error:
            transfer.end(error)
            raise

    @contextmanager
    def lending(self) -> Iterator[None]:
        """A block in which peers may read: over TCP they need this process to call the library."""
        with self._changed:
            self._lent += 1
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._lent -= 1
                self._lingering = _LINGERING

    def close(self, seconds: float) -> None:
        """Refuse new calls. Transfers under way go on, and so does the thread until they end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            if not self._peers:  # do not make callers wait for a library that hangs
                for done in list(self._waiters):
                    done.set()
                for transfer in list(self._moving):
                    transfer.leave()
        self._thread.join(seconds)
        if not self._peers and self._thread.is_alive():
            # A call of the library that is under way at the end of the process would abort it.
            atexit.register(self._thread.join, _LAST)

    def _soon(self, work: Callable[[Any], object]) -> None:
        with self._changed:
            if self._closed:
                raise StoreError("NIXL's agent is closed")
            self._calls.append(work)
            self._changed.notify()

    def _run(self, make: Callable[[], Any], ready: list[Exception | None]) -> None:
        made = list[Any]()
        error = _tried(lambda: made.append(make()))
        with self._changed:
            ready.append(error)
            self._changed.notify()
        if error is not None:
            return
        agent = made[0]
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._calls or self._moving or self._lent or self._lingering or self._closed
                    ),
                    _IDLE,
                )
                calls = list(self._calls)
                self._calls.clear()
                if self._closed and not (calls or self._moving):
                    return
            for call in calls:
                if (error := _tried(partial(call, agent))) is not None:
                    log.info("NIXL: %s", error)  # an agent that is already gone cannot be removed
            self._look(agent)

    def _start(self, agent: Any, transfer: Transfer) -> None:
        def start() -> None:
            transfer.handle = transfer.make(agent)
            transfer.state = agent.transfer(transfer.handle)

        self._moving.append(transfer)
        if self._closed and not self._peers:
            transfer.leave()
        self._settle(agent, transfer, _tried(start))

    def _look(self, agent: Any) -> None:
        # This makes progress for peers' reads. No peer sends notifications.
        if self._peers and (error := _tried(agent.get_new_notifs)) is not None:
            log.warning("NIXL: %s", error)
        for transfer in list(self._moving):

            def look(it: Transfer = transfer) -> None:
                it.state = agent.check_xfer_state(it.handle)

            self._settle(agent, transfer, _tried(look))
        if self._moving:
            self._pause(_PAUSE)
        elif self._lent or self._lingering:
            self._lingering = max(0, self._lingering - 1)
            self._pause(_LENT_PAUSE)

    def _settle(self, agent: Any, transfer: Transfer, error: Exception | None) -> None:
        """End *transfer* if the library reports its end, by a state or an error."""
        if error is None and transfer.state == "PROC":
            return
        if error is None and transfer.state != "DONE":
            error = StoreError(f"a transfer ends as {transfer.state}")
        self._moving.remove(transfer)
        if transfer.handle is not None:
            why = _tried(lambda: agent.release_xfer_handle(transfer.handle))
            if why is not None:
                log.warning("NIXL does not release a transfer: %s", why)
        over = transfer.over
        if over is not None and (why := _tried(lambda: over(agent))) is not None:
            log.warning("NIXL: %s", why)
        transfer.end(error)


def _tried(work: Callable[[], object]) -> Exception | None:
    """Call *work* and return its exception, if any."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the library's errors have no common base class
        return error
    return None
