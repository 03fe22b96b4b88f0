"""The cache engine, which the adapter of a serving engine calls.

A call on the serving path returns even if tiers fail: with fewer hits, but never with an exception
of a tier and never with KV of other tokens. Only an invalid request
(:class:`~hexkv.ports.InvalidRequest`) and a call after ``close`` raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Self

from hexkv.core.admin.explain import ELSEWHERE, Explanation, explain
from hexkv.core.engine.beside import EngineParts
from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.engine.guarded import GuardedRead, GuardedWrite
from hexkv.core.engine.keyed import KeyedCache
from hexkv.core.engine.lookups import Lookups
from hexkv.core.engine.naming import Naming, meet
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256, segment_prefix
from hexkv.core.keys.prompts import LONGEST_PROMPT, ChunkHasher
from hexkv.core.requests.accounts import Accounts, Laps
from hexkv.core.requests.checks import check_window, deadline_of, skipped, timeout_or
from hexkv.core.requests.first_chunks import FirstChunks
from hexkv.core.requests.layers.limits import TimeBudget
from hexkv.core.requests.layers.retrieve import LayeredRetrieve
from hexkv.core.requests.layers.store import LayeredStore
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.prefetch import AT_ONCE
from hexkv.core.requests.request import PromptRequest
from hexkv.core.requests.retrieve import Loading
from hexkv.core.requests.store import Storing
from hexkv.core.runtime import Stretch, no_pause
from hexkv.core.tiers.index.tenants import Tenant, TenantsBySalt
from hexkv.ports import (
    Administration,
    Announcing,
    ChunkCache,
    ChunkKey,
    Cleared,
    ConfigError,
    Deadline,
    DeviceKV,
    HashFunction,
    Health,
    InvalidRequest,
    KeySpace,
    LayeredRead,
    LayeredWrite,
    Lookup,
    Namespace,
    PromptSink,
    Retrieved,
    StoreReport,
    Telemetry,
    Tokens,
    TraceStep,
)

__all__ = ["CacheEngine", "Deadlines"]


class CacheEngine:
    """Stores, finds and loads KV. Safe from any thread; a context manager.

    Derives the keys of tokens, and leaves the rest to the requests below.
    """

    def __init__(  # noqa: PLR0913
        self,
        namespace: Namespace,
        requests: Pipeline,
        chunker: PrefixChunker,
        *,
        algorithm: HashFunction = SHA256,
        seeded: bool = True,
        longest: int = LONGEST_PROMPT,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        tenants: Sequence[Tenant] = (),
        sink: PromptSink | None = None,
        administer: Callable[[Calls], Administration] | str = ELSEWHERE,
        segments: Callable[[EngineParts], object] | None = None,
    ) -> None:
        """Build an engine.

        Args:
            namespace: of the calls without one of their own.
            requests: the pipeline and all that it has, closed by :meth:`close`.
            chunker: cuts prompts. Only prefixes are reused, so no other kind fits.
            algorithm: names chunks; part of every namespace's identity.
            seeded: False names chunks by tokens alone, as hosts do that hash their pages.
            longest: the most tokens of a prompt.
            deadlines: of each kind of call.
            tenants: kept apart in tiers that have a divided index.
            sink: receives the tokens of each prompt.
            administer: returns the administration, in calls of the engine; or why there is none.
            segments: builds the cache of segments beside this one.

        Raises:
            ConfigError: a chunk does not fit the memory, or *namespace* no header.
        """
        if not requests.chunks.fits(size := namespace.layout.chunk_bytes(chunker.size)):
            raise ConfigError(
                f"a chunk of {chunker.size} tokens ({size} bytes) does not fit a block of the pool"
            )
        self.namespace = namespace
        self._requests = requests
        self._chunks = chunks = requests.chunks
        self.computes, self.why_absent = chunks.computes, chunks.why_absent
        self._clock = requests.runtime.clock
        self._accounts = Accounts(requests.runtime)
        self._deadlines = deadlines
        self._prefixes: set[bytes] = set()
        # No method of the engine: objects that outlive it must not keep it.
        beside = partial(segment_prefix, tokens=chunker.size, algorithm=algorithm)
        start = partial(meet, chunks, TenantsBySalt(tenants), self._prefixes, beside)
        namer = partial(ChunkHasher, chunker, algorithm, seeded=seeded, longest=longest, sink=sink)
        self._naming = Naming(namespace, namer, chunks, chunker, beside, start)
        self._first = FirstChunks(requests, chunker.size)
        self._lookups = Lookups(self._naming, requests, self._accounts, deadlines)
        for tenant in tenants:
            self._naming.keyer(replace(namespace, salt=tenant.salt))
        self._naming.keyer(namespace)
        self._calls = Calls(requests, deadlines.close)
        self._door = self._calls.door
        self.chunks: ChunkCache = KeyedCache(requests, self._calls, deadlines.pin)
        parts = EngineParts(self._naming, requests, self._calls, deadlines, chunker.size, algorithm)
        self.segments = segments and segments(parts)
        self._admin = administer if isinstance(administer, str) else administer(self._calls)

    @property
    def admin(self) -> Administration:
        """The operators' calls, by key, as they are served to other processes.

        Raises:
            InvalidRequest: the tiers belong to another process, or administration is missing.
        """
        if isinstance(self._admin, str):
            raise InvalidRequest(self._admin)
        return self._admin

    def explain(self, tokens: Tokens, *, namespace: Namespace | None = None) -> Explanation:
        """Return where the hits of *tokens* end, and why, tier by tier. Loads and changes nothing.

        Names other namespaces of this engine that hold the same tokens, and the fields in
        which they differ: for operators, not for one tenant among several. Not over a node.
        """
        with self._calls.call():
            until = Deadline.after(self._clock, self._deadlines.lookup)
            prompt = self._naming.prompt(tokens, namespace, until)
            return explain(self._chunks, prompt, tokens, self._naming.keyers(), until)

    @property
    def telemetry(self) -> Telemetry:
        self._door.home.check()
        return self._requests.runtime.telemetry

    def at_close(self, work: Callable[[], None]) -> None:
        """Do *work*, which never raises or refers to the engine, before its tiers close."""
        self._calls.at_close(work)

    @property
    def announcing(self) -> Announcing | None:
        self._door.home.check()
        return self._chunks if isinstance(self._chunks, Announcing) else None

    def close(self) -> None:
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def key_space(self, namespace: Namespace | None = None) -> KeySpace:
        with self._door.passing():
            return self._naming.key_space(namespace)

    def chunk_keys(
        self, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> Sequence[ChunkKey]:
        with self._calls.call():
            return list(self._naming.prompt(tokens, namespace).keys)

    def lookup(
        self,
        tokens: Tokens,
        *,
        pin: str | None = None,
        namespace: Namespace | None = None,
        timeout: float | None = None,
    ) -> Lookup:
        return self._calls.do(
            lambda _: self._lookups.look(tokens, namespace, timeout, pin), holds=False
        )

    def lookup_many(
        self,
        prompts: Sequence[Tokens],
        *,
        namespace: Namespace | None = None,
        timeout: float | None = None,
    ) -> Sequence[Lookup]:
        with self._calls.call():
            return self._lookups.look_many(prompts, namespace, timeout)

    def prefetch(
        self, lookup_id: str, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> int | None:
        with self._calls.call():
            read = Deadline.after(self._clock, self._deadlines.retrieve)
            soon = Deadline.after(self._clock, AT_ONCE)
            name = partial(self._naming.prompt, tokens, namespace, soon)
            return self._requests.prefetches.begin(lookup_id, name, read)

    def cancel(self, lookup_id: str) -> bool:
        with self._calls.call():
            return self._requests.prefetches.cancel(lookup_id)

    def retrieve(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
        timeout: float | None = None,
    ) -> Retrieved:
        def retrieve(owner: str) -> Retrieved:
            laps = Laps(self._clock)
            until = deadline_of(self._clock, laps.begun, timeout, self._deadlines.retrieve)
            ahead, begun, count = self._first, None, getattr(device, "tokens", None)
            if type(count) is int and count > ahead.longer:
                front = partial(self._naming.first, tokens, namespace, skip, until)
                whole = partial(self._naming.prompt, tokens, namespace, until)
                prompt, begun = ahead.begin(front, whole, device, owner, laps, lookup_id, until)
            else:
                prompt = self._naming.prompt(tokens, namespace, until)
                check_window(device, prompt.layout, prompt.length)
            if first := skipped(skip, prompt.length):
                prompt = prompt.since(first)
            laps.mark(("name", "", laps.now()))
            request = PromptRequest(prompt, device, owner, laps, lookup_id)
            got = Loading(self._requests, request, until, begun).run()
            spent = laps.end(self._requests.runtime.steps, "retrieve", owner, prompt.keys)
            return self._accounts.retrieved(prompt, first, got, spent, lookup_id)

        return self._calls.do(retrieve)

    @contextmanager
    def retrieve_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[LayeredRead]:
        with self._calls.in_steps() as owner, ExitStack() as held:
            with self._door.passing():
                patience = TimeBudget(self._clock, self._deadlines.retrieve, timeout)
                prompt, skip = self._naming.in_steps(tokens, device, skip, namespace, patience)
                layers = LayeredRetrieve(
                    self._requests,
                    PromptRequest(prompt, device, owner, Laps(self._clock), lookup_id),
                    patience,
                    lambda got: self._accounts.retrieved(
                        prompt, skip, got, patience.so_far(), lookup_id
                    ),
                    skip=skip,
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
        namespace: Namespace | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> StoreReport:
        def store(owner: str) -> StoreReport:
            laps = Laps(self._clock)
            pause = no_pause if wait else Stretch(self._requests.runtime).pause
            until = deadline_of(self._clock, laps.begun, timeout, self._deadlines.store)
            prompt = self._naming.prompt(tokens, namespace, until, pause)
            check_window(device, prompt.layout, prompt.length)
            first = skipped(skip, prompt.length)
            if self._calls.frozen:
                return StoreReport(prompt.length, frozen=True)
            if first:
                prompt = prompt.since(first)
            laps.mark(("name", "", laps.now()))
            pause()
            request = PromptRequest(prompt, device, owner, laps)
            kept = Storing(self._requests, request, until, wait=wait, pause=pause).run(prompt)
            pause()
            spent = laps.end(self._requests.runtime.steps, "store", owner, prompt.keys)
            return self._accounts.stored(prompt, kept, spent)

        return self._calls.do(store)

    @contextmanager
    def store_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Iterator[LayeredWrite]:
        with self._calls.in_steps() as owner, ExitStack() as held:
            with self._door.passing():
                patience = TimeBudget(self._clock, self._deadlines.store, timeout)
                prompt, _ = self._naming.in_steps(tokens, device, skip, namespace, patience)
                chosen = prompt.part(0, 0) if (frozen := self._calls.frozen) else prompt
                layers = LayeredStore(
                    self._requests,
                    PromptRequest(chosen, device, owner, Laps(self._clock)),
                    patience,
                    lambda kept: (
                        StoreReport(prompt.length, frozen=True)
                        if frozen
                        else self._accounts.stored(prompt, kept, patience.so_far())
                    ),
                    wait=wait,
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
        seconds = timeout_or(seconds, self._deadlines.pin)
        with self._calls.call():
            found = self._lookups.kept(tokens, namespace)
            self._chunks.pin(owner, found.found.keys, seconds)
            return found.tokens

    def unpin(self, owner: str) -> int:
        with self._calls.call():
            return self._chunks.unpin(owner)

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
            until = Deadline.after(self._clock, self._deadlines.store)
            if tokens is not None:
                prompt = self._naming.prompt(tokens, namespace, until)
                return self._requests.forget(prompt, tiers, until)
            if everything:
                return self._chunks.clear(None, tiers, until)
            if namespace is not None:
                return self._chunks.clear(self._naming.prefixes(namespace), tiers, until)
            return self._chunks.clear(frozenset(self._prefixes), tiers, until)

    def freeze(self, frozen: bool = True, why: str = "") -> None:
        with self._calls.call():
            self._calls.frozen, self._calls.why = frozen, why

    def flush(self, seconds: float | None = None) -> bool:
        seconds = timeout_or(seconds, self._deadlines.store)
        with self._calls.call():
            return self._chunks.flush(Deadline.after(self._clock, seconds))

    def steps(self) -> Sequence[TraceStep]:
        """Return the last steps; see :meth:`hexkv.ports.Administration.steps`."""
        self._door.home.check()
        return self._requests.runtime.steps.steps()

    def health(self) -> Health:
        return self._calls.health(self._deadlines.lookup)
