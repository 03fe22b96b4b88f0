"""The cache by key over a service: its leases as they are, and copies in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hexkv.core.engine.calls import Calls
from hexkv.core.engine.guarded import GuardedHold, GuardedPublishing
from hexkv.core.engine.leased.windows import Loading, Saving
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.requests.checks import check_seconds, check_window
from hexkv.core.requests.retrieve import retrieved
from hexkv.core.requests.store import stored
from hexkv.ports import (
    ChunkCache,
    ChunkKey,
    ChunkService,
    ChunkSpec,
    Clock,
    Deadline,
    DeviceKV,
    Executor,
    Hold,
    InvalidRequest,
    Lease,
    Publishing,
    Retrieved,
    StoreReport,
    Telemetry,
)


class ServiceRuntime:
    """Time, and how to wait."""

    def __init__(self, clock: Clock, executor: Executor) -> None:
        self.clock = clock
        self.executor = executor


class ServiceGround:
    """What calls over a service stand on; see :class:`hexkv.core.engine.ground.Ground`.

    The service ends pins, and writes what it was given, also after this process's end.
    """

    def __init__(self, service: ChunkService, clock: Clock, executor: Executor) -> None:
        self.runtime = ServiceRuntime(clock, executor)
        self.pool = ServicePool(service)
        self.pins = self.pool
        self._service = service

    def end(self, owner: str) -> None:
        """Nothing: leases are swept, and a call has no pins."""

    def flush(self, deadline: Deadline) -> bool:
        """Nothing is queued in this process."""
        del deadline
        return True

    def close(self, deadline: Deadline) -> None:
        """End the connection; what is still leased stays mapped."""
        del deadline
        self._service.close()


class ServicePool:
    """Leases of a service, by owner."""

    def __init__(self, service: ChunkService) -> None:
        self._service = service

    def sweep(self, owner: str) -> int:
        """Take back all that *owner* still holds."""
        return self._service.sweep(owner)

    def close(self) -> Mapping[str, int]:
        """What is still leased."""
        return self._service.ledger()

    def expire(self) -> None:
        """Nothing: pins are the service's."""


class LeasedCache:
    """Chunks by key; see :class:`hexkv.ports.ChunkCache`."""

    def __init__(
        self, service: ChunkService, copier: Copier, calls: Calls, clock: Clock, told: Telemetry
    ) -> None:
        """Over *service*, with the *copier* and *calls* of an engine; *told* of what moves."""
        self._service = service
        self._copier = copier
        self._calls = calls
        self._clock = clock
        self._telemetry = told

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        with self._calls.call():
            return self._service.match(keys, deadline)

    def hold(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> Hold:
        with self._calls.call():
            return GuardedHold(self._service.hold(wanted, owner, deadline), self._calls.door)

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        with self._calls.call():
            return self._service.allocate(wanted, owner, deadline)

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        with self._calls.call():
            publishing = self._service.publish(leases, after, deadline)
            return GuardedPublishing(publishing, self._calls.door)

    def load(self, wanted: Sequence[ChunkSpec], device: DeviceKV, deadline: Deadline) -> Retrieved:
        with self._calls.call() as owner:
            prompt = self._window(wanted, device)
            start = self._clock.now()
            got = Loading(
                self._service, self._copier, prompt, device, owner=owner, deadline=deadline
            ).run()
            return retrieved(self._telemetry, prompt, 0, got, self._clock.now() - start)

    def save(
        self,
        wanted: Sequence[ChunkSpec],
        device: DeviceKV,
        deadline: Deadline,
        *,
        wait: bool = True,
    ) -> StoreReport:
        with self._calls.call() as owner:
            prompt = self._window(wanted, device)
            if self._calls.frozen:
                return StoreReport(prompt.length, frozen=True)
            start = self._clock.now()
            saving = Saving(
                self._service,
                self._copier,
                device,
                self._telemetry,
                owner=owner,
                deadline=deadline,
                wait=wait,
            )
            kept = saving.run(prompt)
            return stored(self._telemetry, prompt, kept, self._clock.now() - start)

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        with self._calls.call():
            return self._service.forget(keys, deadline)

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        seconds = None if seconds is None else check_seconds(seconds)
        with self._calls.call():
            return self._service.pin(owner, keys, seconds)

    def unpin(self, owner: str) -> int:
        with self._calls.call():
            return self._service.unpin(owner)

    def flush(self, deadline: Deadline) -> bool:
        with self._calls.call():
            return self._service.flush(deadline)

    def _window(self, wanted: Sequence[ChunkSpec], device: DeviceKV) -> Prompt:
        prompt = Prompt.of(wanted)
        if not self._service.fits(max(spec.raw_bytes for spec in wanted)):
            raise InvalidRequest("a chunk is larger than the service's memory")
        check_window(device, prompt.layout, prompt.length)
        return prompt


if TYPE_CHECKING:

    def _is_a_cache(cache: LeasedCache) -> ChunkCache:
        return cache
