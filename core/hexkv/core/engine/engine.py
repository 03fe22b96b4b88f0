"""The cache engine: what a serving engine's adapter talks to.

Whatever a tier does, a call on the serving path answers: with less than was hoped for, but
never with an exception of a tier and never with KV of something else. Only a request that
means nothing (:class:`~hexkv.ports.InvalidRequest`) and a call after ``close`` raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.core.engine.admin import Admin
from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.engine.guarded import GuardedRead, GuardedWrite
from hexkv.core.engine.keyed import KeyedCache
from hexkv.core.engine.naming import Naming, meet
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256
from hexkv.core.keys.prompts import LONGEST_PROMPT, ChunkHasher, Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.requests.checks import check_window, skipped
from hexkv.core.requests.layers import Hosts, LayeredRetrieve, LayeredStore, TimeBudget
from hexkv.core.requests.prefetch import AT_ONCE, Prefetches, PrefetchRules, make_room
from hexkv.core.requests.prefix import match_prefix
from hexkv.core.requests.retrieve import load_prefix, retrieved
from hexkv.core.requests.store import Storing, stored
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.tenants import Tenant, TenantsBySalt
from hexkv.ports import (
    ChunkCache,
    ChunkKey,
    Cleared,
    ConfigError,
    Deadline,
    DeviceKV,
    HashFunction,
    Health,
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

__all__ = ["CacheEngine", "Deadlines"]


class CacheEngine:
    """Stores, finds and gives back KV. Safe from any thread; a context manager.

    Names what it is asked for by tokens, and leaves the rest to the cache by key and its tiers.
    """

    def __init__(
        self,
        namespace: Namespace,
        stack: TierStack,
        chunker: PrefixChunker,
        *,
        algorithm: HashFunction = SHA256,
        seeded: bool = True,
        longest: int = LONGEST_PROMPT,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        prefetch: PrefetchRules = PrefetchRules(),  # noqa: B008 - frozen
        tenants: Sequence[Tenant] = (),
    ) -> None:
        """Take over *stack* and its pool, and learn what its tiers hold.

        Args:
            namespace: of the calls that give none of their own.
            stack: closed by :meth:`close`.
            chunker: how prompts are cut. Prefixes are what is reused, so no other kind fits.
            algorithm: names chunks; part of every namespace's identity.
            seeded: False names chunks by tokens alone within a namespace, as hosts do that
                hash their pages themselves.
            longest: tokens that a prompt may have.
            deadlines: of each kind of call.
            prefetch: how much memory prefetches take, and for how long.
            tenants: whose chunks are kept apart, in tiers that have a divided index.

        Raises:
            ConfigError: a chunk does not fit the pool's blocks, or *namespace* no header.
        """
        if not stack.runtime.pool.fits(namespace.layout.chunk_bytes(chunker.size)):
            raise ConfigError(
                f"a chunk of {chunker.size} tokens does not fit a block of the pool "
                f"({stack.runtime.pool.slot_bytes} bytes)"
            )
        self.namespace = namespace
        runtime = stack.runtime
        self._stack = stack
        self._clock = runtime.clock
        self._telemetry = runtime.telemetry
        self._deadlines = deadlines
        by_salt = TenantsBySalt(tenants)
        # Not methods of the engine: what outlives it must not keep it.
        namer = ChunkHasher(
            chunker, algorithm, partial(meet, stack, by_salt), seeded=seeded, longest=longest
        )
        self._naming = Naming(namespace, namer, runtime.pool, chunker.size)
        self._copier = Copier()
        self._pace = Pipelining.of(runtime.pool)
        self._prefetches = Prefetches(stack, prefetch)
        self._hosts = Hosts()
        runtime.pool.reclaim = partial(make_room, stack, self._prefetches)
        stack.patience = deadlines.lookup
        for tenant in tenants:
            namer.keyer(replace(namespace, salt=tenant.salt))
        namer.keyer(namespace)
        self._calls = Calls(stack, self._prefetches, self._copier, deadlines.close)
        self._door = self._calls.door
        self.chunks: ChunkCache = KeyedCache(
            stack, self._copier, self._pace, self._calls, deadlines.pin
        )
        self.admin = Admin(stack, self._prefetches, self._calls, self._naming, deadlines)
        """For operators: to move, compress, explain, add and remove tiers."""

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
            prefix = match_prefix(self._stack, prompt, until)
            found = prefix.found
            if pin is not None:
                self._stack.pins.pin(pin, found.keys, self._until(self._deadlines.pin))
            tiers: dict[str, int] = {}
            start = 0
            for name, run in groupby(prefix.tiers, key=attrgetter("name")):
                end = start + len(list(run))
                tokens_here = found.ends[end - 1] - found.starts[start]
                tiers[name] = tiers.get(name, 0) + tokens_here
                start = end
            return Lookup(prompt.length, prefix.tokens, tiers)

    def prefetch(
        self, lookup_id: str, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> int | None:
        with self._calls.call():
            read = self._until(self._deadlines.retrieve)
            soon = self._until(AT_ONCE)

            def name() -> Prompt:
                return self._prompt(tokens, namespace, soon)

            return self._prefetches.begin(lookup_id, name, read)

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
            got = load_prefix(
                self._stack,
                self._copier,
                prompt,
                device,
                pace=self._pace,
                owner=owner,
                deadline=until,
                ready=self._prefetches.take(lookup_id) if lookup_id is not None else None,
            )
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
                layers = LayeredRetrieve(
                    self._stack,
                    self._copier,
                    prompt,
                    device,
                    skip=skip,
                    pace=self._pace,
                    owner=owner,
                    patience=patience,
                    hosts=self._hosts,
                    ready=self._prefetches.take(lookup_id) if lookup_id is not None else {},
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
            storing = Storing(
                self._stack,
                self._copier,
                device,
                pace=self._pace,
                owner=owner,
                deadline=until,
                wait=wait,
            )
            prompt = prompt.since(skip)
            kept = storing.run(prompt)
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
                layers = LayeredStore(
                    self._stack,
                    self._copier,
                    prompt.part(0, 0) if frozen else prompt,
                    device,
                    Storing(
                        self._stack,
                        self._copier,
                        device,
                        pace=self._pace,
                        owner=owner,
                        deadline=until,
                        wait=wait,
                    ),
                    pace=self._pace,
                    owner=owner,
                    patience=patience,
                    hosts=self._hosts,
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
        return self.admin.pin(tokens, owner, seconds=seconds, namespace=namespace)

    def unpin(self, owner: str) -> int:
        return self.admin.unpin(owner)

    def clear(
        self,
        tokens: Tokens | None = None,
        *,
        tiers: Sequence[str] | None = None,
        namespace: Namespace | None = None,
        everything: bool = False,
    ) -> Cleared:
        return self.admin.clear(tokens, tiers=tiers, namespace=namespace, everything=everything)

    def freeze(self, frozen: bool = True) -> None:
        self.admin.freeze(frozen)

    def flush(self, seconds: float | None = None) -> bool:
        return self.admin.flush(seconds)

    def health(self) -> Health:
        return self.admin.health()

    def _prompt(
        self, tokens: Tokens, namespace: Namespace | None, deadline: Deadline | None = None
    ) -> Prompt:
        return self._naming.prompt(tokens, namespace, deadline)

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)


if TYPE_CHECKING:

    def _is_a_cache(engine: CacheEngine) -> PrefixCache:
        return engine
