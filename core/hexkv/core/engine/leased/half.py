"""The chunk half over a service: uses its leases directly, and copies in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hexkv.core.engine.half import ChunkHalf, LayersIn, LayersOut, Located
from hexkv.core.engine.leased.layers import LeasedRead, LeasedWrite
from hexkv.core.engine.leased.prefetches import HeldPrefetches
from hexkv.core.engine.leased.windows import Loading, Saving, find_prefix
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.requests.layers import TimeBudget
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.core.requests.retrieve import Arrived
from hexkv.core.requests.store import Kept
from hexkv.core.runtime import Runtime
from hexkv.core.steps import Laps
from hexkv.ports import (
    Announcing,
    ChunkKey,
    ChunkService,
    Cleared,
    Deadline,
    DeviceKV,
    Health,
    Reason,
    Retrieved,
    StoreReport,
)


class LeasedHalf:
    """The chunks of a shared service; see :class:`~hexkv.core.engine.half.ChunkHalf`.

    The service ends pins, and finishes writes, also after this process's end. While it does not
    answer, everything is a miss and nothing is stored.
    """

    def __init__(
        self,
        service: ChunkService,
        runtime: Runtime,
        prefetch: PrefetchRules = PrefetchRules(),  # noqa: B008 - frozen
    ) -> None:
        """Take ownership of *service*; prefetches take memory of it by the rules of *prefetch*."""
        self.runtime = runtime
        self.copier = Copier()
        self.prefetches = HeldPrefetches(service, prefetch, runtime.clock)
        self._service = service
        # Delegated without a wrapper.
        self.fits = service.fits
        self.match = service.match
        self.hold = service.hold
        self.allocate = service.allocate
        self.publish = service.publish
        self.forget = service.forget
        self.unpin = service.unpin
        self.flush = service.flush
        self.clear = service.clear
        self.announcing = service if isinstance(service, Announcing) else None
        self._prefixes: set[bytes] = set()
        self._closed = False

    def worth_loading(self, tier: str, saved: float) -> bool:
        del tier, saved  # only the service knows the speed of its tiers
        return True

    def assign(self, prefix: bytes, tenant: str) -> None:
        del tenant  # the service knows its tenants itself
        self._prefixes.add(prefix)

    @property
    def prefixes(self) -> Collection[bytes]:
        return frozenset(self._prefixes)

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        return self._service.pin(owner, keys, seconds) if keys else 0

    def locate(self, prompt: Prompt, deadline: Deadline, *, served: bool) -> Located:
        del served  # the service answers with the tiers that would serve
        found = find_prefix(self._service, prompt, deadline)
        return Located(found.prompt, found.tiers)

    def load(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        deadline: Deadline,
        laps: Laps,
        lookup_id: str | None = None,
    ) -> Arrived:
        ready = None if lookup_id is None else self.prefetches.take(lookup_id, prompt, deadline)
        return Loading(
            self._service,
            self.copier,
            prompt,
            device,
            owner=owner,
            deadline=deadline,
            laps=laps,
            ready=ready,
        ).run()

    def save(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        deadline: Deadline,
        laps: Laps,
        *,
        wait: bool,
    ) -> Kept:
        kept = self._saving(device, owner, deadline, wait=wait).run(prompt)
        laps.mark(("store", "", laps.now()))
        return kept

    def load_layers(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        patience: TimeBudget,
        report: Callable[[Arrived], Retrieved],
        *,
        skip: int,
        lookup_id: str | None,
    ) -> LayersIn:
        ready = None
        if lookup_id is not None:
            with patience.step() as until:
                ready = self.prefetches.take(lookup_id, prompt, until)
        return LeasedRead(
            self._service,
            self.copier,
            prompt,
            device,
            skip=skip,
            owner=owner,
            patience=patience,
            ready=ready,
            report=report,
        )

    def save_layers(
        self,
        prompt: Prompt,
        device: DeviceKV,
        owner: str,
        patience: TimeBudget,
        report: Callable[[Kept], StoreReport],
        *,
        wait: bool,
    ) -> LayersOut:
        return LeasedWrite(
            self._service,
            self.copier,
            prompt,
            device,
            self._saving(device, owner, patience.end(), wait=wait),
            owner=owner,
            patience=patience,
            report=report,
        )

    def forget_prompt(
        self, prompt: Prompt, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        if prompt.unnamed.ends:
            chosen = tiers or [tier.name for tier in self.health(deadline).tiers]
            return Cleared(0, {}, dict.fromkeys(chosen, Reason.TIMED_OUT.value))
        tails = [key for number in range(len(prompt)) for key in prompt.tails_of(number)[0]]
        return self._service.clear([*prompt.keys[: prompt.full], *tails], tiers, deadline)

    def health(self, deadline: Deadline) -> Health:
        told = None if self._closed else self._service.health(deadline)
        if told is None:
            told = Health("", False, (), 0, 0, {}, {}, {}, 0)
        leases = {**told.leases, **self._service.ledger()}
        return replace(told, leases=leases, prefetches=len(self.prefetches))

    expiring: Collection[str] = ()

    def expire(self) -> None:
        """Do nothing: the service ends pins."""

    def end(self, owner: str) -> None:
        self._service.sweep(owner)

    def close(self, deadline: Deadline) -> Mapping[str, int]:
        """End the connection; memory with leases stays mapped."""
        del deadline
        self._closed = True
        self._service.close()
        return self._service.ledger()

    def _saving(self, device: DeviceKV, owner: str, deadline: Deadline, *, wait: bool) -> Saving:
        return Saving(
            self._service,
            self.copier,
            device,
            self.runtime.telemetry,
            owner=owner,
            deadline=deadline,
            wait=wait,
        )


if TYPE_CHECKING:

    def _is_a_half(half: LeasedHalf) -> ChunkHalf:
        return half
