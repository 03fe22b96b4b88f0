"""Copies between a device and leased blocks, and those that outlive their deadline."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Lock

from hexkv.ports import Deadline, DeviceKV, InvalidRequest, Lease, Span, Transfer

log = logging.getLogger("hexkv")

OWNER = "late copy"
"""Under which name the pool's ledger lists blocks that a late copy still uses."""


class Copier:
    """Waits for device copies up to a deadline, and keeps their memory for as long as it takes."""

    def __init__(self) -> None:
        self._late: list[tuple[Transfer, list[Lease]]] = []
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
        """Copy *spans*, the payloads of *leases*. Whether it was done in time.

        The caller may release *leases* in any case: a late copy holds shares of its own.

        Raises:
            InvalidRequest: the device says that the request means nothing.
        """
        transfer = self.begin(device, spans, gather=gather, layers=layers)
        return transfer is not None and self.finish(transfer, leases, deadline)

    def begin(
        self,
        device: DeviceKV,
        spans: Sequence[Span],
        *,
        gather: bool,
        layers: range | None = None,
    ) -> Transfer | None:
        """A copy under way, for :meth:`finish`; ``None`` if the device failed.

        Raises:
            InvalidRequest: the device says that the request means nothing.
        """
        try:
            transfer = device.gather(spans, layers) if gather else device.scatter(spans, layers)
        except InvalidRequest:
            raise
        except Exception:
            # Whatever a device raises, the prompt can still be computed.
            log.exception("the device failed to %s", "gather" if gather else "scatter")
            return None
        if not callable(getattr(transfer, "wait", None)):
            log.error("the device failed: a %s is no transfer", type(transfer).__qualname__)
            return None
        return transfer

    def finish(self, transfer: Transfer, leases: Sequence[Lease], deadline: Deadline) -> bool:
        """Wait for a copy to or from *leases*. Whether it was done in time; they may go then."""
        try:
            if _done(transfer, deadline):
                return True
        except Exception:
            log.exception("a copy failed")
            return False
        with self._lock:
            self._late.append((transfer, [lease.share(OWNER) for lease in leases]))
        return False

    def reap(self, deadline: Deadline) -> None:
        """Release the memory of late copies that are done, or get done before *deadline*."""
        if not self._late:
            return
        with self._lock:
            late, self._late = self._late, []
        still = []
        for transfer, leases in late:
            try:
                done = _done(transfer, deadline)
            except Exception:
                log.exception("a late copy failed")
                done = True
            if not done:
                still.append((transfer, leases))
                continue
            for lease in leases:
                lease.release()
        with self._lock:
            self._late.extend(still)


def _done(transfer: Transfer, deadline: Deadline) -> bool:
    """Whether the copy is done. What is merely true says nothing of what was copied.

    Raises:
        TypeError: it does not say whether.
    """
    done = transfer.wait(deadline)
    if type(done) is not bool:
        raise TypeError(f"a wait for a copy answered with a {type(done).__qualname__}")
    return done
