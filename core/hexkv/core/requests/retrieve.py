"""Retrieves: load the longest prefix that arrives whole into the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copy
from hexkv.core.requests.accounts import Arrived
from hexkv.core.requests.decoding import Decodable, begin
from hexkv.core.requests.past_host import PastHost
from hexkv.core.requests.prefix import Prefix, find_prefix, find_tail
from hexkv.core.requests.request import PromptRequest
from hexkv.core.requests.waiting import CROWDED, LoadStep, Waiting, give_up
from hexkv.core.tiers.matching import run_of
from hexkv.ports import (
    Bounds,
    Deadline,
    HoldTerms,
    InvalidRequest,
    Lease,
    Reason,
    ServiceHold,
    release_all,
)

if TYPE_CHECKING:
    from hexkv.core.requests.pipeline import Pipeline

_transfer = attrgetter("transfer")


class Held:
    """Chunks ``[start, end)`` of a prompt, in a hold from its chunk *at* on.

    Attributes:
        alone: True if nothing else was held, so that it could wait for memory.
        early: True if it was prefetched: then its reads have a deadline of their own.
        layered: True if its chunks come a group of layers at a time.
        last: True unless the hold has further chunks of the prompt.
    """

    __slots__ = ("alone", "at", "early", "end", "hold", "last", "layered", "start")

    def __init__(self, hold: ServiceHold, start: int, end: int, at: int = 0) -> None:
        self.hold = hold
        self.start = start
        self.end = end
        self.at = at
        self.alone = self.early = self.layered = False
        self.last = True

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
        # A prefetch leaves out chunks behind one that it lost: they may be there.
        why = why or (Reason.FAILED if done and not self.early else Reason.TIMED_OUT)
        return leases[:count], tiers[:count], why  # type: ignore[return-value] # up to the first


class Loading:
    """One load under way: requests holds ahead of the copies.

    Memory is held for a few windows of chunks only: a prompt may be much longer than the pool.
    """

    def __init__(
        self,
        requests: Pipeline,
        request: PromptRequest,
        deadline: Deadline,
        begun: LoadStep | None = None,
    ) -> None:
        """Load the prompt of *request*. The prefetch that it names is consumed, used or not.

        The copy of its first chunks may have *begun*; see :mod:`hexkv.core.requests.first_chunks`.
        """
        self._begun = begun
        self._chunks = chunks = requests.chunks
        self._copier = requests.copier
        self._prefetches = requests.prefetches
        self._request = request
        self._asked = self._prompt = request.prompt
        self._found: Sequence[str] | None = None
        self._deadline = deadline
        self._pace = requests.pace
        self._in_place = chunks.in_place
        self._ready: deque[Held] = deque()
        self._windows: deque[Held] = deque()
        self._next = 0
        self._sure = True
        """False once a chunk was not where it was found."""

        self._waiting = Waiting(chunks, deadline)
        self._past: PastHost | None = None
        self._serdes = serdes = requests.runtime.serdes
        decodes = bool(serdes) and hasattr(request.device, "decodes")
        self._encoded: Collection[str] = Decodable(serdes, request.device) if decodes else ()

    def run(self) -> Arrived:
        """Load chunks in order until one does not arrive.

        Raises:
            InvalidRequest: the device raised it.
        """
        arrived = Arrived()
        try:
            prefix, why = (self._near if self._chunks.near else self._far)(arrived)
        finally:
            if self._windows or self._ready:
                self._start_again(0)
            if self._begun is not None:
                give_up(self._copier, self._begun, self._deadline)
        asked = self._asked
        arrived.end(Bounds(asked.starts, asked.ends), why, short=prefix.short)
        return arrived

    def _near(self, arrived: Arrived) -> tuple[Prefix, Reason | None]:
        """Find the chunks first, which costs little, and load those that are found."""
        chunks, request = self._chunks, self._request
        if self._begun is not None:
            tiers = self._begun.tiers
            prefix = find_prefix(chunks, self._asked, self._deadline, loads=True, first=tiers)
        elif self._asked.tails is None:
            there = chunks.match(self._asked.keys, self._deadline, loads=True)
            run = run_of(there) if None in there else there
            prefix = Prefix(self._asked, self._asked, run)  # type: ignore[arg-type] # all are found
        else:
            prefix = find_prefix(chunks, self._asked, self._deadline, loads=True)
        self._found = found = prefix.tiers
        if prefix.short or len(found) < len(self._asked.keys):
            self._prompt = prefix.found
        keys = self._prompt.keys
        # All at once, so that the first chunks loaded do not evict the last ones. With little
        # room, chunks promoted on the way would evict them nevertheless, unless they are pinned.
        chunks.touch(keys)
        if found and found.count(found[0]) < len(found):
            chunks.keep(request.owner, keys)
        request.laps.mark(("match", "", request.laps.now()))
        if request.lookup_id is not None:
            self._ready.extend(self._prefetched(request.lookup_id))
        if hasattr(request.device, "device_room"):
            past = PastHost(chunks, self._copier, request, self._prompt, found, self._deadline)
            for part in self._ready:
                past.numbers.difference_update(range(part.start, part.end))
            self._past = past if past.numbers else None
        why = self._load(arrived)
        if why is None and len(found) - prefix.short < len(self._asked.keys):
            why = chunks.why_absent(self._asked.keys[len(found) - prefix.short])
        return prefix, why

    def _far(self, arrived: Arrived) -> tuple[Prefix, Reason | None]:
        """Load without a question before, which would cost a round trip."""
        asked = self._asked
        prefix = Prefix(asked, asked, ())
        if self._request.lookup_id is not None:
            self._ready.extend(self._prefetched(self._request.lookup_id))
        # If it is not held, query the tail behind the chunks: there may be a shorter one.
        whole = bool(self._ready) and self._ready[-1].end == len(asked)
        self._prompt = asked if whole else asked.part(0, asked.full)
        why = self._load(arrived)
        if asked.tails is not None and (why is None or why.gone):
            self._start_again(arrived.chunks)
            prefix = find_tail(self._chunks, asked, [""] * arrived.chunks, self._deadline)
            self._prompt = prefix.found
            why = self._load(arrived)
        if why is None and arrived.chunks < len(asked.keys) + prefix.short:
            why = Reason.ABSENT
        return prefix, why

    def _prefetched(self, name: str) -> Sequence[Held]:
        """Return the parts of the prompt that prefetch *name* holds."""
        return self._prefetches.take(name, self._prompt, self._deadline, self._encoded)

    def _load(self, arrived: Arrived) -> Reason | None:
        """Load the chunks behind those that have *arrived*; return why one is missing, or None."""
        number, end, deadline = arrived.chunks, len(self._prompt.keys), self._deadline
        laps, past = self._request.laps, self._past
        last, self._begun = self._begun, None
        if last is not None:
            number += len(last.leases)
        self._next = number
        try:
            while number < end or last is not None:
                if past is not None and last is None and not self._windows:
                    number += past.load(number, self._pace.of(self._asked).step, arrived)
                    if number != self._next:
                        self._next = number
                        continue
                # The next step, behind no missing chunk, is queued before a copy is waited for.
                more = number < end and (last is None or last.why is None)
                step = self._begin(number, ahead=last is not None) if more else None
                if step is not None:
                    number += len(step.leases)
                if last is None:
                    last, step = step, None
                    if last is None:
                        return self._waiting.why(Reason.REFUSED)
                    if last.copies and last.why is None and self._chunks.near:
                        continue
                part, window, leases, tiers, why, copies, whole = last
                last = step
                try:
                    if copies and not self._copier.finish_all(copies, deadline):
                        return Reason.DEVICE
                    if leases:
                        if not whole:
                            return Reason.DEVICE
                        laps.mark(("copy", "", laps.now()))
                        if not window.hold.lent:
                            window.hold.used(deadline)
                        laps.mark(("promote", "", laps.now()))
                finally:
                    # A prefetch may have chunks behind these, which the prompt has not.
                    if leases and not (window.last and (window.early or why is not None)):
                        (self._copier.release if self._copier.begun else release_all)(leases)
                    else:
                        self._copier.release((), window.hold)
                if tiers:
                    arrived.add(part, tiers)
                if why is None:
                    continue
                again = why is Reason.TIMED_OUT and window.early
                if why in CROWDED:
                    alone = window.alone or self._waiting.late
                    names = window.hold.origins[window.at + number - window.start :]
                    again = bool(leases) or not alone or self._waiting.turn(number, names)
                if not again or deadline.expired:
                    return self._waiting.why(why)
                # Try again with nothing held: then the hold waits for memory.
                self._start_again(number)
        finally:
            if last is not None:
                give_up(self._copier, last, self._deadline)
        return None

    def _begin(self, number: int, *, ahead: bool) -> LoadStep | None:
        """Queue the copy of the next chunks, from *number* on, as far as they have arrived.

        Return None without memory, or *ahead* of a copy, which has leases, if a wait is needed.
        """
        # Far from the tiers the first window goes alone: all may be absent.
        first = self._found is None and not number
        self._hold_ahead(waits=not ahead, first=first, ahead=ahead)
        if not self._windows or (ahead and not self._windows[0].hold.done):
            return None
        laps, part, window = self._request.laps, self._prompt, self._windows.popleft()
        leases: Sequence[Lease] = ()
        copies: list[Copy] = []
        whole = True
        try:
            leases, tiers, why = window.arrived(self._deadline)
            laps.mark(("read", tiers[0] if tiers else self._name(number), laps.now()))
            if leases:
                if len(leases) < len(part.keys):
                    part = part.part(number, number + len(leases))
                if why is None and self._next < len(self._prompt.keys):
                    self._hold_ahead(waits=False)
                whole = self._copy(part, leases, copies)
            left = list(filter(_transfer, copies)) if copies else copies
            return LoadStep(part, window, leases, tiers, why, left, whole)
        except BaseException:
            give_up(self._copier, LoadStep(part, window, leases, copies=copies), self._deadline)
            raise

    def _copy(self, part: Prompt, leases: Sequence[Lease], copies: list[Copy]) -> bool:
        """Queue the *copies* of the chunks of *part* into the device. False if that failed."""
        device, owner = self._request.device, self._request.owner
        if self._encoded != ():  # their number is queried from the device
            return begin(self._serdes, self._copier, device, part, leases, owner, copies)
        copy = self._copier.begin(device, part.spans(leases), leases, owner, gather=False)
        if copy is not None:
            copies.append(copy)
        return copy is not None

    def _hold_ahead(self, *, waits: bool, first: bool = False, ahead: bool = False) -> None:
        """Request holds until there are enough, or only the *first*, or there is no memory now.

        With *waits* nothing is held but the windows: the first may wait for memory. *ahead*: also
        of chunks that need no read, for the next copy.
        """
        end, near = len(self._prompt.keys), self._chunks.near
        while self._next < end and (not self._windows or not (first or self._enough())):
            alone = waits and not self._windows
            if self._ready and self._ready[0].start <= self._next:
                part = self._ready.popleft()
                if part.start == self._next:
                    self._windows.append(part)
                    self._next = part.end
                else:
                    self._copier.release((), part.hold)
                continue
            stop = self._stop(end)
            needed = alone or (ahead and not self._windows)
            if stop == self._next or (not needed and self._name(self._next) in self._in_place):
                return  # the next chunk needs no read
            try:
                hold = self._hold(stop, alone=alone)
            except InvalidRequest:
                return  # a service was restarted with less memory than a chunk takes
            begun = hold.begun if near else stop - self._next
            window = Held(hold, self._next, stop)
            window.alone = alone
            self._windows.append(window)
            if begun < stop - self._next and hold.reasons[begun] is Reason.REFUSED:
                if begun:
                    window.end = self._next = self._next + begun
                elif not alone:
                    self._windows.pop().hold.release()
                return
            self._next = stop

    def _enough(self) -> bool:
        """True if as many windows are held as may be."""
        pace = self._pace.fixed or self._pace.of(self._asked)
        return len(self._windows) >= pace.ahead // pace.step

    def _hold(self, stop: int, *, alone: bool) -> ServiceHold:
        """Hold the next chunks up to *stop*; *alone*: wait for memory as long as that pays."""
        start, prompt = self._next, self._prompt
        found = self._found[start:stop] if self._found is not None and self._sure else None
        if start == self._waiting.left[0]:
            found = [self._waiting.left[1]]
        terms = HoldTerms(
            prompt.keys[start - 1] if start else prompt.after,
            found,
            self._patience(start) if alone else Deadline(self._deadline.clock, 0.0),
            self._encoded,
            passing=True,
            last=self._asked.keys[-1],
        )
        return self._chunks.hold(
            prompt.specs(start, stop), self._request.owner, self._deadline, terms
        )

    def _patience(self, number: int) -> Deadline | None:
        """Return until when to wait for memory for chunk *number*; ``None``: as long as allowed."""
        self._waiting.sooner = None
        rate = self._chunks.compute_rate
        if rate is None or self._found is None or self._found[number] in self._in_place:
            return None
        tokens = self._prompt.ends[-1] - self._prompt.starts[number]
        return self._waiting.patience(self._found[number], tokens)

    def _stop(self, end: int) -> int:
        """Return the end of the next window: of chunks that come the same way."""
        start, found = self._next, self._found
        if start == self._waiting.left[0]:
            return start + 1
        if self._ready:
            end = min(end, self._ready[0].start)
        if end == start + 1 and self._past is None:
            return end
        if found is None:
            return min(end, start + self._pace.of(self._asked).step)
        here = found[start] in self._in_place
        pace = self._pace.fixed or self._pace.of(self._asked)
        end = min(end, start + (pace.run if here else pace.step))
        if self._past is not None:
            past = self._past.numbers
            end = next((number for number in range(start, end) if number in past), end)
        rest = found[start:end]
        if rest.count(found[start]) == len(rest):  # usually all are on one tier
            return end
        for number in range(start + 1, end):
            if found[number] != found[start] and (here or found[number] in self._in_place):
                return number
        return end

    def _name(self, number: int) -> str:
        return "" if self._found is None else self._found[number]

    def _start_again(self, chunk: int) -> None:
        """Release everything; chunk number *chunk* is the next to hold, from whatever tier."""
        for window in (*self._windows, *self._ready):
            self._copier.release((), window.hold)
        self._windows.clear()
        self._ready.clear()
        self._next, self._sure = chunk, False
