"""The chunks of a prompt that a hold has, as far as they have come."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.ports import Deadline, Lease, Reason, ServiceHold


class Held:
    """Chunks ``[start, end)`` of a prompt, in a hold from its chunk *at* on."""

    __slots__ = ("alone", "at", "early", "end", "hold", "last", "layered", "start")

    def __init__(self, hold: ServiceHold, start: int, end: int, at: int = 0) -> None:
        self.hold = hold
        self.start = start
        self.end = end
        self.at = at
        self.alone = False
        """True if nothing else was held, so that it could wait for memory."""

        self.early = False
        """True if it was prefetched: then its reads have a deadline of their own."""

        self.layered = False
        """True if its chunks come a group of layers at a time."""

        self.last = True
        """True unless the hold has further chunks of the prompt."""

    def ends_hold(self, why: Reason | None) -> bool:
        """True if the hold is of no use after these chunks, of which the next is missing for *why*.

        One of a prefetch may have chunks behind them that the prompt has not, or that were lost.
        """
        return self.last and (self.early or why is not None)

    @property
    def begun(self) -> int:
        """The number of the first chunks that are here or on their way, as far as known."""
        reasons = self.hold.reasons[self.at : self.at + self.end - self.start]
        return next((i for i, why in enumerate(reasons) if why is not None), len(reasons))

    def arrived(self, deadline: Deadline) -> tuple[Sequence[Lease], Sequence[str], Reason | None]:
        """Return the first chunks that have come, their tiers, and why the next one is missing."""
        hold, at, count = self.hold, self.at, self.end - self.start
        if hold.lent:
            return hold.leases, hold.origins, None  # type: ignore[return-value] # none is missing
        done = hold.wait(deadline, at + count)
        leases, tiers = hold.leases, hold.origins
        if at or len(leases) != count:
            leases, tiers = leases[at : at + count], tiers[at : at + count]
        if None not in leases and len(leases) == count:
            return leases, tiers, None  # type: ignore[return-value] # none is missing
        count = leases.index(None) if None in leases else len(leases)
        reasons = hold.reasons[at + count : at + count + 1]
        why = reasons[0] if reasons else None
        why = why or (Reason.FAILED if done else Reason.TIMED_OUT)
        return leases[:count], tiers[:count], why  # type: ignore[return-value] # up to the first

    def bring(self, group: int, deadline: Deadline) -> tuple[int, Reason | None]:
        """Return how many of its first chunks have a group of layers, and why the next has not."""
        if self.layered:
            count = min(self.hold.bring(group, deadline), self.end - self.start)
            reasons = self.hold.reasons[self.at + count : self.at + count + 1]
            return count, reasons[0] if reasons else None
        if group:
            return self.end - self.start, None
        leases, _, why = self.arrived(deadline)
        return len(leases), why

    def leases(self, end: int) -> list[Lease]:
        """Return the leases of its chunks up to chunk *end* of the prompt, which have come."""
        last = self.at + min(end, self.end) - self.start
        return [lease for lease in self.hold.leases[self.at : last] if lease is not None]

    def tiers(self, end: int) -> Sequence[str]:
        """Return the tiers of its chunks up to chunk *end* of the prompt, which have come."""
        return self.hold.origins[self.at : self.at + min(end, self.end) - self.start]
