"""Stores: copy the chunks that no tier holds from the device, once, and write them to all tiers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from operator import attrgetter, not_, sub
from typing import TYPE_CHECKING, NamedTuple

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copy
from hexkv.core.requests.accounts import Kept
from hexkv.core.requests.request import PromptRequest
from hexkv.core.runtime import Pause, Stretch, no_pause
from hexkv.ports import (
    CounterName,
    Deadline,
    InvalidRequest,
    Lease,
    Reason,
    ServiceHold,
    ServicePublishing,
)

if TYPE_CHECKING:
    from hexkv.core.requests.pipeline import Pipeline


_owner_of = attrgetter("owner")

_BESIDE = 16
"""The most chunks of a step beside a host's work: other threads wait while they are published."""


_QUEUED = 32 << 20
"""Bytes that a device queues by a call beside a host's work: about one launch and one copy."""


class _Step(NamedTuple):
    """Neighbouring chunks whose copies were queued."""

    part: Prompt
    leases: Sequence[Lease]
    copies: Sequence[Copy] | None
    """``None`` if the device failed."""

    last: bool


class Storing:
    """One store under way: copies ahead of the writes, as far as there is memory."""

    def __init__(
        self,
        requests: Pipeline,
        request: PromptRequest,
        deadline: Deadline,
        *,
        wait: bool,
        pause: Pause | None = None,
    ) -> None:
        """Store chunks of the prompt of *request*; *wait* for the writes of slower tiers.

        *pause* is that of the call; by default pauses begin here, if this does not wait.
        """
        self.kept = Kept()
        self.deadline = deadline
        self._laps = request.laps
        self._chunks = requests.chunks
        self.pace = requests.pace
        self._copier = requests.copier
        self._device = request.device
        self._telemetry = requests.runtime.telemetry
        self._owner = request.owner
        self._wait = wait
        if pause is None:
            pause = no_pause if wait else Stretch(requests.runtime).pause
        self._pause = pause
        self._writing: deque[tuple[Prompt, ServicePublishing]] = deque()
        self._ahead: ServiceHold | None = None
        """Memory that was requested for the next step."""

    def run(self, prompt: Prompt) -> Kept:
        """Copy and publish the chunks of *prompt* that no tier holds.

        Raises:
            InvalidRequest: the device raised it.
        """
        missing = self.find(prompt)
        self._laps.mark(("match", "", self._laps.now()))
        self._pause()
        if not missing:
            return self.kept
        most = 1
        if len(missing) > 1:
            # Small steps, so that writing begins after the first.
            most = self._chunks.write_step or self.pace.of(prompt).step
            most = most if self._wait else min(most, _BESIDE)
        left = missing
        steps: deque[_Step] = deque()
        try:
            while missing or steps:
                # The next step is queued before a copy that a device makes is waited for.
                if missing and (not steps or (len(steps) == 1 and self._under_way(steps[0]))):
                    step = self._begin(prompt, missing, most, alone=not steps)
                    if step is not None:
                        steps.append(step)
                        missing = missing[len(step.leases) :]
                        continue
                    if not steps:
                        break
                count = len(steps[0].leases)
                if not self._end(steps.popleft()):
                    break
                left = left[count:]
        finally:
            for step in steps:
                self._give_up(step)
            if self._ahead is not None:
                self._ahead.release()
        self.end(prompt, left)
        return self.kept

    def _begin(
        self, prompt: Prompt, missing: Sequence[int], most: int, *, alone: bool
    ) -> _Step | None:
        """Queue the copy of the first of the *missing* chunks, *most* at once.

        Return None without memory, for which it waits only if *alone*.
        """
        count = 1
        while count < min(most, len(missing)) and missing[count] == missing[0] + count:
            count += 1
        part = prompt
        if count < len(prompt.keys):
            part = prompt.part(missing[0], missing[0] + count)
        ahead, self._ahead = self._ahead, None
        leases = (self._reserved(ahead) if ahead is not None else None) or self.lease(
            part, wait=alone
        )
        self._laps.mark(("room", "", self._laps.now()))
        if not leases:
            return None
        try:
            self._pause()
            if len(leases) < count:
                part = part.part(0, len(leases))
            rest = missing[len(leases) :]
            if rest and not self._chunks.near:
                # Answered while this part is copied.
                self._ahead = self._reserve(prompt, rest, most)
            return _Step(part, leases, self._queue(part, leases), not rest)
        except BaseException:
            self._release(leases)
            raise

    def _queue(self, part: Prompt, leases: Sequence[Lease]) -> list[Copy] | None:
        """Queue the copies into *leases*, beside a host's work a few by a call; else all by one."""
        most = len(leases)
        if not self._wait:
            most = max(1, min(most, _QUEUED // part.layout.chunk_bytes(part.tokens(0))))
        spans, copies = part.spans(leases), list[Copy]()
        for at in range(0, len(leases), most):
            some = slice(at, at + most)
            copy = self._copier.begin(
                self._device, spans[some], leases[some], self._owner, gather=True
            )
            if copy is None:
                return None
            copies.append(copy)
            self._pause()
        return copies

    def _under_way(self, step: _Step) -> bool:
        """True if a device copies *step*. A node has lent memory for one step only."""
        begun = any(copy.transfer is not None for copy in step.copies or ())
        return begun and self._chunks.near

    def _end(self, step: _Step) -> bool:
        """Wait for the copy of *step*, and publish its chunks. True if it was done in time."""
        part, leases, copies, last = step
        try:
            if copies is None:
                return False
            if not self._copier.finish_all(copies, self.deadline):
                return False
            self._laps.mark(("copy", "", self._laps.now()))
            self._pause()
            self.write(part, leases, transfer=True, last=last)
            self._laps.mark(("put", "", self._laps.now()))
            self._pause()
            return True
        finally:
            self._release(leases)

    def _give_up(self, step: _Step) -> None:
        """Release the memory of *step*, or leave it to its copy."""
        try:
            self._copier.finish_all(step.copies or (), Deadline(self.deadline.clock, 0.0))
        except InvalidRequest:
            pass  # the device has refused the step before it, too
        finally:
            self._release(step.leases)

    def _release(self, leases: Sequence[Lease]) -> None:
        """Release those of *leases* that no tier has taken over. Copies keep the memory."""
        if self._owner in map(_owner_of, leases):
            self._copier.release([lease for lease in leases if lease.owner == self._owner])

    def find(self, prompt: Prompt) -> list[int]:
        """Return the numbers of the chunks of *prompt* that no tier holds; count the others."""
        kept, keys = self.kept, prompt.keys
        if not keys:
            return []
        kept.asked = prompt.ends[-1] - prompt.starts[0]
        here = self._stored(prompt)
        if False not in here:  # nothing to store: this must cost little beside the keys
            kept.present, kept.present_chunks = kept.asked, len(here)
            return []
        if True in here:
            present = list(compress(range(len(here)), here))
            kept.present, kept.present_chunks = sum(map(prompt.tokens, present)), len(present)
        return list(compress(range(len(here)), map(not_, here)))

    def lease(self, part: Prompt, *, wait: bool = True) -> Sequence[Lease]:
        """Return empty leases for the first chunks of *part*; with *wait*, wait for the first."""
        chunks = self._chunks
        while True:
            try:
                if wait and not self._writing:
                    leases = chunks.allocate(part.specs(), self._owner, self.deadline)
                else:
                    # The end of an own write frees memory sooner than other holders would.
                    ahead = chunks.reserve(part.specs(), self._owner, self.deadline)
                    leases = self._reserved(ahead)
            except InvalidRequest:  # a service was restarted with less memory than a chunk takes
                return []
            if leases or not wait or not self._writing:
                return leases
            self._settle()

    def write(
        self, part: Prompt, leases: Sequence[Lease], *, transfer: bool = False, last: bool = False
    ) -> None:
        """Publish neighbouring chunks that were copied into *leases*.

        The *last* chunks are not pinned: no later write of this store could evict them.
        """
        publishing = self._chunks.publish(
            leases,
            part.after,
            self.deadline,
            transfer=transfer,
            keep=None if last else self._owner,
            wait=self._wait,
        )
        self._writing.append((part, publishing))

    def end(self, prompt: Prompt, dropped: Sequence[int]) -> None:
        """Count the results of all writes. The chunks *dropped* were not copied."""
        while self._writing:
            self._settle()
            self._pause()
        if dropped:
            specs = [prompt.spec(i) for i in dropped]
            self.kept.drop(Reason.NOT_COPIED, sum(spec.tokens for spec in specs))
            if not self._chunks.drop(specs, Reason.NOT_COPIED):
                self._telemetry.count(CounterName.DROPPED, len(specs), reason=Reason.NOT_COPIED)

    def _stored(self, prompt: Prompt) -> Sequence[bool]:
        """Return True for each chunk of *prompt* that need not be stored."""
        stored, keys = self._chunks.stored, prompt.keys
        if prompt.tails is None or not self._chunks.near or (full := prompt.full) == len(keys):
            return stored(keys, prompt.after, self._owner, self.deadline, asks=self._wait)
        # Tiers that keep no tails are not queried for one: their stores may take time to answer.
        size, tail = prompt.tails.size, prompt.part(full, len(keys))
        here = stored(keys[:full], prompt.after, self._owner, self.deadline, asks=self._wait)
        short = stored(
            tail.keys, tail.after, self._owner, self.deadline, below=size, asks=self._wait
        )
        return [*here, *short]

    def _reserve(self, prompt: Prompt, missing: Sequence[int], step: int) -> ServiceHold:
        specs = [prompt.spec(missing[0])]
        for i in range(1, min(step, len(missing))):
            if missing[i] != missing[0] + i:
                break
            specs.append(prompt.spec(missing[i]))
        return self._chunks.reserve(specs, self._owner, self.deadline)

    def _reserved(self, ahead: ServiceHold) -> list[Lease]:
        """Return the leases that were requested while the chunks before were copied."""
        ahead.wait(self.deadline)
        return [lease for lease in ahead.leases if lease is not None]

    def _settle(self) -> None:
        """Count the result of the oldest part; wait for its writes if this store waits."""
        part, publishing = self._writing.popleft()
        whole = True
        for name in publishing.targets:
            whole = self._wait and publishing.wait(self.deadline, name) and whole
            self._laps.mark(("write", name, self._laps.now()))
        if self._wait and not self._chunks.near:
            publishing.wait(self.deadline)
        on = publishing.tiers
        if not whole or not self._chunks.near:
            whole = publishing.done
        tokens, kept = list(map(sub, part.ends, part.starts)), self.kept
        for name, row in on.items():
            if True in row:
                kept.tiers[name] = kept.tiers.get(name, 0) + sum(compress(tokens, row))
        rows = [*on.values()]
        here = rows[0] if len(rows) == 1 else [*map(any, zip(*rows, strict=True))]
        asked, stored = sum(tokens), sum(compress(tokens, here))
        kept.stored += stored
        kept.size += part.layout.chunk_bytes(stored)
        if not whole:
            kept.queued += asked - stored
        elif stored < asked:
            each: Iterable[bool] = here if rows else repeat(False)
            for key, count, there in zip(part.keys, tokens, each, strict=False):
                if not there:
                    kept.drop(self._chunks.why_dropped(key), count)
