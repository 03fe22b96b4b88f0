"""Pages by the names that SGLang gives them, on the cache by key of an engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock

from hexkv.adapters.sglang.pages.aside import Answer, Aside, Call
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.schema import Calls
from hexkv.ports import (
    DIGEST_BYTES,
    ChunkKey,
    ChunkSpec,
    Clock,
    CounterName,
    Deadline,
    DeviceKV,
    Hold,
    KeyedAccess,
    Namespace,
    Reason,
    Retrieved,
    StoreReport,
    Telemetry,
)

_SAVE_SECONDS = 5.0
"""Seconds after which a save is dropped. SGLang cannot use its slots for anything else before."""

_KEPT = 1024
"""Measurements that are kept until SGLang asks for them."""


@dataclass
class Traffic:
    """The traffic since the last :meth:`take`: pages, and GB/s, of each call."""

    pages: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, pages: int, size: int, seconds: float) -> None:
        """Count one call."""
        self.pages.append(pages)
        self.rates.append(size / 1e9 / max(seconds, 1e-9))

    def take(self) -> tuple[list[int], list[float]]:
        """Return everything, and begin again at zero."""
        taken = list(self.pages), list(self.rates)
        self.pages.clear()
        self.rates.clear()
        return taken


def digest_of_name(name: str) -> bytes:
    """The digest that SGLang's name of a page stands for: 64 hexadecimal digits, as a rule."""
    try:
        digest = bytes.fromhex(name)
    except ValueError:
        digest = b""
    return digest if len(digest) == DIGEST_BYTES else sha256(name.encode()).digest()


