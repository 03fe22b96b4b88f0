"""The cache engine: what a serving engine's adapter talks to.

Whatever a tier does, a call on the serving path answers: with less than was hoped for, but
never with an exception of a tier and never with KV of something else. Only a request that
means nothing (:class:`~hexkv.ports.InvalidRequest`) and a call after ``close`` raise.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter

from hexkv.core.engine.admin import Maintained
from hexkv.core.engine.state import Deadlines
from hexkv.core.keys.prompts import Prompt
from hexkv.core.keys.tokens import Tokens
from hexkv.core.requests.checks import check_window, skipped
from hexkv.core.requests.layers import LayeredRetrieve, LayeredStore, Patience
from hexkv.core.requests.retrieve import Arrived, load_prefix
from hexkv.core.requests.store import Kept, Storing
from hexkv.ports import Counter, DeviceKV, Histogram, Lookup, Namespace, Retrieved, StoreReport

__all__ = ["CacheEngine", "Deadlines"]


class CacheEngine(Maintained):
    """Stores, finds and gives back KV. Safe from any thread; a context manager."""

    def lookup(
        self, tokens: Tokens, *, pin: str | None = None, namespace: Namespace | None = None
    ) -> Lookup:
        """How long a prefix of *tokens* the tiers hold, without loading any of it.

        A hint: what another thread evicts meanwhile is not loaded later. With *pin* the
        chunks are pinned for that owner until :meth:`unpin`.

        Raises:
            InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._call():
            prompt = self._prompt(tokens, namespace)
            found = self._stack.offer(prompt.keys, self._until(self._deadlines.lookup))
            if pin is not None:
                self._pin(pin, prompt.keys[: len(found)], None)
            tiers: Tally[str] = Tally()
            start = 0
            for name, run in groupby(found, key=attrgetter("name")):
                end = start + len(list(run))
                tiers[name] += prompt.ends[end - 1] - prompt.starts[start]
                start = end
            hit = prompt.ends[start - 1] if found else 0
            return Lookup(prompt.length, hit, dict(tiers))

    def prefetch(
        self, lookup_id: str, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> int | None:
        """Begin to load what the tiers hold of *tokens*, for a retrieve with this *lookup_id*.

        Never blocks. Asking again under one id starts nothing new. What no retrieve picks
        up is given back after a time, or by :meth:`cancel`.

        Returns:
            how many tokens the tiers hold from the beginning; ``None`` while a store that
            has to be asked has not answered: ask again later.

        Raises:
            InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._call():
            prompt = self._prompt(tokens, namespace)
            read = self._until(self._deadlines.retrieve)
            return self._prefetches.begin(lookup_id, prompt, read)

    def cancel(self, lookup_id: str) -> bool:
        """Give back what a prefetch loaded. Whether there was one of that id."""
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
        """Load the longest prefix that really arrives into *device*.

        Args:
            tokens: the prompt.
            device: a window on as many positions as there are tokens.
            skip: tokens at the front whose KV the device holds already. Rounded down to a
                chunk, so the device may be given the same KV again for a few positions; a
                paged window protects pages that others share by mapping them to no slot.
            mask: the same as booleans, one per token: ``False`` for the first *skip*.
            namespace: of this request, where it is not the engine's own.
            lookup_id: of the prefetch that began to load this prompt.

        Raises:
            InvalidRequest, InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._call() as owner:
            prompt = self._prompt(tokens, namespace)
            check_window(device, prompt.layout, prompt.length)
            skip = skipped(skip, mask, prompt.length)
            start = self._clock.now()
            prompt = prompt.since(skip)
            got = load_prefix(
                self._stack,
                self._copier,
                prompt,
                device,
                pace=self._pace,
                owner=owner,
                deadline=self._until(self._deadlines.retrieve),
                ready=self._prefetches.take(lookup_id) if lookup_id is not None else None,
            )
            return self._retrieved(prompt, skip, got, self._clock.now() - start)

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
    ) -> Iterator[LayeredRetrieve]:
        """A context that loads like :meth:`retrieve`, layer by layer in order.

        Iterating over what it gives brings one layer of all chunks after the other into
        *device*, while the next ones are being read; every layer comes, also when nothing
        was found. Arguments as for :meth:`retrieve`. Leaving the context early frees
        everything, and counts nothing.

        Raises:
            InvalidRequest, InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._call() as owner:
            prompt = self._prompt(tokens, namespace)
            check_window(device, prompt.layout, prompt.length)
            skip = skipped(skip, mask, prompt.length)
            prompt = prompt.since(skip)
            patience = Patience(self._clock, self._deadlines.retrieve)
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
                report=lambda got: self._retrieved(prompt, skip, got, patience.spent),
            )
            try:
                layers.begin()
                yield layers
            finally:
                layers.close()

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
        """Keep the KV of *tokens*: copy what no tier holds from *device*, and write it.

        When this returns, what the report calls stored is readable from the tiers that it
        names. Arguments as for :meth:`retrieve`; chunks wholly before *skip* are left out.
        Without *wait* the slower tiers are written after the call: what only they take is
        reported as queued, and :meth:`flush` waits for it.

        Raises:
            InvalidRequest, InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._call() as owner:
            prompt = self._prompt(tokens, namespace)
            check_window(device, prompt.layout, prompt.length)
            skip = skipped(skip, mask, prompt.length)
            if self._frozen:
                return StoreReport(prompt.length, frozen=True)
            start = self._clock.now()
            storing = Storing(
                self._stack,
                self._copier,
                device,
                pace=self._pace,
                owner=owner,
                deadline=self._until(self._deadlines.store),
                wait=wait,
            )
            kept = storing.run(prompt.since(skip))
            return self._stored(prompt, kept, self._clock.now() - start)

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
    ) -> Iterator[LayeredStore]:
        """A context that stores like :meth:`store`, each layer when the host says that it is done.

        What does not find room in the pool for all layers at once is dropped, from the end.
        Nothing is on a tier before the result was asked for, after the last layer: leaving
        the context early stores nothing, and frees everything. Arguments as for :meth:`store`.

        Raises:
            InvalidRequest, InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._call() as owner:
            whole = self._prompt(tokens, namespace)
            check_window(device, whole.layout, whole.length)
            prompt = whole.since(skipped(skip, mask, whole.length))
            frozen = self._frozen
            patience = Patience(self._clock, self._deadlines.store)
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
                    deadline=self._until(self._deadlines.store),
                    wait=wait,
                ),
                pace=self._pace,
                owner=owner,
                patience=patience,
                hosts=self._hosts,
                report=lambda kept: (
                    StoreReport(prompt.length, frozen=True)
                    if frozen
                    else self._stored(prompt, kept, patience.spent)
                ),
            )
            try:
                layers.begin()
                yield layers
            finally:
                layers.close()

    def _retrieved(self, prompt: Prompt, skip: int, got: Arrived, seconds: float) -> Retrieved:
        """Count what a retrieve brought, and say so."""
        count = self._telemetry.count
        count(Counter.LOOKUPS, len(prompt))
        for tier, chunks in got.by_tier.items():
            count(Counter.HITS, chunks, tier=tier)
        for reason, chunks in got.misses.items():
            count(Counter.MISSES, chunks, reason=reason)
        self._telemetry.observe(Histogram.RETRIEVE, seconds)
        return Retrieved(
            tokens=prompt.length,
            hit_tokens=max(skip, prompt.ends[got.chunks - 1]) if got.chunks else skip,
            loaded_tokens=sum(got.tokens.values()),
            loaded_bytes=got.size,
            tiers=dict(got.tokens),
            misses=got.misses,
        )

    def _stored(self, prompt: Prompt, kept: Kept, seconds: float) -> StoreReport:
        """Count what a store kept, and say so."""
        self._telemetry.count(Counter.PRESENT, kept.present_chunks)
        self._telemetry.observe(Histogram.STORE, seconds)
        return StoreReport(
            tokens=prompt.length,
            stored_tokens=kept.stored,
            present_tokens=kept.present,
            queued_tokens=kept.queued,
            dropped_tokens=kept.dropped,
            stored_bytes=kept.size,
            tiers=dict(kept.tiers),
        )
