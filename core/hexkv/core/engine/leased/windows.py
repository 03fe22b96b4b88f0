"""Copies between a device and the leases of a service, a window of chunks at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress
from operator import sub
from typing import NamedTuple

from hexkv.core.engine.leased.fitting import allocate_fitting, hold_fitting
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.requests.retrieve import Arrived
from hexkv.core.requests.store import Kept
from hexkv.core.steps import Laps
from hexkv.core.tiers.matching import run_of, runs
from hexkv.ports import (
    ChunkService,
    CounterName,
    Deadline,
    DeviceKV,
    Lease,
    Publishing,
    Reason,
    ServiceHold,
    Telemetry,
    frame_bytes,
    release_all,
)

_CROWDED = (Reason.REFUSED, Reason.QUEUE_FULL)


def pace_of(service: ChunkService, prompt: Prompt) -> Pipelining:
    """Return how many chunks of *prompt* to copy at once, by the service's memory."""
    largest = max(map(sub, prompt.ends, prompt.starts), default=1)
    frame = frame_bytes(prompt.layout.chunk_bytes(largest))
    return Pipelining.with_slots(max(1, service.pool_bytes // frame), frame)


class Found(NamedTuple):
    """The longest prefix of a prompt that a service has."""

    prompt: Prompt
    """The chunks of the prefix, the last perhaps a tail."""

    tiers: Sequence[str]
    """The tier of each; empty if it was not queried."""

    short: bool = False
    """True if the last one is a tail in place of one of the prompt's own chunks."""


def find_prefix(
    service: ChunkService, prompt: Prompt, deadline: Deadline, *, sure: int = 0
) -> Found:
    """Return the prefix of *prompt* that *service* has, which includes its first *sure* chunks.

    The tails behind its last full chunk are queried with the chunks; if these end sooner, other
    tails are queried after them.
    """
    if sure == len(prompt):
        return Found(prompt, [""] * sure)
    full = prompt.full
    keys, _ = prompt.tails_of(full)
    wanted = [*prompt.keys[sure:full], *keys]
    there = service.match(wanted, deadline) if wanted else ()
    tiers = [""] * sure + run_of(there[: full - sure])
    known = there[full - sure :] if len(tiers) == full else None
    return find_tail(service, prompt, tiers, deadline, known)


def find_tail(
    service: ChunkService,
    prompt: Prompt,
    tiers: Sequence[str],
    deadline: Deadline,
    known: Sequence[str | None] | None = None,
) -> Found:
    """Return the first chunks of *prompt*, which are on *tiers*, and the longest tail behind them.

    *known* are the tiers of the tails there, if they were queried before.
    """
    count = len(tiers)
    keys, ends = prompt.tails_of(count)
    if keys and known is None:
        known = service.match(keys, deadline)
    for key, end, tier in zip(keys, ends, known or (), strict=False):
        if tier is not None:
            short = end < prompt.ends[count]
            return Found(prompt.ending(count, key, end), [*tiers, tier], short)
    return Found(prompt.part(0, count), tiers)


class Held:
    """Chunks ``[start, end)`` of a prompt, in a hold from its chunk *at* on."""

    __slots__ = ("at", "end", "hold", "start")

    def __init__(self, hold: ServiceHold, start: int, end: int, at: int = 0) -> None:
        self.hold = hold
        self.start = start
        self.end = end
        self.at = at

    @property
    def reasons(self) -> Sequence[Reason | None]:
        """Why chunks are missing, as far as known."""
        return self.hold.reasons[self.at : self.at + self.end - self.start]

    def shorten(self, deadline: Deadline) -> None:
        """Limit it to the first chunks that are there, or on their way."""
        known = self.hold.known(deadline)
        self.end = self.start + len(
            run_of([None if why or not known else "" for why in self.reasons])
        )

    def arrived(self, deadline: Deadline) -> tuple[list[Lease], list[str], Reason | None]:
        """Return the first chunks that have come, their tiers, and why the next one is missing."""
        done = self.hold.wait(deadline)
        leases: list[Lease] = []
        count = self.end - self.start
        for lease in self.hold.leases[self.at : self.at + count]:
            if lease is None:
                break
            leases.append(lease)
        tiers = list(self.hold.origins[self.at : self.at + len(leases)])
        if len(leases) == count:
            return leases, tiers, None
        reasons = self.hold.reasons
        place = self.at + len(leases)
        why = reasons[place] if place < len(reasons) else None
        return leases, tiers, why or (Reason.FAILED if done else Reason.TIMED_OUT)


class Loading:
    """One load under way: requests holds ahead of the copies."""

    def __init__(
        self,
        service: ChunkService,
        copier: Copier,
        prompt: Prompt,
        device: DeviceKV,
        *,
        owner: str,
        deadline: Deadline,
        laps: Laps,
        ready: Held | None = None,
    ) -> None:
        """Load the chunks of *prompt*, of which the first may be *ready*."""
        self._service = service
        self._copier = copier
        self._whole = prompt
        # If it is not held, query the tail behind the chunks: there may be a shorter one.
        whole = ready is not None and ready.end == len(prompt)
        self._prompt = prompt if whole else prompt.part(0, prompt.full)
        self._device = device
        self._owner = owner
        self._deadline = deadline
        self._laps = laps
        self._pace = pace_of(service, prompt)
        self._windows: deque[Held] = deque()
        self._next = 0
        if ready is not None:
            self._windows.append(ready)
            self._next = ready.end

    def run(self) -> Arrived:
        """Load chunks in order until one does not arrive.

        Raises:
            InvalidRequest: the device raised it.
        """
        arrived = Arrived()
        asked, short = len(self._whole.keys), False
        why = self._load(arrived)
        if self._whole.tails is not None and (why is None or why.gone):
            here = [""] * arrived.chunks
            found = find_tail(self._service, self._whole, here, self._deadline)
            self._prompt = found.prompt
            short = found.short
            why = self._load(arrived)
        if why is None and arrived.chunks < asked + short:
            why = Reason.ABSENT
        arrived.end(self._whole.bounds, why, short=short)
        return arrived

    def _load(self, arrived: Arrived) -> Reason | None:
        """Load the chunks behind those that have *arrived*; return why one is missing, or None."""
        asked = len(self._prompt.keys)
        why: Reason | None = None
        alone = False
        try:
            while arrived.chunks < asked:
                # The first window goes alone, so as not to request absent chunks four times.
                self._hold_ahead(1 if not arrived.chunks else self._pace.ahead // self._pace.step)
                window = self._windows.popleft()
                with window.hold:
                    leases, tiers, why = window.arrived(self._deadline)
                    self._laps.mark(("read", tiers[0] if tiers else "", self._laps.now()))
                    part = self._prompt.part(window.start, window.start + len(leases))
                    if why is None:
                        self._hold_ahead(1)
                    if leases and not self._copier.copy(
                        self._device, part.spans(leases), leases, self._deadline, gather=False
                    ):
                        why = Reason.DEVICE
                        break
                    self._laps.mark(("copy", "", self._laps.now()))
                    arrived.add(part, tiers)
                if why is None:
                    alone = False
                elif why in _CROWDED and not (alone and not leases):
                    # Try again with nothing held: then the hold waits for memory.
                    alone = not leases
                    self._start_again(arrived.chunks)
                else:
                    break
        finally:
            for window in self._windows:
                window.hold.release()
            self._windows.clear()
        self._next = arrived.chunks
        return why

    def _hold_ahead(self, windows: int) -> None:
        while len(self._windows) < max(1, windows) and self._next < len(self._prompt.keys):
            end = min(self._next + self._pace.step, len(self._prompt.keys))
            specs = self._prompt.specs(self._next, end)
            hold = hold_fitting(self._service, specs, self._owner, self._deadline)
            self._windows.append(Held(hold, self._next, end))
            self._next = end

    def _start_again(self, chunk: int) -> None:
        for window in self._windows:
            window.hold.release()
        self._windows.clear()
        self._next = chunk


class Saving:
    """One store under way: copies ahead of the writes, as far as there is memory."""

    def __init__(
        self,
        service: ChunkService,
        copier: Copier,
        device: DeviceKV,
        telemetry: Telemetry,
        *,
        owner: str,
        deadline: Deadline,
        wait: bool,
    ) -> None:
        self.kept = Kept()
        self.deadline = deadline
        self._service = service
        self._copier = copier
        self._device = device
        self._telemetry = telemetry
        self._owner = owner
        self._wait = wait
        self._writing: deque[tuple[Prompt, Publishing]] = deque()

    def run(self, prompt: Prompt) -> Kept:
        """Copy and publish the chunks of *prompt* that no tier holds.

        Raises:
            InvalidRequest: the device raised it.
        """
        step = pace_of(self._service, prompt).step
        todo = deque(
            prompt.part(start, min(start + step, run[-1] + 1))
            for run in runs(self.find(prompt))
            for start in range(run[0], run[-1] + 1, step)
        )
        ahead: ServiceHold | None = None
        while todo and (leases := self._reserved(ahead) or self.lease(todo[0])):
            try:
                part = todo.popleft()
                if len(leases) < len(part.keys):
                    todo.appendleft(part.part(len(leases), len(part.keys)))
                    part = part.part(0, len(leases))
                # Answered while this part is copied.
                ahead = self._reserve(todo[0]) if todo else None
                if not self._copier.copy(
                    self._device, part.spans(leases), leases, self.deadline, gather=True
                ):
                    todo.appendleft(part)
                    break
                self.write(part, leases)
            finally:
                release_all(leases)
        if ahead is not None:
            ahead.release()
        self.end(sum(len(part.keys) for part in todo))
        return self.kept

    def find(self, prompt: Prompt) -> list[int]:
        """Return the numbers of the chunks of *prompt* that no tier holds; count the others."""
        kept = self.kept
        kept.asked = prompt.ends[-1] - prompt.starts[0] if prompt.keys else 0
        where = self._service.match(prompt.keys, self.deadline) if prompt.keys else []
        present = [i for i, tier in enumerate(where) if tier is not None]
        kept.present = sum(prompt.tokens(i) for i in present)
        kept.present_chunks = len(present)
        return [i for i, tier in enumerate(where) if tier is None]

    def lease(self, part: Prompt) -> list[Lease]:
        """Return empty leases for the first chunks of *part*; waits for the first."""
        while True:
            # Our own writes free memory sooner than other holders would.
            wait = Deadline(self.deadline.clock, 0.0) if self._writing else self.deadline
            leases = list(allocate_fitting(self._service, part.specs(), self._owner, wait))
            if leases or not self._writing:
                return leases
            self._settle()

    def write(self, part: Prompt, leases: Sequence[Lease]) -> None:
        """Publish neighbouring chunks copied into *leases*, which stay the caller's."""
        self._writing.append((part, self._service.publish(leases, part.after, self.deadline)))

    def end(self, dropped: int) -> None:
        """Count the results of all writes. *dropped* chunks were not copied."""
        while self._writing:
            self._settle()
        if dropped:
            self._telemetry.count(CounterName.DROPPED, dropped, reason=Reason.NOT_COPIED)

    def _reserve(self, part: Prompt) -> ServiceHold:
        return self._service.reserve(part.specs(), self._owner, self.deadline)

    def _reserved(self, ahead: ServiceHold | None) -> list[Lease]:
        """Return the leases that were requested while the chunks before were copied."""
        if ahead is None:
            return []
        ahead.wait(self.deadline)
        return [lease for lease in ahead.leases if lease is not None]

    def _settle(self) -> None:
        """Count the result of the oldest window; wait for it if this store waits for writes."""
        part, publishing = self._writing.popleft()
        if self._wait:
            publishing.wait(self.deadline)
        on, whole = publishing.tiers, publishing.done
        tokens = list(map(sub, part.ends, part.starts))
        for name, row in on.items():
            if any(row):
                here = sum(compress(tokens, row))
                self.kept.tiers[name] = self.kept.tiers.get(name, 0) + here
        stored = sum(compress(tokens, map(any, zip(*on.values(), strict=True))))
        self.kept.stored += stored
        self.kept.size += part.layout.chunk_bytes(stored)
        if not whole:
            self.kept.queued += sum(tokens) - stored