class PageStore:
    """Pages of one pool. Safe from any thread, as the engine is."""

    def __init__(
        self,
        engine: KeyedAccess,
        tokens: int,
        deadlines: Calls,
        namespace: Namespace | None = None,
        pieces: int = 1,
        clock: Clock | None = None,
        aside: Aside | None = None,
        before: Callable[[int], None] | None = None,
    ) -> None:
        """Put pages of *tokens* tokens on *engine*.

        Args:
            engine: its chains are unseeded, its chunks of *tokens* tokens.
            tokens: that go with a page.
            deadlines: of each kind of call.
            namespace: of this pool; by default the engine's.
            pieces: chunks for each page.
            clock: of the deadlines; by default the machine's.
            aside: where calls are made that the host may leave; by default on its thread.
            before: called before each search for a prefix, with its tokens.
        """
        self._before = before
        self.telemetry: Telemetry | None = None
        """Counts the pages that searches leave out."""

        self._engine = engine
        self._chunks = engine.chunks
        self._space = engine.key_space(namespace)
        self._tokens = tokens
        self._deadlines = deadlines
        self._pieces = pieces
        self._aside = aside
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = Lock()
        self._loaded, self._saved = Traffic(), Traffic()

    def keys(self, names: Sequence[str]) -> list[ChunkKey]:
        """The keys of the chunks of pages."""
        return self._space.keys(self._digests(names))

    def specs(self, names: Sequence[str]) -> list[ChunkSpec]:
        """The chunks of pages."""
        return self._space.specs(self._digests(names), self._tokens)

    def find(self, names: Sequence[str]) -> int:
        """The number of pages from the first one on that a tier would serve."""
        if self._before is not None:
            self._before(len(names) * self._tokens)
        there = self.present(names)
        if False not in there:
            return len(there)
        count = there.index(False)
        if self.telemetry is not None and self._left_out(names[count]):
            self._count(self.telemetry, names[count:])
        return count

    def present(self, names: Sequence[str]) -> list[bool]:
        """For every page, True if a tier holds it."""
        if not names:
            return []

        def match(_: Call | None) -> Sequence[str | None]:
            return self._chunks.match(self.keys(names), self._until(self._deadlines.lookup))

        nowhere: Sequence[str | None] = [None] * (len(names) * self._pieces)
        found = self._do(match, nowhere)
        if self._pieces == 1:
            return [tier is not None for tier in found]
        return [
            None not in found[start : start + self._pieces]
            for start in range(0, len(found), self._pieces)
        ]

    def _left_out(self, name: str) -> bool:
        """True if a tier holds a page that the model computes sooner."""
        return self._engine.why_absent(self.keys([name])[0]) is Reason.SLOWER

    def _count(self, telemetry: Telemetry, names: Sequence[str]) -> None:
        """Count the first of *names* that are left out as misses: no load requests them."""
        pages = next((i for i, name in enumerate(names) if not self._left_out(name)), len(names))
        chunks, tokens = pages * self._pieces, pages * self._tokens
        telemetry.count(CounterName.LOOKUPS, chunks)
        telemetry.count(CounterName.LOOKUP_TOKENS, tokens)
        telemetry.count(CounterName.MISSES, chunks, reason=Reason.SLOWER)
        telemetry.count(CounterName.MISSED_TOKENS, tokens, reason=Reason.SLOWER)

    def load(self, names: Sequence[str], window: DeviceKV) -> int:
        """Load pages into *window*. The number from the first one on that arrived whole."""
        if not names:
            return 0
        began = time.perf_counter()

        def load(call: Call | None) -> Retrieved | None:
            until = self._until(self._deadlines.retrieve)
            into = window if call is None else call.window(window)
            return self._chunks.load(self.specs(names), into, until)

        got = self._do(load, None)
        if got is None:
            return 0
        pages = got.hit_tokens // (self._tokens * self._pieces)
        with self._lock:
            self._loaded.add(pages, got.loaded_bytes, time.perf_counter() - began)
        return pages

    def hold(self, names: Sequence[str], owner: str) -> Hold | None:
        """Hold all of these pages, which have arrived, for *owner*, which releases them.

        ``None`` if one of them did not arrive in time; then nothing is held.
        """
        until = self._until(self._deadlines.retrieve)
        hold = self._chunks.hold(self.specs(names), owner, until)
        try:
            if hold.wait(until) and None not in hold.leases:
                return hold
        except BaseException:
            hold.release()
            raise
        hold.release()
        return None

    def save(self, names: Sequence[str], window: DeviceKV) -> bool:
        """Store the pages of *window* that no tier is known to hold.

        Returns once they are copied, as no slower tier is waited for, or dropped: at the end of
        the store's deadline, or of five seconds. True if none was dropped.
        """
        if not names:
            return True
        began = time.perf_counter()

        def save(call: Call | None) -> StoreReport | None:
            until = self._until(min(self._deadlines.store, _SAVE_SECONDS))
            of = window if call is None else call.window(window)
            return self._chunks.save(self.specs(names), of, until, wait=False)

        kept = self._do(save, None)
        if kept is None:
            return False
        size = kept.stored_bytes + window.layout.chunk_bytes(kept.queued_tokens)
        with self._lock:
            self._saved.add(len(names), size, time.perf_counter() - began)
        return kept.dropped_tokens == 0 and not kept.frozen

    def pin(self, owner: str, names: Sequence[str]) -> None:
        """Keep pages from eviction until :meth:`unpin`, or as long as is configured."""
        self._chunks.pin(owner, self.keys(names))

    def unpin(self, owner: str) -> None:
        """End every pin of *owner*."""
        self._chunks.unpin(owner)

    def traffic(self) -> tuple[tuple[list[int], list[float]], tuple[list[int], list[float]]]:
        """Loads and stores since the last call: pages, and GB/s, of each."""
        with self._lock:
            return self._loaded.take(), self._saved.take()

    def _digests(self, names: Sequence[str]) -> list[bytes]:
        """The digest of each chunk; a page's first one is that of its name."""
        digests = [digest_of_name(name) for name in names]
        if self._pieces == 1:
            return digests
        return [
            sha256(digest + piece.to_bytes(4, "little")).digest() if piece else digest
            for digest in digests
            for piece in range(self._pieces)
        ]

    def _do(self, work: Callable[[Call | None], Answer], otherwise: Answer) -> Answer:
        return work(None) if self._aside is None else self._aside.do(work, otherwise)

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)
