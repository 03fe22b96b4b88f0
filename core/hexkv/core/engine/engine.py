"""The cache engine: what a serving engine's adapter talks to.

Whatever a tier does, a call on the serving path answers: with less than was hoped for, but
never with an exception of a tier and never with KV of something else. Only a request that
means nothing (:class:`~hexkv.ports.InvalidRequest`) and a call after ``close`` raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from hexkv.core.engine.admin import Maintained
from hexkv.core.engine.guarded import GuardedRead, GuardedWrite
from hexkv.core.engine.keyed import KeyedCache
from hexkv.core.engine.state import Deadlines
from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.checks import check_namespace, check_window, skipped
from hexkv.core.requests.layers import LayeredRetrieve, LayeredStore, Patience
from hexkv.core.requests.reports import retrieved, stored
from hexkv.core.requests.retrieve import load_prefix
from hexkv.core.requests.store import Storing
from hexkv.ports import (
    ChunkCache,
    Deadline,
    DeviceKV,
    KeySpace,
    LayeredRead,
    LayeredWrite,
    Lookup,
    Namespace,
    PrefixCache,
    Retrieved,
    StoreReport,
    Tokens,
)

__all__ = ["CacheEngine", "Deadlines"]

_AT_ONCE = 0.02
"""Seconds that a prefetch may take to name its prompt, in its caller's thread: enough for about a
million tokens in chunks of 256. One that takes longer is not begun; its retrieve reads it all."""


class CacheEngine(Maintained):
    """Stores, finds and gives back KV. Safe from any thread; a context manager."""

    @property
    def chunks(self) -> ChunkCache:
        return KeyedCache(
            self._stack,
            self._copier,
            self._pace,
            self._call,
            self._door,
            lambda: self._frozen,
            self._deadlines.pin,
        )

    def key_space(self, namespace: Namespace | None = None) -> KeySpace:
        namespace = self.namespace if namespace is None else namespace
        check_namespace(namespace)
        with self._door.passing():
            keyer = self._namer.keyer(namespace)
            return KeySpace(keyer.identity, keyer.prefix, namespace.layout)

    def lookup(
        self, tokens: Tokens, *, pin: str | None = None, namespace: Namespace | None = None
    ) -> Lookup:
        with self._call():
            until = self._until(self._deadlines.lookup)
            prompt = self._prompt(tokens, namespace, until)
            found = self._stack.offer(prompt.keys, until)
            if pin is not None:
                self._pin(pin, prompt.keys[: len(found)], None)
            tiers: dict[str, int] = {}
            start = 0
            for name, run in groupby(found, key=attrgetter("name")):
                end = start + len(list(run))
                tokens_here = prompt.ends[end - 1] - prompt.starts[start]
                tiers[name] = tiers.get(name, 0) + tokens_here
                start = end
            hit = prompt.ends[start - 1] if found else 0
            return Lookup(prompt.length, hit, tiers)

    def prefetch(
        self, lookup_id: str, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> int | None:
        with self._call():
            read = self._until(self._deadlines.retrieve)
            soon = self._until(_AT_ONCE)

            def name() -> Prompt:
                return self._prompt(tokens, namespace, soon)

            return self._prefetches.begin(lookup_id, name, read)

    def cancel(self, lookup_id: str) -> bool:
        with self._call():
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
        with self._call() as owner:
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
        with self._call_in_steps() as owner, ExitStack() as held:
            with self._door.passing():
                patience = Patience(self._clock, self._deadlines.retrieve)
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
        with self._call() as owner:
            start = self._clock.now()
            until = Deadline(self._clock, start + self._deadlines.store)
            prompt = self._prompt(tokens, namespace, until)
            check_window(device, prompt.layout, prompt.length)
            skip = skipped(skip, mask, prompt.length)
            if self._frozen:
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
        with self._call_in_steps() as owner, ExitStack() as held:
            with self._door.passing():
                patience = Patience(self._clock, self._deadlines.store)
                with patience.step() as until:
                    whole = self._prompt(tokens, namespace, until)
                check_window(device, whole.layout, whole.length)
                prompt = whole.since(skipped(skip, mask, whole.length))
                frozen = self._frozen
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


if TYPE_CHECKING:

    def _is_a_cache(engine: CacheEngine) -> PrefixCache:
        return engine
