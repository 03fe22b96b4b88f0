"""Copies between a device and leased blocks, and those that outlive their deadline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock

from hexkv.core.memory.background import BackgroundCopy, in_background
from hexkv.ports import (
    Deadline,
    DeviceKV,
    Executor,
    Finished,
    InvalidRequest,
    Lease,
    ServiceHold,
    Span,
    Transfer,
    release_all,
)

log = logging.getLogger(__name__)

LOST = 60.0
"""Seconds for which the memory of a copy is kept whose end cannot be known."""

OWNER = "late copy"
"""The owner, in the pool's ledger, of blocks that a late copy still uses."""


Start = Callable[[Callable[[], None]], None]
"""Calls its argument, or has it called, once a copy may be made."""


def at_once(submit: Callable[[], None]) -> None:
    """Submit a copy that may be made now."""
    submit()


class Copy:
    """A copy in progress, and the leases on the memory that it uses."""

    __slots__ = ("leases", "owner", "transfer")

    def __init__(self, leases: Sequence[Lease], owner: str) -> None:
        self.leases = leases
        self.owner = owner
        """The call that began it. Leases of a prefetch have the name of that."""

        self.transfer: Transfer | None = None
        """``None`` before it begins, and once it is known to have ended."""

    def shares(self, owner: str) -> list[Lease]:
        """Return leases of *owner* on the same memory, of the leases that still hold it."""
        found = []
        for lease in self.leases:
            try:
                found.append(lease.share(owner))
            except Exception:  # noqa: BLE001, S112 - released; each class raises its own error
                continue
        return found


