"""Layerwise requests over a service: lease whole chunks, and copy their layers one by one.

All chunks of a request are leased at once, as far as there is memory; the rest counts as missing,
and is not stored. The first layer waits for whole chunks, also those of a slow tier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from hexkv.core.engine.leased.fitting import allocate_fitting, hold_fitting
from hexkv.core.engine.leased.windows import Held, Saving, find_prefix, pace_of
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier, Copy
from hexkv.core.requests.layers import TimeBudget
from hexkv.core.requests.retrieve import Arrived
from hexkv.core.requests.store import Kept
from hexkv.core.tiers.matching import runs
from hexkv.ports import (
    ChunkService,
    Deadline,
    DeviceKV,
    InvalidRequest,
    Lease,
    Reason,
    Retrieved,
    StoreReport,
)


class LeasedRead:
    """See :class:`hexkv.ports.LayeredRead`."""

    def __init__(  # noqa: PLR0913
        self,
        service: ChunkService,
        copier: Copier,
        prompt: Prompt,
        device: DeviceKV,
        *,
        skip: int,
        owner: str,
        patience: TimeBudget,
        ready: Held | None,
        report: Callable[[Arrived], Retrieved],
    ) -> None:
        """Read the chunks of *prompt*, of which the first may be *ready*."""
        self._service = service
        self._copier = copier
        self._prompt = prompt
        self._device = device
        self._skip = skip
        self._owner = owner
        self._patience = patience
        self._report = report
        self._held: list[Held] = [] if ready is None else [ready]
        self._leases: list[Lease] = []
        self._tiers: list[str] = []
        self._why: Reason | None = None
        self._asked = prompt.bounds
        self._short = False
        """True if a tail was requested in place of a chunk, too."""

        self._layer = 0
        self._closed = False
        self._result: Retrieved | None = None

    def begin(self) -> None:
        """Request all chunks. Once, before anything else."""
        with self._patience.step() as deadline:
            if self._held and self._prompt.tails is not None:
                self._held[0].shorten(deadline)
            start = self._held[0].end if self._held else 0
            if self._prompt.tails is not None:
                found = find_prefix(self._service, self._prompt, deadline, sure=start)
                self._prompt, self._short = found.prompt, found.short
            prompt = self._prompt
            if start < len(prompt.keys):
                hold = hold_fitting(self._service, prompt.specs(start), self._owner, deadline)
                self._held.append(Held(hold, start, len(prompt.keys)))
            for held in self._held:
                if not held.hold.done:
                    break

    @property
    def hit_tokens(self) -> int:
        """The number of tokens that will be hit, as far as known by now."""
        if self._layer == 0 and not self._closed:
            count = next(
                (
                    held.start + i
                    for held in self._held
                    for i, why in enumerate(held.reasons)
                    if why is not None
                ),
                len(self._prompt.keys),
            )
        else:
            count = len(self._tiers)
        return max(self._skip, self._prompt.ends[count - 1]) if count else self._skip

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        if self._layer == self._prompt.layout.layers:
            self._end()
            raise StopIteration
        self._check_open()
        with self._patience.step() as deadline:
            if self._layer == 0:
                self._arrive(deadline)
            layers = range(self._layer, self._layer + 1)
            spans = self._prompt.part(0, len(self._leases)).spans(self._leases)
            if self._leases and not self._copier.copy(
                self._device, spans, self._leases, deadline, gather=False, layers=layers
            ):
                self._why = Reason.DEVICE
                self._leases, self._tiers = [], []
        self._layer += 1
        return self._layer - 1

    def result(self) -> Retrieved:
        """Return the result of the load. Only after the last layer."""
        if self._result is None:
            self._check_open()
            if self._layer < self._prompt.layout.layers:
                raise InvalidRequest(f"layer {self._layer} has not come")
            self._end()
        if self._result is None:
            raise InvalidRequest("the context of the retrieve was left")
        return self._result

    def close(self) -> None:
        """Release everything."""
        self._closed = True
        self._leases = []
        for held in self._held:
            held.hold.release()
        self._held = []

    def _arrive(self, deadline: Deadline) -> None:
        for held in self._held:
            leases, tiers, self._why = held.arrived(deadline)
            self._leases += leases
            self._tiers += tiers
            if self._why is not None:
                break

    def _end(self) -> None:
        if self._result is None and not self._closed:
            arrived = Arrived()
            if self._tiers:
                arrived.add(self._prompt.part(0, len(self._tiers)), self._tiers)
            asked = len(self._asked.ends) + self._short
            fewer = Reason.ABSENT if arrived.chunks < asked else None
            arrived.end(self._asked, self._why or fewer, short=self._short)
            self._result = self._report(arrived)
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the context of the retrieve was left")


class LeasedWrite:
    """See :class:`hexkv.ports.LayeredWrite`."""

    def __init__(
        self,
        service: ChunkService,
        copier: Copier,
        prompt: Prompt,
        device: DeviceKV,
        saving: Saving,
        *,
        owner: str,
        patience: TimeBudget,
        report: Callable[[Kept], StoreReport],
    ) -> None:
        """Store the chunks of *prompt* that no tier holds."""
        self._service = service
        self._copier = copier
        self._prompt = prompt
        self._device = device
        self._saving = saving
        self._owner = owner
        self._patience = patience
        self._report = report
        self._missing: list[int] = []
        self._leases: list[Lease] = []
        """Leases for the first of the missing chunks."""

        self._copies: list[Copy] = []
        self._todo = set(range(prompt.layout.layers))
        self._failed = False
        self._closed = False
        self._result: StoreReport | None = None

    def begin(self) -> None:
        """Find the chunks that no tier holds, and lease memory for them. Once, before all else."""
        with self._patience.step() as deadline:
            self._saving.deadline = deadline
            self._missing = self._saving.find(self._prompt)
        specs = [self._prompt.spec(number) for number in self._missing]
        if specs:
            now = Deadline(deadline.clock, 0.0)
            self._leases = list(allocate_fitting(self._service, specs, self._owner, now))

    def layer_done(self, layer: int) -> None:
        """Copy *layer*, whose KV the device holds now."""
        self._check_open()
        if layer not in self._todo:
            raise InvalidRequest(f"layer {layer} was done, or is none of this layout")
        self._todo.remove(layer)
        if self._failed or not self._leases:
            return
        with self._patience.step():
            spans = [
                self._prompt.span(number, lease.payload)
                for number, lease in zip(self._missing, self._leases, strict=False)
            ]
            layers = range(layer, layer + 1)
            copy = self._copier.begin(self._device, spans, self._leases, gather=True, layers=layers)
        if copy is None:
            self._failed = True
        else:
            self._copies.append(copy)

    def result(self) -> StoreReport:
        """Publish the copied chunks, and return the report. Only after the last layer."""
        if self._result is None:
            self._check_open()
            if self._todo:
                raise InvalidRequest(f"layer {min(self._todo)} is not done")
            with self._patience.step() as deadline:
                self._saving.deadline = deadline
                kept = self._write() if self._copied(deadline) else 0
                self._saving.end(len(self._missing) - kept)
            self._result = self._report(self._saving.kept)
            self.close()
        return self._result

    def close(self) -> None:
        """Release everything; copies that have begun keep their memory until they end."""
        self._closed = True
        self._copied(Deadline(self._saving.deadline.clock, 0.0))
        self._copier.left(self._owner, self._patience.end())
        for lease in self._leases:
            lease.release()
        self._leases.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the context of the store was left")

    def _copied(self, deadline: Deadline) -> bool:
        for copy in self._copies:
            if not self._copier.finish(copy, deadline):
                self._failed = True
        self._copies.clear()
        return not self._failed

    def _write(self) -> int:
        """Publish the copied chunks, neighbours together. Return how many there are."""
        step = pace_of(self._service, self._prompt).step
        done = 0
        for run in runs(self._missing[: len(self._leases)]):
            for start in range(0, len(run), step):
                some = run[start : start + step]
                part = self._prompt.part(some[0], some[-1] + 1)
                self._saving.write(part, self._leases[done : done + len(some)])
                done += len(some)
        return done
