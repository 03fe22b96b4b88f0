"""Pages by the names that SGLang gives them, on the tiers of an engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock

from hexkv.ports import DIGEST_BYTES, DeviceKV, Namespace, Pages, PrefixCache

_KEPT = 1024
"""Measurements that are kept until SGLang asks for them."""


@dataclass
class Traffic:
    """What moved since it was last asked for: pages, and GB/s, of each call."""

    pages: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, pages: int, size: int, seconds: float) -> None:
        """Count one call."""
        self.pages.append(pages)
        self.rates.append(size / 1e9 / max(seconds, 1e-9))

    def take(self) -> tuple[list[int], list[float]]:
        """Everything, and begin anew."""
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


class Shelf:
    """Pages of one pool. Safe from any thread, as the engine is."""

    def __init__(
        self, engine: PrefixCache, tokens: int, namespace: Namespace | None = None, pieces: int = 1
    ) -> None:
        """Put pages of *tokens* tokens on *engine*.

        Args:
            engine: its chains are unseeded, its chunks of *tokens* tokens.
            tokens: that go with a page.
            namespace: of this pool; by default the engine's.
            pieces: chunks for each page.
        """
        self._engine = engine
        self._tokens = tokens
        self._namespace = namespace
        self._pieces = pieces
        self._lock = Lock()
        self._loaded, self._saved = Traffic(), Traffic()

    def named(self, names: Sequence[str]) -> Pages:
        """The chunks of pages."""
        digests = [digest_of_name(name) for name in names]
        if self._pieces > 1:
            digests = [
                sha256(digest + piece.to_bytes(4, "little")).digest() if piece else digest
                for digest in digests
                for piece in range(self._pieces)
            ]
        return Pages(digests, self._tokens)

    def find(self, names: Sequence[str]) -> int:
        """How many pages from the first one on some tier holds."""
        if not names:
            return 0
        found = self._engine.lookup(self.named(names), namespace=self._namespace)
        return found.hit_tokens // (self._tokens * self._pieces)

    def present(self, names: Sequence[str]) -> list[bool]:
        """Of every page, whether some tier holds it."""
        there: list[bool] = []
        while len(there) < len(names):
            there += [True] * self.find(names[len(there) :])
            if len(there) < len(names):
                there.append(False)
        return there

    def load(self, names: Sequence[str], window: DeviceKV) -> int:
        """Load pages into *window*. How many from the first one on arrived whole."""
        if not names:
            return 0
        began = time.perf_counter()
        got = self._engine.retrieve(self.named(names), window, namespace=self._namespace)
        pages = got.hit_tokens // (self._tokens * self._pieces)
        with self._lock:
            self._loaded.add(pages, got.loaded_bytes, time.perf_counter() - began)
        return pages

    def save(self, names: Sequence[str], window: DeviceKV) -> bool:
        """Store the pages of *window* that no tier holds. Whether all are kept."""
        if not names:
            return True
        began = time.perf_counter()
        kept = self._engine.store(self.named(names), window, namespace=self._namespace)
        with self._lock:
            self._saved.add(len(names), kept.stored_bytes, time.perf_counter() - began)
        return kept.dropped_tokens == 0

    def traffic(self) -> tuple[tuple[list[int], list[float]], tuple[list[int], list[float]]]:
        """Loads and stores since this was last asked: pages, and GB/s, of each call."""
        with self._lock:
            return self._loaded.take(), self._saved.take()
