"""Stores layer by layer: a layer is copied while the model computes the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hexkv.core.memory.background import in_background, open_lane
from hexkv.core.memory.copying import Copy, at_once
from hexkv.core.requests.accounts import Kept
from hexkv.core.requests.layers.groups import layer_groups
from hexkv.core.requests.layers.limits import TimeBudget, room
from hexkv.core.requests.request import PromptRequest
from hexkv.core.requests.store import Storing
from hexkv.core.runtime import unpaused
from hexkv.core.tiers.matching import runs
from hexkv.ports import (
    Deadline,
    InvalidRequest,
    Lease,
    Span,
    StoreReport,
)

if TYPE_CHECKING:
    from hexkv.core.requests.pipeline import Pipeline


class LayeredStore:
    """A store under way: the host calls it for each complete layer, and goes on computing."""

    def __init__(
        self,
        requests: Pipeline,
        request: PromptRequest,
        patience: TimeBudget,
        report: Callable[[Kept], StoreReport],
        *,
        wait: bool,
    ) -> None:
        """Store the prompt of *request*; *report* makes the result."""
        self._copier = requests.copier
        self._prompt = prompt = request.prompt
        self._device = request.device
        self._storing = Storing(requests, request, patience.end(), wait=wait)
        self._owner = request.owner
        self._patience = patience
        self._hosts = requests.hosts
        self._report = report
        self._missing: Sequence[int] = ()
        self._leases: list[Lease] = []
        """Memory for the first of the missing chunks."""

        self._spans: list[Span] = []
        """The spans of those chunks."""

        self._beside = False
        self._ends: set[int] = set()
        """The layers after which a worker begins to copy those that are done."""

        self._waiting = range(0)
        """Layers that are done and not yet being copied."""

        self._copies: list[tuple[Copy, range]] = []
        self._todo = set(range(prompt.layout.layers))
        self._failed = False
        self._closed = False
        self._result: StoreReport | None = None

    def begin(self) -> None:
        """Find the chunks that no tier holds, and hold blocks for them. Once, before all else."""
        with self._patience.step() as deadline:
            self._storing.deadline = deadline
            self._missing = self._storing.find(self._prompt)
        self._hosts.hold(self)
        pace, most = self._storing.pace, 0
        if self._missing:
            most = room(pace.of(self._prompt), pace.slots(self._prompt))
        for run in runs(self._missing[:most]):
            part = self._prompt.part(run[0], run[-1] + 1)
            leases = self._storing.lease(part, wait=False)
            self._leases += leases
            if len(leases) < len(run):
                break
        pairs = list(zip(self._missing, self._leases, strict=False))
        self._spans = [self._prompt.span(number, lease.payload) for number, lease in pairs]
        self._beside = bool(pairs) and in_background(self._device)
        if self._beside:
            layout = self._prompt.layout
            groups = layer_groups(layout, sum(self._prompt.tokens(number) for number, _ in pairs))
            # From large to small: the host waits for the last one.
            self._ends = {layout.layers - 1 - group.start for group in groups}
            open_lane(self._copier.executor)

    def layer_done(self, layer: int) -> None:
        """Copy *layer*, whose KV the device holds now, while the host goes on computing.

        The KV must stay unchanged until :meth:`result` or the end of the context.

        Raises:
            InvalidRequest: there is no such layer, it was done before, or the context was
                left; or the device raised it.
        """
        self._check_open()
        if layer not in self._todo:
            raise InvalidRequest(f"layer {layer} was done, or is none of this layout")
        if self._leases and not self._failed:
            with self._patience.step():
                self._copy(layer)
        self._todo.remove(layer)  # last: after an exception the layer is not done

    def result(self) -> StoreReport:
        """Write the copied chunks, after the last layer, and return the report.

        Raises:
            InvalidRequest: a layer is not done, or the context was left before all were.
        """
        if self._result is None:
            self._check_open()
            if self._todo:
                raise InvalidRequest(f"layer {min(self._todo)} is not done")
            # A host's own thread is here: it sleeps for no other one.
            with self._patience.step() as deadline, unpaused():
                self._storing.deadline = deadline
                kept = self._write() if self._copied(deadline) else 0
                self._storing.end(self._prompt, self._missing[kept:])
            self._result = self._report(self._storing.kept)
            self.close()
        return self._result

    def close(self) -> None:
        """Release everything; copies that have begun keep their blocks until they end."""
        self._closed = True
        if not self._beside:
            self._copied(Deadline(self._storing.deadline.clock, 0.0))
        self._copier.left(self._owner, self._patience.end())
        self._copies.clear()
        self._spans.clear()
        for lease in self._leases:
            lease.release()
        self._leases.clear()
        self._hosts.leave(self)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the context of the store was left")

    def _copy(self, layer: int) -> None:
        """Begin to copy *layer*: at once, or by a worker together with its neighbours."""
        if not self._beside:
            self._begin(range(layer, layer + 1))
            return
        if self._waiting and layer == self._waiting.stop:
            self._waiting = range(self._waiting.start, layer + 1)
        else:
            self._begin(self._waiting)
            self._waiting = range(layer, layer + 1)
        if layer in self._ends:
            self._begin(self._waiting)
            self._waiting = range(0)

    def _begin(self, layers: range) -> None:
        if not layers:
            return
        device, spans, leases = self._device, self._spans, self._leases
        beside = at_once if self._beside else None
        copy = self._copier.begin(
            device, spans, leases, self._owner, gather=True, layers=layers, beside=beside
        )
        if copy is None:
            self._failed = True
        else:
            self._copies.append((copy, layers))

    def _copied(self, deadline: Deadline) -> bool:
        """Wait for the copies. True if all of them succeeded in time."""
        self._begin(self._waiting)
        for copy, layers in self._copies:
            if self._copier.withdraw(copy):
                device, spans, leases = self._device, self._spans, self._leases
                done = self._copier.copy(
                    device, spans, leases, self._owner, deadline, gather=True, layers=layers
                )
            else:
                done = self._copier.finish(copy, deadline)
            self._failed = self._failed or not done
        self._copies.clear()
        return not self._failed

    def _write(self) -> int:
        """Write the copied chunks, neighbours together. Return how many there are."""
        done, step = 0, self._storing.pace.of(self._prompt).step if self._leases else 1
        for run in runs(self._missing[: len(self._leases)]):
            for start in range(0, len(run), step):
                some = run[start : start + step]
                part = self._prompt.part(some[0], some[-1] + 1)
                self._storing.write(part, self._leases[done : done + len(some)])
                done += len(some)
        return done
