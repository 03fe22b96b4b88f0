"""An engine's life: how it is built, counts its calls, says how it is, and ends."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from threading import Condition, RLock
from types import TracebackType
from typing import Self
from weakref import finalize, ref

from hexkv.core.engine.door import Door
from hexkv.core.engine.ending import Ending
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256
from hexkv.core.keys.prompts import Namer, Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pace import Pace
from hexkv.core.requests.checks import check_namespace, check_seconds
from hexkv.core.requests.layers import Hosts
from hexkv.core.requests.prefetch import Prefetches, PrefetchRules
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.tenants import Tenant, TenantsBySalt
from hexkv.ports import (
    ConfigError,
    Deadline,
    EngineClosed,
    HashFunction,
    Health,
    LayoutMismatch,
    Namespace,
    Telemetry,
    TierHealth,
    Tokens,
)

LONGEST_PROMPT = 1 << 24
"""Tokens: more than any model takes, and named in a second or two."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long calls wait at most, in seconds."""

    lookup: float = 1.0
    retrieve: float = 10.0
    store: float = 30.0
    close: float = 30.0
    pin: float = 600.0
    """After which a pin that nobody ended is taken for one of a vanished owner."""


class _Life:
    """What only a call that is under way refers to."""

    __slots__ = ("__weakref__",)


