"""The peers of a reader: the rate, load and breaker of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from hexkv.ports import Clock, Deadline, Member, Peer

_RATE = 256e6
"""Bytes per second expected of a peer before the first measurement."""

_NEAR = 4.0
"""The factor by which a peer on the same machine is preferred: its bytes use no network."""

_LATENCY = 0.001
_SMALL = 64 << 10
"""Bytes of an answer that is too small to measure a peer's rate."""

_MOST = 1024
"""The number of peers remembered."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a peer, and to skip it after a failure. Seconds."""

    wait: float = 2.0
    pause: float = 0.25
    longest_pause: float = 10.0


class Remote:
    """One life of a peer. Safe from any thread."""

    def __init__(self, member: Member, clock: Clock, patience: Patience, *, near: bool) -> None:
        self.peer = Peer(member.address, member.generation)
        self._clock = clock
        self._patience = patience
        self._near = near
        self._lock = Lock()
        self._rate = _RATE
        self._wanted = 0
        """Bytes under way from it."""
        self._failures = 0
        self._off_until = 0.0
        self._trying = False

    @property
    def off(self) -> bool:
        """True while its breaker is open: no call uses it."""
        return self._failures > 0 and (self._trying or self._clock.now() < self._off_until)

    def cost(self, size: int) -> float:
        """Estimate the seconds until *size* more bytes arrive; less for a near peer."""
        seconds = _LATENCY + (self._wanted + size) / self._rate
        return seconds / _NEAR if self._near else seconds

    def until(self, size: int, deadline: Deadline, *, others: bool) -> Deadline:
        """Return the deadline for *size* bytes; at most half of the time if *others* have them.

        It always ends before *deadline*, whose end would count as a failure of the tier, not the
        peer.
        """
        left = deadline.remaining()
        patience = self._patience.wait + 4 * (self._wanted + size) / self._rate
        return Deadline.after(deadline.clock, min(patience, left * (0.5 if others else 0.9)))

    def begin(self, size: int) -> bool:
        """Begin a read of *size* bytes. False if the breaker is open, or another call probes it."""
        with self._lock:
            if self.off:
                return False
            self._trying = self._failures > 0
            self._wanted += size
            return True

    def end(self, size: int, arrived: int, seconds: float, *, well: bool | None) -> None:
        """End a read of *size* bytes, of which *arrived* bytes came.

        Not *well*: it did not answer, or broke off. ``None``: the time was too short to tell.
        """
        with self._lock:
            self._trying = False
            self._wanted -= size
            if well is None:
                return
            if well:
                self._failures = 0
                if arrived > _SMALL and seconds > 0:
                    self._rate += 0.3 * (arrived / seconds - self._rate)
            elif self._clock.now() >= self._off_until:  # otherwise this is noted already
                longest, pause = self._patience.longest_pause, self._patience.pause
                self._off_until = self._clock.now() + min(longest, pause * 2**self._failures)
                self._failures = min(self._failures + 1, 32)

    def lied(self) -> None:
        """Open the breaker for the longest pause: the peer sent a damaged frame."""
        with self._lock:
            self._failures = 32
            self._off_until = self._clock.now() + self._patience.longest_pause


class Remotes:
    """The peers named by a directory. Safe from any thread.

    Args:
        own: this process, which is no peer of itself.
        clock: of the process.
        patience: with each of them.
    """

    def __init__(self, own: Member, clock: Clock, patience: Patience) -> None:
        self._own = own
        self._host = own.address.rpartition(":")[0]
        self._clock = clock
        self._patience = patience
        self._lock = Lock()
        self._known: OrderedDict[Member, Remote] = OrderedDict()

    def of(self, members: Iterable[Member]) -> list[Remote]:
        """Return those of *members* that serve chunks and are not this process."""
        return [
            self._remote(member)
            for member in members
            if member.address and member.name != self._own.name
        ]

    def _remote(self, member: Member) -> Remote:
        with self._lock:
            found = self._known.pop(member, None)
            if found is None:
                near = bool(self._host) and member.address.rpartition(":")[0] == self._host
                found = Remote(member, self._clock, self._patience, near=near)
            self._known[member] = found
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
            return found
