"""The cache engine: what a serving engine's adapter talks to.

Whatever a tier does, a call on the serving path answers: with less than was hoped for, but
never with an exception of a tier and never with KV of something else. Only a request that
means nothing (:class:`~hexkv.ports.InvalidRequest`) and a call after :meth:`close` raise.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from types import TracebackType
from typing import Self

from hexkv.core.chunking import PrefixChunker
from hexkv.core.copying import Copier
from hexkv.core.keys import SHA256, HashAlgorithm
from hexkv.core.loading import Pace, load_prefix
from hexkv.core.prompts import Namer, Prompt
from hexkv.core.requests import check_window, skipped
from hexkv.core.results import Health, Lookup, Retrieved, StoreReport, TierHealth
from hexkv.core.stack import TierStack
from hexkv.core.storing import Storing
from hexkv.core.tokens import Tokens
from hexkv.ports import (
    ConfigError,
    Counter,
    Deadline,
    DeviceKV,
    EngineClosed,
    Histogram,
    LayoutMismatch,
    Namespace,
)

log = logging.getLogger("hexkv")

WINDOW = 16
"""Chunks that one call holds blocks for at a time, at most."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long calls wait at most, in seconds."""

    lookup: float = 1.0
    retrieve: float = 10.0
    store: float = 30.0
    close: float = 30.0


class CacheEngine:
    """Stores, finds and gives back KV. Safe from any thread; a context manager."""

    def __init__(
        self,
        namespace: Namespace,
        stack: TierStack,
        chunker: PrefixChunker,
        *,
        algorithm: HashAlgorithm = SHA256,
        deadlines: Deadlines = Deadlines(),
    ) -> None:
        """Take over *stack* and its pool, and learn what its tiers hold.

        Args:
            namespace: of the calls that give none of their own.
            stack: closed by :meth:`close`.
            chunker: how prompts are cut. Prefixes are what is reused, so no other kind fits.
            algorithm: names chunks; part of every namespace's identity.
            deadlines: of each kind of call.

        Raises:
            ConfigError: a chunk does not fit the pool's blocks, or *namespace* no header.
        """
        if not stack.runtime.pool.fits(namespace.layout.chunk_bytes(chunker.size)):
            raise ConfigError(
                f"a chunk of {chunker.size} tokens does not fit a block of the pool "
                f"({stack.runtime.pool.slot_bytes} bytes)"
            )
        self.namespace = namespace
        self._stack = stack
        self._pool = stack.runtime.pool
        self._clock = stack.runtime.clock
        self._telemetry = stack.runtime.telemetry
        self._executor = stack.runtime.executor
        self._deadlines = deadlines
        self._chunk_tokens = chunker.size
        self._namer = Namer(chunker, algorithm)
        self._copier = Copier()
        self._pace = Pace.of(self._pool)
        self._frozen = False
        self._state = "open"
        self._active = 0
        self._idle = Condition()
        self._calls = 0
        self._pool.reclaim = stack.make_room
        self._namer.keyer(namespace)

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
                self._stack.pin(pin, prompt.keys[: len(found)])
            tiers: Tally[str] = Tally()
            for i, tier in enumerate(found):
                tiers[tier.name] += prompt.tokens(i)
            hit = prompt.ends[len(found) - 1] if found else 0
            return Lookup(prompt.length, hit, dict(tiers))

    def retrieve(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        mask: Sequence[bool] | None = None,
        namespace: Namespace | None = None,
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

    def pin(self, tokens: Tokens, owner: str, *, namespace: Namespace | None = None) -> int:
        """Keep the stored prefix of *tokens* from eviction for *owner*. How many tokens it has.

        Raises:
            InvalidTokens, LayoutMismatch, EngineClosed
        """
        return self.lookup(tokens, pin=owner, namespace=namespace).hit_tokens

    def unpin(self, owner: str) -> int:
        """Let go of everything pinned for *owner*. How many pins there were, over all tiers."""
        with self._call():
            return self._stack.unpin(owner)

    def freeze(self, frozen: bool = True) -> None:
        """While frozen, nothing is stored: what is cached stays as it is."""
        with self._call():
            self._frozen = frozen

    def clear(
        self,
        tokens: Tokens | None = None,
        *,
        tiers: Sequence[str] | None = None,
        namespace: Namespace | None = None,
    ) -> int:
        """Delete the chunks of a prompt, or everything that the engine's index knows.

        Pins do not protect against this. Returns how many distinct chunks went.

        Raises:
            InvalidRequest: there is no such tier.
            InvalidTokens, LayoutMismatch, EngineClosed
        """
        with self._call():
            chosen = self._stack.named(tiers)
            deadline = self._until(self._deadlines.store)
            if tokens is not None:
                keys = self._prompt(tokens, namespace).keys
                return self._stack.forget(keys, chosen, deadline)
            gone = 0
            for tier in chosen:
                if tier.index is not None:
                    gone += self._stack.forget(tier.index.keys(), [tier], deadline)
            return gone

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything queued is written. Whether that came within *seconds*."""
        with self._call():
            return self._stack.flush(
                self._until(self._deadlines.store if seconds is None else seconds)
            )

    def health(self) -> Health:
        """The state of the engine and its tiers. Also after :meth:`close`."""
        pins: Tally[str] = Tally()
        tiers = []
        for tier in self._stack.tiers:
            index = tier.index
            if index is not None:
                pins.update(index.pinned)
            tiers.append(
                TierHealth(
                    name=tier.name,
                    chunks=None if index is None else len(index),
                    used_bytes=None if index is None else index.used,
                    budget_bytes=None if index is None else index.budget,
                    failures=tier.failures,
                )
            )
        return Health(
            state=self._state,
            frozen=self._frozen,
            tiers=tuple(tiers),
            pool_bytes=self._pool.capacity,
            pool_held_bytes=self._pool.held_bytes,
            leases=self._pool.ledger(),
            pins=dict(pins),
        )

    def close(self) -> None:
        """Refuse new calls, wait for those under way, close the tiers, free the pool.

        Always returns: calls that outlive the deadline keep their memory, and are logged.
        Calling it twice is allowed.
        """
        with self._idle:
            if self._state == "closed":
                return
            self._state = "closing"
            until = self._until(self._deadlines.close)
            self._executor.wait(self._idle, lambda: not self._active, until)
            if self._state != "closing":
                return
            self._state = "closed"
        self._copier.reap(until)
        self._stack.flush(until)
        self._stack.close()
        if left := self._pool.close():
            log.error("closed with leases left, their memory stays allocated: %s", left)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prompt(self, tokens: Tokens, namespace: Namespace | None) -> Prompt:
        namespace = namespace or self.namespace
        if not self._pool.fits(namespace.layout.chunk_bytes(self._chunk_tokens)):
            raise LayoutMismatch(
                f"a chunk of {namespace.layout.describe()} is larger than the pool's blocks"
            )
        return self._namer.name(tokens, namespace)

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)

    @contextmanager
    def _call(self) -> Iterator[str]:
        """Count a call in and out; gives the name under which it leases and pins."""
        with self._idle:
            if self._state != "open":
                raise EngineClosed("the engine was closed")
            self._active += 1
            self._calls += 1
            owner = f"call-{self._calls}"
        self._copier.reap(Deadline(self._clock, 0.0))
        try:
            yield owner
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()
