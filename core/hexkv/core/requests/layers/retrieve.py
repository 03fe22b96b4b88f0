"""Retrieves layer by layer: the next layers are read while the model computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Self

from hexkv.core.memory.background import in_background, open_lane
from hexkv.core.memory.copying import Copy
from hexkv.core.requests.accounts import Arrived
from hexkv.core.requests.decoding import begin, decoded_by, is_raw
from hexkv.core.requests.layers.groups import layer_groups
from hexkv.core.requests.layers.limits import TimeBudget
from hexkv.core.requests.prefix import Prefix, find_prefix
from hexkv.core.requests.request import PromptRequest
from hexkv.core.requests.retrieve import Held
from hexkv.core.requests.waiting import worth_waiting
from hexkv.ports import (
    Deadline,
    HoldTerms,
    InvalidRequest,
    Lease,
    Reason,
    Retrieved,
    Span,
)

if TYPE_CHECKING:
    from hexkv.core.requests.pipeline import Pipeline


class LayeredRetrieve:
    """A retrieve under way: iterates over the layers' numbers, each once its KV is in the device.

    A chunk that turns out to be damaged shortens :attr:`hit_tokens` at any layer. The layers
    returned before hold KV of the longer prefix; the host recomputes the lost tokens in all layers.
    """

    def __init__(
        self,
        requests: Pipeline,
        request: PromptRequest,
        budget: TimeBudget,
        report: Callable[[Arrived], Retrieved],
        *,
        skip: int,
    ) -> None:
        """Load the prompt of *request*, behind the first *skip* tokens.

        *report* makes the result. The prefetch that *request* names is consumed, used or not.
        """
        self._chunks = requests.chunks
        self._copier = requests.copier
        self._serdes = requests.runtime.serdes
        self._prefetches = requests.prefetches
        self._lookup_id = request.lookup_id
        self._prompt = request.prompt
        self._device = request.device
        self._owner = request.owner
        self._budget = budget
        self._skip = skip
        self._hosts = requests.hosts
        self._report = report
        self._prefix = Prefix(request.prompt, request.prompt, ())
        self._encoded: frozenset[str] = frozenset()
        """Serdes that the device decodes, layer by layer."""

        self._parts: list[Held] = []
        """The chunks, in order, as far as they are held."""

        self._hit = 0
        self._why: Reason | None = Reason.ABSENT
        self._groups: Sequence[range] = ()
        """The layers that are read and copied together."""

        self._next = 0
        """The number of the next group to return."""

        self._held: tuple[list[Lease], list[Span]] | None = None
        """The blocks and spans of the chunks that are hit, until one is lost."""

        self._beside = False
        self._ahead: Copy | None = None
        """The copy of the next group, by a worker."""

        self._layer = 0
        self._closed = False
        self._result: Retrieved | None = None

    @property
    def hit_tokens(self) -> int:
        """The device gets the KV of tokens ``[0, hit_tokens)``, as far as known by now."""
        hit = self._hit
        if not self._next and not self._closed:  # a service may have answered since
            hit = min(hit, self._begun())
        return max(self._skip, self._prompt.ends[hit - 1]) if hit else self._skip

    def begin(self) -> None:
        """Find the chunks, hold their blocks and begin to read. Once, before anything else."""
        with self._budget.step() as deadline:
            self._encoded = decoded_by(self._serdes, self._device, by_layers=True)
            self._find(deadline)
            ends = self._prompt.ends[: len(self._prompt)]
            tokens = ends[-1] - self._prompt.starts[0] if ends else 0
            self._groups = layer_groups(self._prompt.layout, tokens)
            self._hold(deadline)
            self._beside = self._hit > 0 and in_background(self._device)
            if self._beside:
                open_lane(self._copier.executor)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        layer, layout = self._layer, self._prompt.layout
        if layer == layout.layers:
            raise StopIteration
        if self._closed:
            raise InvalidRequest("the context of the retrieve was left")
        try:
            if self._next == 0 or layer == self._groups[self._next - 1].stop:
                with self._budget.step() as deadline:
                    self._bring(self._next, deadline)
        except BaseException:
            self.close()  # the content of the device is unknown
            raise
        self._layer += 1
        if self._layer == layout.layers:
            self._finish()
        return layer

    def result(self) -> Retrieved:
        """Return the result of the load, after the last layer.

        Raises:
            InvalidRequest: not all layers have been returned.
        """
        if self._result is None:
            raise InvalidRequest(f"layer {self._layer} and those after it are still to come")
        return self._result

    def close(self) -> None:
        """Release everything; reads and copies that have begun keep their blocks until they end."""
        if self._closed:
            return
        self._ahead = None
        self._copier.left(self._owner, self._budget.end())
        for part in self._parts:
            part.hold.release()
        self._parts.clear()
        self._held = None
        if self._chunks.near:
            self._hosts.leave(self)
            self._chunks.unpin(self._owner)
        self._closed = True  # at last: a call after an interrupt releases the rest

    def _find(self, deadline: Deadline) -> None:
        """Find the chunks, as far as that has to be known before they are held."""
        chunks, asked = self._chunks, self._prompt
        if chunks.near:
            self._prefix = find_prefix(chunks, asked, deadline, loads=True)
            self._prompt = self._prefix.found
            # Making room for one chunk must not evict another one of the same prompt.
            chunks.touch(self._prompt.keys)
            chunks.keep(self._owner, self._prompt.keys)
            self._parts = self._prefetched(deadline)
        else:
            self._parts = self._prefetched(deadline)
            if asked.tails is not None:
                sure = 0
                for part in self._parts:
                    part.hold.known(deadline)
                    sure = part.end = part.start + part.begun
                self._prefix = find_prefix(chunks, asked, deadline, first=[""] * sure)
                # If nothing is found, a hold of the chunks has the reason.
                self._prompt = self._prefix.found or asked.part(0, asked.full)
        if (missing := self._prefix.missing) is not None:
            self._why = chunks.why_absent(missing)

    def _prefetched(self, deadline: Deadline) -> list[Held]:
        """Return the parts of the prompt that a prefetch holds, without chunks known to be lost."""
        if self._lookup_id is None:
            return []
        parts = self._prefetches.take(self._lookup_id, self._prompt, deadline, self._encoded)
        now = Deadline(deadline.clock, 0.0)
        for part in parts:
            if part.hold.wait(now, part.at + part.end - part.start):
                part.end = part.start + len(part.arrived(now)[0])
        self._parts = [part for part in parts if part.end > part.start]
        self._release([part for part in parts if part.end == part.start])
        return self._parts

    def _hold(self, deadline: Deadline, *, again: bool = False) -> None:
        """Hold the chunks between those that are held, and behind them, in order.

        *again*: from whatever tier, because one was not where it was found.
        """
        ready, self._parts = self._parts, []
        wait = not ready and self._hosts.may_wait()
        found, end, number = self._prefix.tiers, len(self._prompt), 0
        while number < end:
            if ready and ready[0].start <= number:
                self._parts.append(ready.pop(0))
                number = self._parts[-1].end
                continue
            stop = min(end, ready[0].start) if ready else end
            tiers = found[number:stop] if self._chunks.near and not again else None
            until = Deadline(deadline.clock, 0.0)
            if wait:
                until = deadline
                if tiers:
                    tokens = self._prompt.ends[-1] - self._prompt.starts[number]
                    until = worth_waiting(self._chunks, tiers[0], tokens, deadline)
            wait = False
            terms = HoldTerms(
                self._prompt.keys[number - 1] if number else self._prompt.after,
                tiers,
                until,
                self._encoded,
                layered=self._groups,
            )
            try:
                specs = self._prompt.specs(number, stop)
                hold = self._chunks.hold(specs, self._owner, deadline, terms)
            except InvalidRequest:  # a service was restarted with less memory than a chunk takes
                self._why = Reason.REFUSED
                break
            self._parts.append(Held(hold, number, stop))
            self._parts[-1].layered = True
            if self._chunks.near and hold.begun < stop - number:
                self._why = hold.reasons[hold.begun]
                break
            number = stop
        self._release(ready)
        held = self._parts[-1].end if self._parts else 0
        self._hit = self._begun() if self._chunks.near else held
        if self._chunks.near and any(part.hold.bytes for part in self._parts):
            self._hosts.hold(self)

    def _hold_again(self, lost: Held, here: int, deadline: Deadline) -> None:
        """Hold the chunks of a prefetch that *lost* all but its first *here* ones."""
        lost.end = lost.start + here
        if not here:
            self._parts.remove(lost)
            self._release([lost])
        self._held = None
        self._hold(deadline, again=True)

    def _begun(self) -> int:
        """Return the number of chunks that are held or on their way, as far as known."""
        count = 0
        for part in self._parts:
            begun = part.begun
            count = part.start + begun
            if count < part.end:
                break
        return count

    def _bring(self, group: int, deadline: Deadline) -> None:
        """Bring one group of layers into the device, and begin with the next ones."""
        ahead, self._ahead = self._ahead, None
        mine = ahead is None or self._copier.withdraw(ahead)
        self._load(group, deadline)
        if ahead is None or mine:
            self._copy(group, deadline)
        elif not self._copier.finish(ahead, self._budget.end()):
            self._shorten(0, Reason.DEVICE)
        self._next = group + 1
        for part in self._parts:
            part.hold.go_on(group, deadline)
        self._copy_ahead()

    def _copy_ahead(self) -> None:
        """Have a worker copy the next group as soon as all of it is there, while the host computes.

        A missing part may shorten the hit; the host learns of that with the group.
        """
        group = self._next
        if not (self._beside and self._hit and group < len(self._groups)):
            return
        leases, spans = self._spans()
        if self._encoded and not all(map(is_raw, leases)):
            return  # a worker only copies bytes
        self._ahead = self._copier.begin(
            self._device,
            spans,
            leases,
            self._owner,
            gather=False,
            layers=self._groups[group],
            beside=partial(self._once, group),
        )

    def _once(self, group: int, then: Callable[[], None]) -> None:
        """Call *then* once *group* is here in all parts: now, or on a worker."""
        holds = [part.hold for part in self._parts]
        reduce(lambda rest, hold: partial(hold.once, group, rest), holds, then)()

    def _load(self, group: int, deadline: Deadline) -> None:
        """Bring one group of layers of every chunk into its block."""
        for part in self._parts:
            if part.start >= self._hit:
                break
            before = part.hold.replaced
            here, why = _bring(part, group, deadline)
            if part.hold.replaced != before:
                self._held = None
            if part.start + here < min(part.end, self._hit):
                if part.early and why is Reason.TIMED_OUT and not deadline.expired:
                    self._hold_again(part, here, deadline)
                    self._load(group, deadline)
                else:
                    self._shorten(part.start + here, why)
                break

    def _release(self, behind: Sequence[Held]) -> None:
        """Release the holds of the parts *behind*, but for one that an earlier part shares."""
        kept = [part.hold for part in self._parts if part not in behind]
        for part in behind:
            if part.hold not in kept:
                part.hold.release()

    def _shorten(self, hit: int, why: Reason | None) -> None:
        """Load only the first *hit* chunks from now on."""
        self._copier.left(self._owner, self._budget.end())
        self._release([part for part in self._parts if part.start >= hit])
        self._hit, self._why, self._held = hit, why, None

    def _spans(self) -> tuple[list[Lease], list[Span]]:
        """Return the blocks and spans of the chunks that are hit."""
        if self._held is None:
            leases: list[Lease] = []
            for part in self._parts:
                if part.start < self._hit:
                    leases += _leases(part, self._hit)
            self._held = leases, self._prompt.spans(leases)
        return self._held

    def _copy(self, group: int, deadline: Deadline) -> None:
        leases, spans = self._spans()
        if not spans:
            return
        layers, device, copier = self._groups[group], self._device, self._copier
        if not self._encoded or all(map(is_raw, leases)):
            copied = copier.copy(
                device, spans, leases, self._owner, deadline, gather=False, layers=layers
            )
        else:
            part, begun = self._prompt.part(0, self._hit), list[Copy]()
            try:
                whole = begin(
                    self._serdes, copier, device, part, leases, self._owner, begun, layers
                )
            finally:
                done = copier.finish_all(begun, deadline)
            copied = whole and done
        if not copied:
            self._shorten(0, Reason.DEVICE)

    def _finish(self) -> None:
        """Note the use of the chunks, which are whole now; then count and release them."""
        part, tiers = self._prompt.part(0, self._hit), list[str]()
        with self._budget.step() as deadline:
            for held in self._parts:
                if held.start < self._hit:
                    last = held.at + min(self._hit, held.end) - held.start
                    tiers += held.hold.origins[held.at : last]
                    held.hold.used(deadline)
        arrived = Arrived()
        arrived.add(part, tiers)
        asked = self._prefix.asked
        fewer = Reason.ABSENT if self._hit < len(asked.keys) + self._prefix.short else None
        arrived.end(asked.bounds, self._why or fewer, short=self._prefix.short)
        self._result = self._report(arrived)
        self.close()


def _bring(part: Held, group: int, deadline: Deadline) -> tuple[int, Reason | None]:
    """Return how many of the first chunks have a group of layers, and why the next has not."""
    if part.layered:
        count = min(part.hold.bring(group, deadline), part.end - part.start)
        reasons = part.hold.reasons[part.at + count : part.at + count + 1]
        return count, reasons[0] if reasons else None
    if group:
        return part.end - part.start, None
    leases, _, why = part.arrived(deadline)
    return len(leases), why


def _leases(part: Held, end: int) -> list[Lease]:
    """Return the leases of chunks of *part*, which have come, up to chunk *end* of the prompt."""
    last = part.at + min(end, part.end) - part.start
    return [lease for lease in part.hold.leases[part.at : last] if lease is not None]
