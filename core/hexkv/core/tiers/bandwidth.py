"""Measuring: how fast tiers and serdes are, seen from the work that there is anyway."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from threading import Lock

from hexkv.core.tiers.encoding_choice import Encoding, Rate

PROBE_EVERY = 16
"""Of so many requests that a slow tier would not serve, one is let through, to see again."""

STALE = 60.0
"""Seconds after which a form that is not in use is measured anew."""


class Flow:
    """A rate of several threads together: a second counts once, however many work in it."""

    __slots__ = ("_active", "_lock", "_rate", "_since")

    def __init__(self) -> None:
        self._rate = Rate()
        self._active = 0
        self._since = 0.0
        self._lock = Lock()

    @property
    def value(self) -> float | None:
        """Amount per second; ``None`` before anything took time."""
        return self._rate.value

    def began(self, now: float) -> None:
        """One more is at work."""
        with self._lock:
            if not self._active:
                self._since = now
            self._active += 1

    def ended(self, now: float, amount: float, *, anew: bool = False) -> None:
        """One is done, and has brought *amount*; with *anew* nothing before that counts.

        Who brought nothing says nothing of how fast the others are.
        """
        with self._lock:
            self._active -= 1
            if anew and amount:
                self._rate = Rate()
            if amount:
                self._rate.observe(amount, max(0.0, now - self._since))
            self._since = now


class TierBandwidth:
    """What reading a tier brings, and whether requests are served from it. Safe from any thread.

    A tier that brings KV later than the model computes it is left out, but for a request now
    and then: then it serves all, until a read has shown how fast it is by now.
    """

    __slots__ = ("_bytes", "_lock", "_probing", "_skipped", "_tokens")

    def __init__(self) -> None:
        self._bytes = Flow()
        self._tokens = Flow()
        self._skipped = 0
        self._probing = False
        self._lock = Lock()

    @property
    def rate(self) -> float | None:
        """Bytes of frames per second, before they are decoded."""
        return self._bytes.value

    @property
    def tokens_rate(self) -> float | None:
        """Tokens per second, verified and decoded."""
        return self._tokens.value

    def began(self, now: float) -> None:
        """A batch is being read."""
        self._bytes.began(now)
        self._tokens.began(now)

    def arrived(self, now: float, size: int) -> None:
        """The store has brought *size* bytes of it."""
        self._bytes.ended(now, size, anew=self._probing)

    def ended(self, now: float, tokens: float) -> None:
        """The KV of *tokens* of it can be used."""
        self._tokens.ended(now, tokens, anew=self._probing)
        if tokens:
            self._probing = False

    def slower_than(self, compute_rate: float | None) -> bool:
        """Whether it brings fewer tokens per second than the model computes, as far as is known."""
        if compute_rate is None or self._probing:
            return False
        rate = self.tokens_rate
        return rate is not None and rate < compute_rate

    def serves(self, compute_rate: float | None) -> bool:
        """Whether a request is to be served from here; counts those that are not."""
        if not self.slower_than(compute_rate):
            return True
        with self._lock:
            self._skipped += 1
            if self._skipped == PROBE_EVERY:
                self._skipped = 0
                self._probing = True
            return self._probing


@dataclass(slots=True)
class _Speed:
    ratio: Rate = field(default_factory=Rate)
    decode: Rate = field(default_factory=Rate)
    when: float = -inf


class SerdeStats:
    """How much smaller serdes make KV, and how fast it comes out again. Safe from any thread."""

    def __init__(self) -> None:
        self._speeds: dict[str, _Speed] = {}
        self._lock = Lock()

    def encoded(self, serde: str, raw_bytes: int, size: int) -> None:
        """A chunk was made *size* bytes long."""
        with self._lock:
            self._of(serde).ratio.observe(raw_bytes, size)

    def decoded(self, serde: str, raw_bytes: int, began: float, now: float) -> None:
        """One thread had the KV of a chunk, or of a layer, at *now*."""
        with self._lock:
            speed = self._of(serde)
            speed.decode.observe(raw_bytes, max(0.0, now - began))
            speed.when = now

    def due(self, serde: str, now: float) -> bool:
        """Whether nobody has used it for so long that it should be measured: said to one only."""
        with self._lock:
            speed = self._of(serde)
            due = now - speed.when > STALE
            if due:
                speed.when = now
            return due

    def form(self, name: str, serde: str, threads: int) -> Encoding | None:
        """What was measured, if *threads* decode beside each other; ``None``: nothing yet."""
        with self._lock:
            speed = self._of(serde)
            ratio, decode = speed.ratio.value, speed.decode.value
        return Encoding(name, ratio, inf if decode is None else threads * decode) if ratio else None

    def _of(self, serde: str) -> _Speed:
        return self._speeds.setdefault(serde, _Speed())
