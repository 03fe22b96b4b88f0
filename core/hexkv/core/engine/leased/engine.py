"""The cache by tokens over a service: names prompts, and leases their chunks from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.engine.guarded import GuardedRead, GuardedWrite
from hexkv.core.engine.leased.cache import LeasedCache, ServiceGround
from hexkv.core.engine.leased.layers import LeasedRead, LeasedWrite
from hexkv.core.engine.leased.prefetches import HeldPrefetches
from hexkv.core.engine.leased.windows import Loading, Saving
from hexkv.core.engine.naming import Naming
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256
from hexkv.core.keys.prompts import LONGEST_PROMPT, ChunkHasher, Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.requests.checks import check_seconds, check_window, skipped
from hexkv.core.requests.layers import TimeBudget
from hexkv.core.requests.prefetch import AT_ONCE, PrefetchRules
from hexkv.core.requests.retrieve import retrieved
from hexkv.core.requests.store import stored
from hexkv.ports import (
    ChunkCache,
    ChunkKey,
    ChunkService,
    Cleared,
    Clock,
    ConfigError,
    Deadline,
    DeviceKV,
    Executor,
    HashFunction,
    Health,
    InvalidRequest,
    KeySpace,
    LayeredRead,
    LayeredWrite,
    Lookup,
    Namespace,
    PrefixCache,
    Retrieved,
    StoreReport,
    Telemetry,
    Tokens,
)


class LeasedEngine:
    """See :class:`hexkv.ports.PrefixCache`. What the service holds, others share.

    While the service does not answer, everything is a miss and nothing is stored.
    """

    def __init__(
        self,
        namespace: Namespace,
        service: ChunkService,
        chunker: PrefixChunker,
        *,
        clock: Clock,
        executor: Executor,
        telemetry: Telemetry,
        algorithm: HashFunction = SHA256,
        seeded: bool = True,
        longest: int = LONGEST_PROMPT,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        prefetch: PrefetchRules = PrefetchRules(),  # noqa: B008 - frozen
    ) -> None:
        """Take over *service*.

        Args:
            namespace: of the calls that give none of their own.
            service: closed by :meth:`close`.
            chunker: how prompts are cut.
            clock: for deadlines.
            executor: how to wait.
            telemetry: told of every request.
            algorithm: names chunks; part of every namespace's identity.
            seeded: False names chunks by tokens alone within a namespace.
            longest: tokens that a prompt may have.
            deadlines: of each kind of call.
            prefetch: how much memory prefetches take, and for how long.

        Raises:
            ConfigError: a chunk does not fit the service's memory, or *namespace* no header.
        """
        if not service.fits(namespace.layout.chunk_bytes(chunker.size)):
            raise ConfigError(
                f"a chunk of {chunker.size} tokens does not fit the node's pool"
                f" ({service.pool_bytes} bytes)"
            )
        self.namespace = namespace
        self._service = service
        self._clock = clock
        self._telemetry = telemetry
        self._deadlines = deadlines
        namer = ChunkHasher(chunker, algorithm, seeded=seeded, longest=longest)
        namer.keyer(namespace)
        self._naming = Naming(namespace, namer, service, chunker.size)
        self._copier = Copier()
        self._prefetches = HeldPrefetches(service, prefetch, clock)
        ground = ServiceGround(service, clock, executor)
        self._calls = Calls(ground, self._prefetches, self._copier, deadlines.close)
        self._door = self._calls.door
        self.chunks: ChunkCache = LeasedCache(service, self._copier, self._calls, clock, telemetry)

    @property
    def telemetry(self) -> Telemetry:
        self._door.home.check()
        return self._telemetry

    def close(self) -> None:
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def key_space(self, namespace: Namespace | None = None) -> KeySpace:
        with self._door.passing():
            return self._naming.key_space(namespace)

    def chunk_keys(
        self, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> Sequence[ChunkKey]:
        with self._calls.call():
            return self._prompt(tokens, namespace).keys

    def lookup(
        self, tokens: Tokens, *, pin: str | None = None, namespace: Namespace | None = None
    ) -> Lookup:
        with self._calls.call():
            until = self._until(self._deadlines.lookup)
            prompt = self._prompt(tokens, namespace, until)
            found = self._match(prompt, until)
            if pin is not None and found:
                self._service.pin(pin, prompt.keys[: len(found)], self._deadlines.pin)
            tiers: dict[str, int] = {}
            start = 0
            for name, run in groupby(found):
                end = start + len(list(run))
                tokens_here = prompt.ends[end - 1] - prompt.starts[start]
                tiers[name] = tiers.get(name, 0) + tokens_here
                start = end
            return Lookup(prompt.length, prompt.ends[start - 1] if found else 0, tiers)

    def prefetch(
        self, lookup_id: str, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> int | None:
        with self._calls.call():
            if self._prefetches.known(lookup_id):
                return self._prefetches.ask(lookup_id)
            prompt = self._prompt(tokens, namespace, self._until(AT_ONCE))
            if prompt.unnamed.ends:
                return 0
            return self._prefetches.begin(lookup_id, prompt, self._until(self._deadlines.retrieve))

    def cancel(self, lookup_id: str) -> bool:
        with self._calls.call():
            return self._prefetches.cancel(lookup_id)

    def retrieve(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        mask: Sequence[bool] | None = None,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> Retrieved:
        with self._calls.call() as owner:
            start = self._clock.now()
            until = Deadline(self._clock, start + self._deadlines.retrieve)
            prompt = self._prompt(tokens, namespace, until)
            check_window(device, prompt.layout, prompt.length)
            skip = skipped(skip, mask, prompt.length)
            prompt = prompt.since(skip)
            ready = None if lookup_id is None else self._prefetches.take(lookup_id, prompt)
            got = Loading(
                self._service,
                self._copier,
                prompt,
                device,
                owner=owner,
                deadline=until,
                ready=ready,
            ).run()
            return retrieved(self._telemetry, prompt, skip, got, self._clock.now() - start)

    @contextmanager
    def retrieve_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        mask: Sequence[bool] | None = None,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> Iterator[LayeredRead]:
        with self._calls.in_steps() as owner, ExitStack() as held:
            with self._door.passing():
                patience = TimeBudget(self._clock, self._deadlines.retrieve)
                with patience.step() as until:
                    prompt = self._prompt(tokens, namespace, until)
                check_window(device, prompt.layout, prompt.length)
                skip = skipped(skip, mask, prompt.length)
                prompt = prompt.since(skip)
                layers = LeasedRead(
                    self._service,
                    self._copier,
                    prompt,
                    device,
                    skip=skip,
                    owner=owner,
                    patience=patience,
                    ready=None if lookup_id is None else self._prefetches.take(lookup_id, prompt),
                    report=lambda got: retrieved(
                        self._telemetry, prompt, skip, got, patience.spent
                    ),
                )
                held.callback(self._door.give_back, layers.close)
                layers.begin()
            yield GuardedRead(layers, self._door)

    def store(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        mask: Sequence[bool] | None = None,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> StoreReport:
        with self._calls.call() as owner:
            start = self._clock.now()
            until = Deadline(self._clock, start + self._deadlines.store)
            prompt = self._prompt(tokens, namespace, until)
            check_window(device, prompt.layout, prompt.length)
            skip = skipped(skip, mask, prompt.length)
            if self._calls.frozen:
                return StoreReport(prompt.length, frozen=True)
            prompt = prompt.since(skip)
            kept = self._saving(device, owner, until, wait=wait).run(prompt)
            return stored(self._telemetry, prompt, kept, self._clock.now() - start)

    @contextmanager
    def store_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        mask: Sequence[bool] | None = None,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> Iterator[LayeredWrite]:
        with self._calls.in_steps() as owner, ExitStack() as held:
            with self._door.passing():
                patience = TimeBudget(self._clock, self._deadlines.store)
                with patience.step() as until:
                    whole = self._prompt(tokens, namespace, until)
                check_window(device, whole.layout, whole.length)
                prompt = whole.since(skipped(skip, mask, whole.length))
                frozen = self._calls.frozen
                layers = LeasedWrite(
                    self._service,
                    self._copier,
                    prompt.part(0, 0) if frozen else prompt,
                    device,
                    self._saving(device, owner, until, wait=wait),
                    owner=owner,
                    patience=patience,
                    report=lambda kept: (
                        StoreReport(prompt.length, frozen=True)
                        if frozen
                        else stored(self._telemetry, prompt, kept, patience.spent)
                    ),
                )
                held.callback(self._door.give_back, layers.close)
                layers.begin()
            yield GuardedWrite(layers, self._door)

    def pin(
        self,
        tokens: Tokens,
        owner: str,
        *,
        seconds: float | None = None,
        namespace: Namespace | None = None,
    ) -> int:
        seconds = self._deadlines.pin if seconds is None else check_seconds(seconds)
        with self._calls.call():
            until = self._until(self._deadlines.lookup)
            prompt = self._prompt(tokens, namespace, until)
            found = self._match(prompt, until)
            if not found:
                return 0
            count = self._service.pin(owner, prompt.keys[: len(found)], seconds)
            return prompt.ends[len(found) - 1] if count else 0

    def unpin(self, owner: str) -> int:
        with self._calls.call():
            return self._service.unpin(owner)

    def clear(
        self,
        tokens: Tokens | None = None,
        *,
        tiers: Sequence[str] | None = None,
        namespace: Namespace | None = None,
        everything: bool = False,
    ) -> Cleared:
        if everything and not (tokens is None and namespace is None):
            raise InvalidRequest("everything is more than one prompt or namespace")
        with self._calls.call():
            until = self._until(self._deadlines.store)
            clear = partial(self._service.clear, tiers=tiers, deadline=until)
            if tokens is not None:
                return clear(self._prompt(tokens, namespace).keys)
            if everything:
                return clear(None)
            if namespace is not None:
                return clear([self._naming.prefix(namespace)])
            return clear([keyer.prefix for keyer in self._naming.keyers()])

    def freeze(self, frozen: bool = True) -> None:
        with self._calls.call():
            self._calls.frozen = frozen

    def flush(self, seconds: float | None = None) -> bool:
        seconds = self._deadlines.store if seconds is None else check_seconds(seconds)
        with self._calls.call():
            return self._service.flush(self._until(seconds))

    def health(self) -> Health:
        with self._door.passing():
            told = None
            if self._calls.state == "open":
                told = self._service.health(self._until(self._deadlines.lookup))
            if told is None:
                told = Health("", False, (), 0, 0, {}, {}, {}, 0)
            return replace(
                told,
                state=self._calls.state,
                frozen=self._calls.frozen,
                leases={**told.leases, **self._service.ledger()},
                prefetches=len(self._prefetches),
            )

    def _saving(self, device: DeviceKV, owner: str, until: Deadline, *, wait: bool) -> Saving:
        return Saving(
            self._service,
            self._copier,
            device,
            self._telemetry,
            owner=owner,
            deadline=until,
            wait=wait,
        )

    def _match(self, prompt: Prompt, until: Deadline) -> list[str]:
        """The tiers of the first chunks that are there."""
        found: list[str] = []
        for tier in self._service.match(prompt.keys, until):
            if tier is None:
                break
            found.append(tier)
        return found

    def _prompt(
        self, tokens: Tokens, namespace: Namespace | None, deadline: Deadline | None = None
    ) -> Prompt:
        return self._naming.prompt(tokens, namespace, deadline)

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)


if TYPE_CHECKING:

    def _is_a_cache(engine: LeasedEngine) -> PrefixCache:
        return engine
