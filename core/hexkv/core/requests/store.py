"""Stores: copy the chunks that no tier holds from the device, once, and write them to all tiers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress
from operator import sub
from typing import TYPE_CHECKING

from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.accounts import Kept
from hexkv.core.requests.request import PromptRequest
from hexkv.ports import (
    CounterName,
    Deadline,
    InvalidRequest,
    Lease,
    Reason,
    ServiceHold,
    ServicePublishing,
    release_all,
)

if TYPE_CHECKING:
    from hexkv.core.requests.pipeline import Pipeline


class Storing:
    """One store under way: copies ahead of the writes, as far as there is memory."""

    def __init__(
        self,
        requests: Pipeline,
        request: PromptRequest,
        deadline: Deadline,
        *,
        wait: bool,
    ) -> None:
        """Store chunks of the prompt of *request*; *wait* for the writes of slower tiers."""
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
        self._writing: deque[tuple[Prompt, ServicePublishing]] = deque()

    def run(self, prompt: Prompt) -> Kept:
        """Copy and publish the chunks of *prompt* that no tier holds.

        Raises:
            InvalidRequest: the device raised it.
        """
        missing = self.find(prompt)
        self._laps.mark(("match", "", self._laps.now()))
        if not missing:
            return self.kept
        near, step = self._chunks.near, 1
        if len(missing) > 1:
            # Small steps, so that writing begins after the first.
            step = self._chunks.write_step or self.pace.of(prompt).step
        ahead: ServiceHold | None = None
        while missing:
            count = 1
            while count < min(step, len(missing)) and missing[count] == missing[0] + count:
                count += 1
            part = prompt
            if count < len(prompt.keys):
                part = prompt.part(missing[0], missing[0] + count)
            leases = (self._reserved(ahead) if ahead is not None else None) or self.lease(part)
            self._laps.mark(("room", "", self._laps.now()))
            ahead = None
            try:
                if not leases:
                    break
                if len(leases) < count:
                    part = part.part(0, len(leases))
                rest = missing[len(leases) :]
                if rest and not near:
                    # Answered while this part is copied.
                    ahead = self._reserve(prompt, rest, step)
                if not self._copier.copy(
                    self._device, part.spans(leases), leases, self.deadline, gather=True
                ):
                    break
                self._laps.mark(("copy", "", self._laps.now()))
                self.write(part, leases, transfer=True, last=not rest)
                self._laps.mark(("put", "", self._laps.now()))
                missing = rest
            finally:
                if mine := [lease for lease in leases if lease.owner == self._owner]:
                    release_all(mine)
        if ahead is not None:
            ahead.release()
        self.end(prompt, missing)
        return self.kept

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
        return [i for i, there in enumerate(here) if not there]

    def lease(self, part: Prompt, *, wait: bool = True) -> Sequence[Lease]:
        """Return empty leases for the first chunks of *part*; with *wait*, wait for the first."""
        while True:
            until = self.deadline
            if not wait or self._writing:
                # The end of an own write frees memory sooner than other holders would.
                until = Deadline(until.clock, 0.0)
            try:
                leases = self._chunks.allocate(part.specs(), self._owner, until)
            except InvalidRequest:  # a service was restarted with less memory than a chunk takes
                return []
            if leases or not self._writing:
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
        if dropped:
            specs = [prompt.spec(i) for i in dropped]
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
