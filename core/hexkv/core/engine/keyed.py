"""The cache by key of one engine, for hosts that name chunks themselves."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub

from hexkv.core.engine.calls import Calls
from hexkv.core.engine.guarded import GuardedHold, GuardedPublishing
from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.accounts import Accounts, Laps
from hexkv.core.requests.checks import check_seconds, check_window
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.request import PromptRequest
from hexkv.core.requests.retrieve import Loading
from hexkv.core.requests.store import Storing
from hexkv.core.runtime import Stretch, no_pause
from hexkv.core.tiers.batches import Published
from hexkv.ports import (
    ChunkKey,
    ChunkSpec,
    Deadline,
    DeviceKV,
    Hold,
    InvalidRequest,
    Lease,
    Publishing,
    Retrieved,
    StoreReport,
)


class KeyedCache:
    """Chunks by key; see :class:`hexkv.ports.ChunkCache`. Ends with its engine."""

    def __init__(self, requests: Pipeline, calls: Calls, pin_seconds: float) -> None:
        """Make *requests* by the *calls* of its engine; pins last *pin_seconds* by default."""
        self._requests = requests
        self._chunks = requests.chunks
        self._calls = calls
        self._pin_seconds = pin_seconds
        self._clock = requests.runtime.clock
        self._accounts = Accounts(requests.runtime)

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        return self._calls.do(lambda _: self._chunks.match(keys, deadline), holds=False)

    def hold(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> Hold:
        def begin(_: str) -> Hold:
            self._check(wanted)
            return GuardedHold(self._chunks.hold(wanted, owner, deadline), self._calls.door)

        return self._calls.do(begin)

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        def lease(_: str) -> Sequence[Lease]:
            self._check(wanted)
            return self._chunks.allocate(wanted, owner, deadline)

        return self._calls.do(lease)

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> Publishing:
        def put(_: str) -> Publishing:
            if self._calls.frozen:
                return Published()
            publishing = self._chunks.publish(leases, after, deadline)
            return GuardedPublishing(publishing, self._calls.door)

        return self._calls.do(put)

    def load(self, wanted: Sequence[ChunkSpec], device: DeviceKV, deadline: Deadline) -> Retrieved:
        def load(owner: str) -> Retrieved:
            prompt = self._window(wanted, device)
            laps = Laps(self._clock)
            request = PromptRequest(prompt, device, owner, laps)
            got = Loading(self._requests, request, deadline).run()
            spent = laps.end(self._requests.runtime.steps, "retrieve", owner, prompt.keys)
            return self._accounts.retrieved(prompt, 0, got, spent)

        return self._calls.do(load)

    def save(
        self,
        wanted: Sequence[ChunkSpec],
        device: DeviceKV,
        deadline: Deadline,
        *,
        wait: bool = True,
    ) -> StoreReport:
        def save(owner: str) -> StoreReport:
            pause = no_pause if wait else Stretch(self._requests.runtime).pause
            prompt = self._window(wanted, device)
            if self._calls.frozen:
                return StoreReport(prompt.length, frozen=True)
            laps = Laps(self._clock)
            pause()
            request = PromptRequest(prompt, device, owner, laps)
            kept = Storing(self._requests, request, deadline, wait=wait, pause=pause).run(prompt)
            pause()
            spent = laps.end(self._requests.runtime.steps, "store", owner, prompt.keys)
            return self._accounts.stored(prompt, kept, spent)

        return self._calls.do(save)

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        with self._calls.call():
            return self._chunks.forget(keys, deadline)

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        seconds = self._pin_seconds if seconds is None else check_seconds(seconds)
        with self._calls.call():
            return self._chunks.pin(owner, keys, seconds)

    def unpin(self, owner: str) -> int:
        with self._calls.call():
            return self._chunks.unpin(owner)

    def flush(self, deadline: Deadline) -> bool:
        with self._calls.call():
            return self._chunks.flush(deadline)

    def _check(self, wanted: Sequence[ChunkSpec]) -> None:
        if wanted:
            self._check_size(max([spec.layout.chunk_bytes(spec.tokens) for spec in wanted]))

    def _check_size(self, largest: int) -> None:
        if not self._chunks.fits(largest):
            raise InvalidRequest(f"a chunk of {largest} bytes is larger than the pool's blocks")

    def _window(self, wanted: Sequence[ChunkSpec], device: DeviceKV) -> Prompt:
        prompt = Prompt.of(wanted)
        self._check_size(prompt.layout.chunk_bytes(max(map(sub, prompt.ends, prompt.starts))))
        check_window(device, prompt.layout, prompt.length)
        return prompt