class Copier:
    """Waits for device copies up to a deadline; keeps the memory of late ones until they end.

    A call releases the leases of its copies by :meth:`release`. If an unexpected exception
    prevents that, they stay until the call's end, where :meth:`left` comes first.
    """

    def __init__(self, executor: Executor) -> None:
        """Use the workers of *executor* for copies beside the host."""
        self.executor = executor
        self.begun: dict[Copy, None] = {}
        """Copies in progress."""

        self.late: list[tuple[Transfer, list[Lease]]] = []
        """Copies that outlived their deadline."""

        self._lock = Lock()

    def copy(
        self,
        device: DeviceKV,
        spans: Sequence[Span],
        leases: Sequence[Lease],
        owner: str,
        deadline: Deadline,
        *,
        gather: bool,
        layers: range | None = None,
    ) -> bool:
        """Copy *spans*, the payloads of *leases*, for *owner*. True if it was done in time.

        Raises:
            InvalidRequest: the device rejects the request as invalid.
        """
        copy = self.begin(device, spans, leases, owner, gather=gather, layers=layers)
        return copy is not None and self.finish(copy, deadline)

    def begin(
        self,
        device: DeviceKV,
        spans: Sequence[Span],
        leases: Sequence[Lease],
        owner: str,
        *,
        gather: bool,
        layers: range | None = None,
        beside: Start | None = None,
    ) -> Copy | None:
        """Begin a copy to or from *leases*, for :meth:`finish`; ``None`` if the device failed.

        It is in progress for the call *owner*; the leases may be those of a prefetch. A device that
        raises has no copy in progress. With *beside* a worker makes the copy, which *device* has to
        allow: it is called with the function that submits the copy, to be called once the copy may
        be made.

        Raises:
            InvalidRequest: the device rejects the request as invalid.
        """
        copy = Copy(tuple(leases), owner)
        if beside is not None:
            move = device.gather if gather else device.scatter
            made = copy.transfer = BackgroundCopy(self.executor, partial(move, spans, layers))
            self.begun[copy] = None  # before a worker can begin: an interrupt finds it here
            beside(made.submit)
            return copy
        try:
            self.begun[copy] = None
            move = device.gather if gather else device.scatter
            copy.transfer = transfer = move(spans, layers)  # at once: an interrupt finds it here
            if type(transfer) is Finished:
                del self.begun[copy]
                copy.transfer = None
            elif not callable(getattr(transfer, "wait", None)):
                raise TypeError(f"a {type(transfer).__qualname__} is no transfer")  # noqa: TRY301
            return copy  # noqa: TRY300 - all of it is one try
        except InvalidRequest:
            del self.begun[copy]
            raise
        except Exception:
            # Whatever a device raises, the prompt can still be computed.
            del self.begun[copy]
            log.exception("the device failed to %s", "gather" if gather else "scatter")
            return None
        except BaseException:
            # A device that copies at once has ended; another may have queued what writes here.
            if copy.transfer is None and gather and not in_background(device):
                copy.transfer = _Lost()
            raise

    def withdraw(self, copy: Copy) -> bool:
        """Keep a worker from making *copy*. Return False if it has begun, or is not a worker's."""
        if isinstance(copy.transfer, BackgroundCopy) and copy.transfer.withdraw():
            self.begun.pop(copy, None)
            return True
        return False

    def finish(self, copy: Copy, deadline: Deadline) -> bool:
        """Wait for a copy. Return True if it was done in time.

        Raises:
            InvalidRequest: the device rejects the copy as invalid.
        """
        try:
            done = copy.transfer is None or _done(copy.transfer, deadline)
        except InvalidRequest:
            self.begun.pop(copy, None)
            raise
        except Exception:
            self.begun.pop(copy, None)
            log.exception("a copy failed")
            return False
        if done:
            self.begun.pop(copy, None)
        return done

    def finish_all(self, copies: Sequence[Copy], deadline: Deadline) -> bool:
        """Wait for *copies*, also behind one that failed. True if all were done in time.

        Raises:
            InvalidRequest: the device rejects one of them as invalid.
        """
        done, refused = True, None
        for copy in copies:
            try:
                done = self.finish(copy, deadline) and done
            except InvalidRequest as error:
                refused = error
        if refused is not None:
            raise refused
        return done

    def release(self, leases: Sequence[Lease], hold: ServiceHold | None = None) -> None:
        """Release *leases*, and *hold*. Copies in progress keep their memory until they end."""
        if self.begun:
            held = leases if hold is None else [*leases, *hold.leases]
            for copy in list(self.begun):
                if copy.leases and copy.leases[0] in held:
                    self._keep(copy)
        release_all(leases)
        if hold is not None:
            hold.release()

    def left(self, owner: str, deadline: Deadline) -> None:
        """Keep the memory of copies that *owner* began and did not finish, when it has ended.

        A worker's copy is withdrawn, or waited for: a host that has left a request does not expect
        further writes to its window.
        """
        for copy in list(self.begun):
            if copy.owner == owner and not self.withdraw(copy):
                if isinstance(copy.transfer, BackgroundCopy):
                    with suppress(InvalidRequest):
                        self.finish(copy, deadline)
                self._keep(copy)

    def reap(self, deadline: Deadline) -> None:
        """Release the memory of late copies that are done, or end before *deadline*."""
        for late in list(self.late):
            transfer, leases = late
            try:
                done = _done(transfer, deadline)
            except Exception:
                log.exception("a late copy failed")
                done = True
            if not done:
                continue
            # Listed until all is released: the next call releases the rest.
            for lease in leases:
                lease.release()
            with self._lock:
                self.late = [other for other in self.late if other is not late]

    def _keep(self, copy: Copy) -> None:
        if copy.transfer is not None and copy in self.begun:
            late = (copy.transfer, copy.shares(OWNER))
            with self._lock:
                self.late.append(late)
        self.begun.pop(copy, None)


class _Lost:
    """The transfer of a copy that a device may have queued before it was interrupted."""

    _until: Deadline | None = None

    def wait(self, deadline: Deadline) -> bool:
        self._until = self._until or Deadline.after(deadline.clock, LOST)
        return self._until.expired


def _done(transfer: Transfer, deadline: Deadline) -> bool:
    """True if the copy is done. Only ``True`` proves it, and that time is up proves nothing."""
    try:
        done: object = transfer.wait(deadline)
    except TimeoutError:
        return False
    if type(done) is not bool:
        log.error("a wait for a copy answered with a %s", type(done).__qualname__)
    return done is True
