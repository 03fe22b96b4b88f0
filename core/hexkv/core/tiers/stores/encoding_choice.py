"""The time that KV takes to load in each form, raw or encoded, and what loading saves."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


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


def rate_to_pay(compute_rate: float, saved: float) -> float:
    """Return the tokens per second at which loading KV is as fast as computing without it.

    Args:
        compute_rate: tokens per second that the model computes.
        saved: the share of the computation that the KV saves: all of it for an exact prefix; for
            blended KV, without the part that is recomputed.
    """
    return compute_rate / saved if saved > 0 else inf


class Rate:
    """Bytes per second over a link or out of a serde; recent transfers count more."""

    __slots__ = ("_bytes", "_keep", "_seconds")

    def __init__(self, keep: float = 0.9) -> None:
        self._keep = keep
        """The factor by which earlier observations decay with each new one."""

        self._bytes = self._seconds = 0.0

    def observe(self, size: float, seconds: float) -> None:
        """Count a transfer; large ones weigh more than small ones."""
        self._bytes = self._bytes * self._keep + size
        self._seconds = self._seconds * self._keep + seconds

    @property
    def value(self) -> float | None:
        """``None`` before the first observation that took any time."""
        return self._bytes / self._seconds if self._seconds > 0 else None
