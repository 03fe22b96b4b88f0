"""Retrieving: the longest prefix that really arrives goes into the device."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field

from hexkv.core.arrivals import Loaded
from hexkv.core.copying import Copier
from hexkv.core.prompts import Prompt
from hexkv.core.stack import TierStack
from hexkv.ports import Deadline, DeviceKV, MissReason

BEHIND = "behind a miss"
"""Why a chunk that may be there was not loaded: one before it is missing."""


@dataclass(slots=True)
class Arrived:
    """What a retrieve brought so far."""

    chunks: int = 0
    size: int = 0
    tokens: Tally[str] = field(default_factory=Tally)
    """By tier."""

    by_tier: Tally[str] = field(default_factory=Tally)
    """Chunks, likewise."""

    misses: dict[str, int] = field(default_factory=dict)
    """Chunks that did not arrive, by reason."""

    def add(self, part: Prompt, loaded: Loaded, run: int) -> None:
        """Count the first *run* chunks of *part* as arrived."""
        self.chunks += run
        for i in range(run):
            self.size += part.raw_bytes(i)
            self.tokens[loaded.tiers[i]] += part.tokens(i)
            self.by_tier[loaded.tiers[i]] += 1

    def end(self, asked: int, why: str) -> None:
        """Nothing more comes: of *asked* chunks the next one is missing because of *why*."""
        lost = asked - self.chunks
        if lost:
            self.misses[why] = 1
        if lost > 1:
            rest = why if why == MissReason.ABSENT else BEHIND
            self.misses[rest] = self.misses.get(rest, 0) + lost - 1


def load_prefix(
    stack: TierStack,
    copier: Copier,
    prompt: Prompt,
    device: DeviceKV,
    *,
    window: int,
    owner: str,
    deadline: Deadline,
) -> Arrived:
    """Load chunks of *prompt* in order, *window* at a time, until one does not arrive.

    Blocks are held for one window only, so a prompt may be much longer than the pool.

    Raises:
        InvalidRequest: the device says so.
    """
    found = stack.locate(prompt.keys, deadline)
    # At once, so that what is loaded first does not push out what is to be loaded last.
    stack.touch(prompt.keys[: len(found)])
    arrived = Arrived()
    why = MissReason.ABSENT.value
    while arrived.chunks < len(found):
        start, end = arrived.chunks, min(arrived.chunks + window, len(found))
        part = prompt.part(start, end)
        with stack.load(part, found[start:end], owner, deadline) as loaded:
            run = loaded.run()
            if run and not _scatter(copier, part, loaded, run, device, deadline):
                run, loaded.why[0] = 0, "device"
            stack.promote(part, loaded, run, deadline)
        arrived.add(part, loaded, run)
        if run < len(part):
            why = loaded.why[run]
            if not run or why != MissReason.REFUSED:
                break
            # The pool had no more blocks for this round. There are some again now.
    arrived.end(len(prompt), why)
    return arrived


def _scatter(
    copier: Copier, part: Prompt, loaded: Loaded, run: int, device: DeviceKV, deadline: Deadline
) -> bool:
    leases = [lease for lease in loaded.leases[:run] if lease is not None]
    spans = [part.span(i, lease.payload) for i, lease in enumerate(leases)]
    return copier.copy(device, spans, leases, deadline, gather=False)
