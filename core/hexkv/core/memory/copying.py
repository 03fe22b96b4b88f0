"""Copies between a device and leased blocks, and those that outlive their deadline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock

from hexkv.core.memory.background import BackgroundCopy
from hexkv.ports import (
    Deadline,
    DeviceKV,
    Executor,
    Finished,
    InvalidRequest,
    Lease,
    Span,
    Transfer,
)

log = logging.getLogger(__name__)

OWNER = "late copy"
"""The owner, in the pool's ledger, of blocks that a late copy still uses."""


Start = Callable[[Callable[[], None]], None]
"""Calls its argument, or has it called, once a copy may be made."""


def at_once(submit: Callable[[], None]) -> None:
    """Submit a copy that may be made now."""
    submit()


class Copy:
    """A copy in progress, and the leases on the memory that it uses."""

    __slots__ = ("leases", "transfer")

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.leases = leases
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
    """Waits for device copies up to a deadline; keeps the memory of late ones until they end."""

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
        deadline: Deadline,
        *,
        gather: bool,
        layers: range | None = None,
    ) -> bool:
        """Copy *spans*, the payloads of *leases*. Return True if it was done in time.

        The caller may release *leases* in any case: a late copy holds shares of its own.

        Raises:
            InvalidRequest: the device rejects the request as invalid.
        """
        copy = None
        try:
            copy = self.begin(device, spans, leases, gather=gather, layers=layers)
            return copy is not None and self.finish(copy, deadline)
        except BaseException:
            # An unexpected exception in the middle of the wait: the caller is about to release.
            if copy is not None:
                self._keep(copy)
            raise

    def begin(
        self,
        device: DeviceKV,
        spans: Sequence[Span],
        leases: Sequence[Lease],
        *,
        gather: bool,
        layers: range | None = None,
        beside: Start | None = None,
    ) -> Copy | None:
        """Begin a copy to or from *leases*, for :meth:`finish`; ``None`` if the device failed.

        A device that raises has no copy in progress. With *beside* a worker makes the copy, which
        *device* has to allow: it is called with the function that submits the copy, to be called
        once the copy may be made.

        Raises:
            InvalidRequest: the device rejects the request as invalid.
        """
        copy = Copy(tuple(leases))
        if beside is not None:
            move = device.gather if gather else device.scatter
            made = copy.transfer = BackgroundCopy(self.executor, partial(move, spans, layers))
            self.begun[copy] = None  # before a worker can begin: an interrupt finds it here
            beside(made.submit)
            return copy
        try:
            self.begun[copy] = None
            move = device.gather if gather else device.scatter
            copy.transfer = _transfer(move(spans, layers))
            if type(copy.transfer) is Finished:
                del self.begun[copy]
                copy.transfer = None
            return copy  # noqa: TRY300 - an interrupt finds it here, on every line
        except InvalidRequest:
            del self.begun[copy]
            raise
        except Exception:
            # Whatever a device raises, the prompt can still be computed.
            del self.begun[copy]
            log.exception("the device failed to %s", "gather" if gather else "scatter")
            return None
        except BaseException:
            self._keep(copy)
            raise

    def withdraw(self, copy: Copy) -> bool:
        """Keep a worker from making *copy*. Return False if it has begun, or is not a worker's."""
        if isinstance(copy.transfer, BackgroundCopy) and copy.transfer.withdraw():
            self.begun.pop(copy, None)
            return True
        return False

    def finish(self, copy: Copy, deadline: Deadline) -> bool:
        """Wait for a copy. Return True if it was done in time; its leases may be released then.

        Raises:
            InvalidRequest: the device rejects the copy as invalid.
        """
        try:
            if copy.transfer is None or _done(copy.transfer, deadline):
                self.begun.pop(copy, None)
                return True
        except InvalidRequest:
            self.begun.pop(copy, None)
            raise
        except Exception:
            self.begun.pop(copy, None)
            log.exception("a copy failed")
            return False
        except BaseException:
            self._keep(copy)  # the caller is about to release
            raise
        self._keep(copy)
        return False

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
            except BaseException:
                for other in copies:
                    self._keep(other)  # the caller is about to release
                raise
        if refused is not None:
            raise refused
        return done

    def left(self, owner: str, deadline: Deadline) -> None:
        """Keep the memory of copies that *owner* began and did not finish, when it has ended.

        A worker's copy is withdrawn, or waited for: a host that has left a request does not expect
        further writes to its window.
        """
        for copy in list(self.begun):
            if copy.leases and copy.leases[0].owner == owner and not self.withdraw(copy):
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


def _transfer(answer: object) -> Transfer:
    """Return a device's answer, if it can be waited for."""
    if not callable(getattr(answer, "wait", None)):
        raise TypeError(f"a {type(answer).__qualname__} is no transfer")
    return answer  # type: ignore[return-value] # checked by the line above


def _done(transfer: Transfer, deadline: Deadline) -> bool:
    """True if the copy is done. Only a bool is accepted: other truthy values prove nothing.

    Raises:
        TypeError: the answer is not a bool.
    """
    done = transfer.wait(deadline)
    if type(done) is not bool:
        raise TypeError(f"a wait for a copy answered with a {type(done).__qualname__}")
    return done
