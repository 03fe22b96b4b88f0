"""The cache engine: what a serving engine's adapter talks to.

Whatever a tier does, a call on the serving path answers: with less than was hoped for, but
never with an exception of a tier and never with KV of something else. Only a request that
means nothing (:class:`~hexkv.ports.InvalidRequest`) and a call after ``close`` raise.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence

from hexkv.core.lifecycle import Deadlines
from hexkv.core.loading import load_prefix
from hexkv.core.maintenance import Maintained
from hexkv.core.requests import check_window, skipped
from hexkv.core.results import Lookup, Retrieved, StoreReport
from hexkv.core.storing import Storing
from hexkv.core.tokens import Tokens
from hexkv.ports import Counter, DeviceKV, Histogram, Namespace

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
            found = self._stack.locate(prompt.keys, self._until(self._deadlines.lookup))
            if pin is not None:
                self._pin(pin, prompt.keys[: len(found)], None)
            tiers: Tally[str] = Tally()
            for i, tier in enumerate(found):
                tiers[tier.name] += prompt.tokens(i)
            hit = prompt.ends[len(found) - 1] if found else 0
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
            count = self._telemetry.count
            count(Counter.LOOKUPS, len(prompt))
            for tier, chunks in got.by_tier.items():
                count(Counter.HITS, chunks, tier=tier)
            for reason, chunks in got.misses.items():
                count(Counter.MISSES, chunks, reason=reason)
            self._telemetry.observe(Histogram.RETRIEVE, self._clock.now() - start)
            return Retrieved(
                tokens=prompt.length,
                hit_tokens=max(skip, prompt.ends[got.chunks - 1]) if got.chunks else skip,
                loaded_tokens=sum(got.tokens.values()),
                loaded_bytes=got.size,
                tiers=dict(got.tokens),
                misses=got.misses,
            )

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
            self._telemetry.count(Counter.PRESENT, kept.present_chunks)
            self._telemetry.observe(Histogram.STORE, self._clock.now() - start)
            return StoreReport(
                tokens=prompt.length,
                stored_tokens=kept.stored,
                present_tokens=kept.present,
                queued_tokens=kept.queued,
                dropped_tokens=kept.dropped,
                stored_bytes=kept.size,
                tiers=dict(kept.tiers),
            )
