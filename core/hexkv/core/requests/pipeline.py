"""The requests of an engine: one pipeline over a service of chunks, near or far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.requests.accounts import Arrived, Kept
from hexkv.core.requests.layers.limits import Hosts, TimeBudget
from hexkv.core.requests.layers.retrieve import LayeredRetrieve
from hexkv.core.requests.layers.store import LayeredStore
from hexkv.core.requests.pace import Pace
from hexkv.core.requests.prefetch import Prefetches, PrefetchRules
from hexkv.core.requests.request import PromptRequest
from hexkv.core.requests.retrieve import Held, Loading
from hexkv.core.requests.store import Storing
from hexkv.core.runtime import Runtime
from hexkv.ports import (
    ChunkService,
    Cleared,
    Deadline,
    Health,
    Reason,
    Retrieved,
    StoreReport,
)

_UNKNOWN = Health("", False, (), 0, 0, {}, {}, {}, 0)


class Pipeline:
    """Moves the chunks of prompts between devices and a service. Safe from any thread.

    The leases and pins of each call of an engine are listed under its owner. The only error is
    :class:`~hexkv.ports.InvalidRequest`, if a device raises it.
    """

    def __init__(
        self,
        chunks: ChunkService,
        runtime: Runtime,
        prefetch: PrefetchRules = PrefetchRules(),  # noqa: B008 - frozen
    ) -> None:
        """Take ownership of *chunks*; prefetches take memory of it by the rules of *prefetch*."""
        self.chunks = chunks
        self.runtime = runtime
        self.copier = Copier(runtime.executor)
        self._pace = Pace(chunks)
        self.prefetches = Prefetches(chunks, self._pace, prefetch, runtime.clock)
        self._hosts = Hosts()
        chunks.on_shortage(self.prefetches.reap, self.prefetches.first_end)

    def load(self, request: PromptRequest, deadline: Deadline) -> Arrived:
        """Load chunks of a prompt into the device, in order, until one does not arrive.

        The prefetch that *request* names is consumed, used or not.
        """
        name = request.lookup_id
        take = None if name is None else partial(self._prefetched, name, deadline)
        return Loading(self.chunks, self._pace, self.copier, request, deadline, take).run()

    def save(self, request: PromptRequest, deadline: Deadline, *, wait: bool) -> Kept:
        """Copy from the device the chunks that no tier holds, and write them."""
        return self._storing(request, deadline, wait=wait).run(request.prompt)

    def load_layers(
        self,
        request: PromptRequest,
        budget: TimeBudget,
        report: Callable[[Arrived], Retrieved],
        *,
        skip: int,
    ) -> LayeredRetrieve:
        """Load layer by layer, behind the first *skip* tokens; *report* makes the result."""
        name = request.lookup_id
        return LayeredRetrieve(
            self.chunks,
            self.copier,
            request,
            budget,
            skip=skip,
            hosts=self._hosts,
            take=None if name is None else partial(self._prefetched, name, budget.end()),
            report=report,
        )

    def save_layers(
        self,
        request: PromptRequest,
        budget: TimeBudget,
        report: Callable[[Kept], StoreReport],
        *,
        wait: bool,
    ) -> LayeredStore:
        """Save layer by layer; *report* makes the result."""
        return LayeredStore(
            self.chunks,
            self.copier,
            request,
            budget,
            self._storing(request, budget.end(), wait=wait),
            hosts=self._hosts,
            report=report,
        )

    def forget(self, prompt: Prompt, tiers: Sequence[str] | None, deadline: Deadline) -> Cleared:
        """Delete the chunks of *prompt*, and tails in any of them, from *tiers*, by default all.

        Raises:
            InvalidRequest: there is no such tier.
        """
        # Tails in any chunk: the ends of earlier turns of a conversation.
        tails = [
            (key, end - start)
            for number, start in enumerate(prompt.starts[: len(prompt)])
            for key, end in zip(*prompt.tails_of(number), strict=True)
        ]
        done = self.chunks.clear(prompt.keys[: prompt.full], tiers, deadline, tails)
        if prompt.unnamed.ends:
            names = tiers or [tier.name for tier in self.health(deadline).tiers]
            return replace(done, left=dict.fromkeys(names, Reason.TIMED_OUT.value))
        return done

    def health(self, deadline: Deadline) -> Health:
        """Return the state of memory and tiers; without a state if no answer came."""
        told = self.chunks.health(deadline) or _UNKNOWN
        leases = {**told.leases, **self.chunks.ledger()}
        return replace(told, leases=leases, prefetches=len(self.prefetches))

    def close(self, deadline: Deadline) -> Mapping[str, int]:
        """Finish writes queued here and close everything. Return the leases left, by owner."""
        self.prefetches.close()
        self.copier.reap(deadline)
        self.chunks.close(deadline)
        return self.chunks.ledger()

    def _prefetched(
        self, lookup_id: str, deadline: Deadline, prompt: Prompt, decoded: Collection[str]
    ) -> Sequence[Held]:
        return self.prefetches.take(lookup_id, prompt, deadline, decoded)

    def _storing(self, request: PromptRequest, deadline: Deadline, *, wait: bool) -> Storing:
        return Storing(
            self.chunks,
            self._pace,
            self.copier,
            request,
            self.runtime.telemetry,
            deadline=deadline,
            wait=wait,
        )