class Lifecycle:
    """What every call of an engine stands on. Safe from any thread; a context manager."""

    def __init__(
        self,
        namespace: Namespace,
        stack: TierStack,
        chunker: PrefixChunker,
        *,
        algorithm: HashFunction = SHA256,
        seeded: bool = True,
        longest: int = LONGEST_PROMPT,
        deadlines: Deadlines = Deadlines(),
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
        self._stack = stack
        self._pool = stack.runtime.pool
        self._clock = stack.runtime.clock
        self._telemetry = stack.runtime.telemetry
        self._executor = stack.runtime.executor
        self._deadlines = deadlines
        self._chunk_tokens = chunker.size
        self._door = Door()
        by_salt = TenantsBySalt(tenants)
        # Not methods of the engine: what outlives it must not keep it.
        self._namer = Namer(
            chunker, algorithm, partial(_meet, stack, by_salt), seeded=seeded, longest=longest
        )
        self._copier = Copier()
        self._pace = Pace.of(self._pool)
        self._prefetches = Prefetches(stack, prefetch)
        self._hosts = Hosts()
        self._frozen = False
        self._state = "open"
        # Entered itself, not by the condition: no signal comes between it and the body.
        self._lock = RLock()
        self._idle = Condition(self._lock)
        self._numbers = count(1)
        self._calls: dict[str, ref[_Life]] = {}
        self._pool.reclaim = partial(_make_room, stack, self._prefetches)
        stack.patience = deadlines.lookup
        for salt in (namespace.salt, *(tenant.salt for tenant in tenants)):
            self._namer.keyer(replace(namespace, salt=salt))
        self._ending = Ending(
            stack, self._prefetches, self._copier, self._door.home, deadlines.close
        )
        self._dropped = finalize(self, self._ending.abandoned)
        # A process that ends takes its threads along; what it leaves is as after a crash.
        self._dropped.atexit = False

    @property
    def telemetry(self) -> Telemetry:
        self._door.home.check()
        return self._telemetry

    def freeze(self, frozen: bool = True) -> None:
        with self._call():
            self._frozen = frozen

    def flush(self, seconds: float | None = None) -> bool:
        seconds = self._deadlines.store if seconds is None else check_seconds(seconds)
        with self._call():
            return self._stack.flush(self._until(seconds))

    def health(self) -> Health:
        with self._door.passing():
            return self._health()

    def close(self) -> None:
        if self._door.home.left:
            return
        if self._door.inside and self._state == "open":
            self._state = "closing"  # no new calls, though this one has to end first
        self._door.give_back(self._close)

    def _health(self) -> Health:
        pins: Tally[str] = Tally()
        tiers = []
        for tier in self._stack.tiers:
            index = tier.index
            reading, writing = tier.breakers
            pins.update(index.pinned)
            tiers.append(
                TierHealth(
                    name=tier.name,
                    chunks=len(index) if index.decides else None,
                    used_bytes=index.used if index.decides else None,
                    budget_bytes=index.budget,
                    failures=tier.failures,
                    reading=reading,
                    writing=writing,
                    queued_bytes=sum(lane.pending_bytes for lane in tier.lanes),
                    indexing=tier.indexing,
                    tenants=index.used_by(),
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
            pin_seconds=self._stack.pins.seconds(),
            prefetches=len(self._prefetches),
        )

    def _close(self) -> None:
        with self._lock:
            if self._state == "closed":
                return
            self._state = "closing"
            until = self._until(self._deadlines.close)
            self._sweep()
            self._executor.wait(self._idle, lambda: not self._calls, until)
            if self._state != "closing":
                return
            self._state = "closed"
        self._dropped.detach()
        self._ending.run(until)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prompt(
        self, tokens: Tokens, namespace: Namespace | None, deadline: Deadline | None = None
    ) -> Prompt:
        namespace = self.namespace if namespace is None else namespace
        check_namespace(namespace)
        if not self._pool.fits(namespace.layout.chunk_bytes(self._chunk_tokens)):
            raise LayoutMismatch(
                f"a chunk of {namespace.layout.describe()} is larger than the pool's blocks"
            )
        return self._namer.name(tokens, namespace, deadline)

    def _prefix(self, namespace: Namespace) -> bytes:
        """How every key of *namespace* begins."""
        check_namespace(namespace)
        return self._namer.keyer(namespace).prefix

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)

    @contextmanager
    def _call(self) -> Iterator[str]:
        """A call from its beginning to its end; gives the name under which it leases and pins."""
        caller = self._door.enter()
        try:
            with caller.inside:
                life = _Life()
                owner = self._begin(life)
                try:
                    self._tidy()
                    yield owner
                finally:
                    self._end(owner)
        finally:
            if caller.later:
                self._door.leave(caller)

    @contextmanager
    def _call_in_steps(self) -> Iterator[str]:
        """Likewise one whose steps come in by the door one by one, with the caller's between."""
        life = _Life()
        with self._door.passing():
            owner = self._begin(life)
        try:
            with self._door.passing():
                self._tidy()
            yield owner
        finally:
            self._door.give_back(partial(self._end, owner))

    def _begin(self, life: _Life) -> str:
        """Count a call in, under the name that it gets.

        Whatever is held in that name is given back at its end. If an exception out of
        nowhere keeps that from happening, the next call does it: it sees that this one's
        life is gone.
        """
        self._sweep()
        with self._lock:
            if self._state != "open":
                raise EngineClosed("the engine was closed")
            owner = f"call-{next(self._numbers)}"
            self._calls[owner] = ref(life)
        return owner

    def _tidy(self) -> None:
        """Give back what is late or past its time."""
        self._copier.reap(Deadline(self._clock, 0.0))
        self._prefetches.reap()
        self._stack.pins.expire()

    def _end(self, owner: str) -> None:
        """A call is over: take back what it still holds."""
        if self._door.home.left:
            return
        self._copier.left(owner)
        self._pool.sweep(owner)
        self._stack.end(owner)
        with self._lock:
            self._calls.pop(owner, None)
            self._idle.notify_all()

    def _sweep(self) -> None:
        """End the calls that are gone without having come to their end."""
        for owner, life in list(self._calls.items()):
            if life() is None:
                self._end(owner)


def _meet(stack: TierStack, tenants: TenantsBySalt, space: Namespace, prefix: bytes) -> None:
    stack.assign(prefix, tenants.name(space.salt))


def _make_room(stack: TierStack, prefetches: Prefetches, size: int) -> bool:
    """The pool's reclaim: what nobody picked up goes first, then what memory can spare."""
    return prefetches.reap() or stack.make_room(size)
