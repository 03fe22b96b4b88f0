"""The speed of tiers and serdes, measured on the regular requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from threading import Lock

PROBE_EVERY = 16
"""Of this many requests that a slow tier would not serve, one is let through, to measure again."""

STALE = 60.0
"""Seconds after which an unused form is measured again."""


_KEEP = 0.9
"""The factor by which earlier observations decay with each new one."""


class Rate:
    """Bytes per second over a link or out of a serde; recent transfers count more."""

    __slots__ = ("_bytes", "_seconds")

    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0

    def observe(self, size: float, seconds: float) -> None:
        """Count a transfer; large ones weigh more than small ones."""
        self._bytes = self._bytes * _KEEP + size
        self._seconds = self._seconds * _KEEP + seconds

    @property
    def value(self) -> float | None:
        """``None`` before the first observation that took any time."""
        return self._bytes / self._seconds if self._seconds > 0 else None


class Flow:
    """The combined rate of several threads: a second counts once, however many work in it."""

    __slots__ = ("_active", "_lock", "_rate", "_since")

    def __init__(self) -> None:
        self._rate = Rate()
        self._active = 0
        self._since = 0.0
        self._lock = Lock()

    @property
    def value(self) -> float | None:
        """The amount per second; ``None`` before the first measurement."""
        return self._rate.value

    def began(self, now: float) -> None:
        """Count one more worker."""
        with self._lock:
            if not self._active:
                self._since = now
            self._active += 1

    def ended(self, now: float, amount: float, *, anew: bool = False) -> None:
        """Count one worker fewer, which brought *amount*; with *anew*, discard earlier rates.

        A worker that brought nothing reveals nothing about the rate of the others: the rate stays.
        """
        with self._lock:
            self._active -= 1
            if anew and amount:
                self._rate = Rate()
            if amount:
                self._rate.observe(amount, max(0.0, now - self._since))
            self._since = now


class TierBandwidth:
    """The read rate of a tier, and the decision to serve requests from it. Safe from any thread.

    A tier that brings KV more slowly than the model computes it is skipped, except for an
    occasional request: from then on it serves all requests until a read has measured its current
    speed.
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
        """Bytes of frames per second, before decoding."""
        return self._bytes.value

    @property
    def tokens_rate(self) -> float | None:
        """Tokens per second, after verification and decoding."""
        return self._tokens.value

    def began(self, now: float) -> None:
        """Note that the read of a batch begins."""
        self._bytes.began(now)
        self._tokens.began(now)

    def arrived(self, now: float, size: int) -> None:
        """Note that the store has delivered *size* bytes of a batch."""
        self._bytes.ended(now, size, anew=self._probing)

    def ended(self, now: float, tokens: float) -> None:
        """Note that the KV of *tokens* of a batch is ready to use."""
        self._tokens.ended(now, tokens, anew=self._probing)
        if tokens:
            self._probing = False

    def slower_than(self, compute_rate: float | None) -> bool:
        """True if the tier is known to bring fewer tokens per second than the model computes."""
        if compute_rate is None or self._probing:
            return False
        rate = self.tokens_rate
        return rate is not None and rate < compute_rate

    def serves(self, compute_rate: float | None) -> bool:
        """True if the tier is to serve a request; counts the requests that it does not serve."""
        if not self.slower_than(compute_rate):
            return True
        with self._lock:
            self._skipped += 1
            if self._skipped == PROBE_EVERY:
                self._skipped = 0
                self._probing = True
            return self._probing


@dataclass(slots=True)
class ComputeRate:
    """Tokens of a prompt that the model computes per second."""

    configured: float | None = None
    rate: float | None = field(init=False)
    """The rate that counts: as configured, or measured by the host for its latest prompt."""

    clients: dict[str, float] = field(default_factory=dict)
    """Rates of hosts in other processes, by client: each leaves tiers out by its own."""

    def __post_init__(self) -> None:
        self.rate = self.configured

    @property
    def known(self) -> float | None:
        """The rate that counts, or else the last one of a client: for explanations."""
        return next(iter([*self.clients.values()][-1:]), None) if self.rate is None else self.rate

    def client(self, name: str, rate: float) -> None:
        """Note the rate of the host of a client."""
        self.clients.pop(name, None)
        self.clients[name] = rate

    def configure(self, rate: float | None) -> None:
        """Count on *rate*; ``None``: on what the host measures from now on."""
        self.configured = rate
        self.rate = self.rate if rate is None else rate

    def measured(self, rate: float | None) -> None:
        """Note the rate that the host has measured."""
        if self.configured is None:
            self.rate = rate


def rate_to_pay(compute_rate: float, saved: float) -> float:
    """Return the tokens per second at which loading KV is as fast as computing without it.

    Args:
        compute_rate: tokens per second that the model computes.
        saved: the share of the computation that the KV saves: all of it for an exact prefix; for
            blended KV, without the part that is recomputed.
    """
    return compute_rate / saved if saved > 0 else inf


def _seconds(amount: float, rate: float) -> float:
    """The time that *amount* takes; infinite at a rate of zero."""
    return amount / rate if rate > 0 else inf


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way in which the chunks of a tier can be stored."""

    serde: str

    ratio: float = 1.0
    """Bytes of KV per stored byte."""

    decode_rate: float = inf
    """Bytes of KV per second that the serde decodes, with all threads together."""

    def seconds(self, size: int, link_rate: float) -> float:
        """The time that *size* bytes of KV take over a link, and then through the serde."""
        return _seconds(size, self.ratio * link_rate) + _seconds(size, self.decode_rate)


@dataclass(slots=True)
class _Speed:
    ratio: Rate = field(default_factory=Rate)
    decode: Rate = field(default_factory=Rate)
    when: float = -inf


class SerdeStats:
    """The compression ratios and decoding rates of serdes. Safe from any thread."""

    def __init__(self) -> None:
        self._speeds: dict[str, _Speed] = {}
        self._lock = Lock()

    def encoded(self, serde: str, raw_bytes: int, size: int) -> None:
        """Note that a chunk was encoded into *size* bytes."""
        with self._lock:
            self._of(serde).ratio.observe(raw_bytes, size)

    def decoded(self, serde: str, raw_bytes: int, began: float, now: float) -> None:
        """Note that one thread finished decoding the KV of a chunk, or of a layer, at *now*."""
        with self._lock:
            speed = self._of(serde)
            speed.decode.observe(raw_bytes, max(0.0, now - began))
            speed.when = now

    def due(self, serde: str, now: float) -> bool:
        """True, for one caller only, if the serde was not used recently and should be measured."""
        with self._lock:
            speed = self._of(serde)
            due = now - speed.when > STALE
            if due:
                speed.when = now
            return due

    def form(self, name: str, serde: str, threads: int) -> Encoding | None:
        """Return the measured form if *threads* decode in parallel; ``None`` without a ratio."""
        with self._lock:
            speed = self._of(serde)
            ratio, decode = speed.ratio.value, speed.decode.value
        return Encoding(name, ratio, inf if decode is None else threads * decode) if ratio else None

    def _of(self, serde: str) -> _Speed:
        return self._speeds.setdefault(serde, _Speed())
