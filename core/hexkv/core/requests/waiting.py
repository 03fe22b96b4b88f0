"""What loads wait for: steps whose copies are under way, and memory, as long as that pays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier, Copy
from hexkv.ports import ChunkService, Deadline, InvalidRequest, Lease, Reason

if TYPE_CHECKING:
    from hexkv.core.requests.retrieve import Held

CROWDED = (Reason.REFUSED, Reason.QUEUE_FULL)
"""The reasons of chunks for whose read there was no room."""


class LoadStep(NamedTuple):
    """Neighbouring chunks that have arrived, and their copies that a device makes.

    The *whole* of them was queued; the next chunk is missing for the reason *why*.
    """

    part: Prompt
    window: Held
    leases: Sequence[Lease]
    tiers: Sequence[str] = ()
    why: Reason | None = None
    copies: Sequence[Copy] = ()
    whole: bool = True


def give_up(copier: Copier, step: LoadStep, deadline: Deadline) -> None:
    """Release the memory of *step* once its copies, which the host does not expect, ended."""
    try:
        with suppress(InvalidRequest):  # the device has refused the step before it, too
            copier.finish_all(step.copies, deadline)
    finally:
        copier.release(step.leases, step.window.hold)


@dataclass(slots=True)
class Waiting:
    """How one load waits for memory."""

    chunks: ChunkService
    deadline: Deadline
    left: tuple[int, str] = (-1, "")
    """The number of a chunk that is to be read from a tier whose queue or pool was full."""

    sooner: Deadline | None = None
    """The time from which computing was faster than a further wait for memory."""

    _turned: set[tuple[int, str]] = field(default_factory=set)

    @property
    def late(self) -> bool:
        """True if computing is sooner by now."""
        return self.sooner is not None and self.sooner.expired

    def patience(self, tier: str, tokens: int) -> Deadline | None:
        """Return until when to wait for memory for *tokens* of *tier*; ``None``: as allowed."""
        wait = worth_waiting(self.chunks, tier, tokens, self.deadline)
        self.sooner = None if wait is self.deadline else wait
        return self.sooner

    def turn(self, number: int, names: Sequence[str]) -> bool:
        """Turn to the tier that has chunk *number*, the first of *names*, which another lacked.

        The hold may not wait for room there, because others of this load have memory. Return False
        if there is none, or it was turned to before.
        """
        left = number, names[0] if names else ""
        if left in self._turned or (self.chunks.near and not left[1]):
            return False
        self._turned.add(left)
        self.left = left if left[1] else self.left
        return True

    def why(self, why: Reason) -> Reason:
        """Return why a chunk is missing: ``SLOWER`` if computing beats a further wait for room."""
        return Reason.SLOWER if self.late and why in CROWDED else why


def worth_waiting(chunks: ChunkService, tier: str, tokens: int, deadline: Deadline) -> Deadline:
    """Return until when to wait for memory to read *tokens* from *tier*, at most *deadline*.

    At most the time that loading saves compared with computing, where that is known: so a useless
    wait costs at most as much again.
    """
    spare = inf if chunks.compute_rate is None else chunks.spare(tier, tokens)
    if spare == inf:
        return deadline
    wait = Deadline.after(deadline.clock, spare)
    return wait if wait.at < deadline.at else deadline
