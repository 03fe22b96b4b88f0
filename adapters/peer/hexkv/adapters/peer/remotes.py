"""Peers as a reader sees them: how fast each is, how much it is sending, and whether to ask it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from hexkv.ports import Clock, Deadline, Member, Peer

_RATE = 256e6
"""Bytes per second that are expected of a peer of which nothing is known."""

_NEAR = 4.0
"""By how much one on the same machine is preferred: what it sends takes nothing of a network."""

_LATENCY = 0.001
_SMALL = 64 << 10
"""Bytes of an answer that says nothing of a peer's rate."""

_MOST = 1024
"""Peers that are remembered."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a peer is waited for, and left alone after it failed. Seconds."""

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
        """Bytes that are being read from it."""
        self._failures = 0
        self._off_until = 0.0
        self._trying = False

    @property
    def off(self) -> bool:
        """True while it is left alone."""
        return self._failures > 0 and (self._trying or self._clock.now() < self._off_until)

    def cost(self, size: int) -> float:
        """Seconds until *size* bytes more would be here; less for one that is near."""
        seconds = _LATENCY + (self._wanted + size) / self._rate
        return seconds / _NEAR if self._near else seconds

    def until(self, size: int, deadline: Deadline, *, others: bool) -> Deadline:
        """Until when *size* bytes are waited for; half of the time at most if *others* have them.

        Not to the very end in any case: that would count as a failure of the tier, not of the peer.
        """
        left = deadline.remaining()
        patience = self._patience.wait + 4 * (self._wanted + size) / self._rate
        return Deadline.after(deadline.clock, min(patience, left * (0.5 if others else 0.9)))

    def begin(self, size: int) -> bool:
        """About *size* bytes are asked for. False: it is left alone, or somebody tries it now."""
        with self._lock:
            if self.off:
                return False
            self._trying = self._failures > 0
            self._wanted += size
            return True

    def end(self, size: int, arrived: int, seconds: float, *, well: bool | None) -> None:
        """What was begun with *size* is over, and so many bytes have *arrived*.

        Not *well*: it did not answer, or broke off. ``None``: it had no time to.
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
            elif self._clock.now() >= self._off_until:  # else this is noted already
                longest, pause = self._patience.longest_pause, self._patience.pause
                self._off_until = self._clock.now() + min(longest, pause * 2**self._failures)
                self._failures = min(self._failures + 1, 32)

    def lied(self) -> None:
        """What it gave was not what it said: leave it alone."""
        with self._lock:
            self._failures = 32
            self._off_until = self._clock.now() + self._patience.longest_pause


class Remotes:
    """Those peers that are told of. Safe from any thread.

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
        """Those of *members* that serve something and are others."""
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
