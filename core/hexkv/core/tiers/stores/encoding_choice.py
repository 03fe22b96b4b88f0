"""Choose the form in which to load KV: raw, encoded, or not at all; and what loading saves.

After CacheGen (arXiv 2310.07240, section 5.3), which takes the best quality that a deadline allows,
and recomputes what a link would bring too late. A pure function of measured rates, for any caller
that has some.
"""

from __future__ import annotations

from collections.abc import Iterable
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


@dataclass(frozen=True, slots=True)
class Decision:
    """The form to load, and the time that it takes."""

    serde: str | None
    """The form to load; ``None``: recompute the tokens."""

    seconds: float


def choose(
    forms: Iterable[Encoding],
    *,
    size: int,
    tokens: int,
    link_rate: float,
    prefill_rate: float,
    within: float = 0.0,
) -> Decision:
    """Return the first of *forms* that arrives in time, or else the fastest choice.

    Args:
        forms: in the order of their fidelity, the best first.
        size: bytes of KV.
        tokens: the number of tokens of this KV.
        link_rate: bytes per second that the tier brings.
        prefill_rate: tokens per second that the model computes; zero: do not recompute.
        within: seconds in which the KV should arrive; zero asks for the fastest.
    """
    again = fastest = Decision(None, _seconds(tokens, prefill_rate))
    for form in forms:
        decision = Decision(form.serde, form.seconds(size, link_rate))
        # A form slower than computing is not loaded, however long the deadline.
        if decision.seconds <= min(within, again.seconds):
            return decision
        if decision.seconds < fastest.seconds:
            fastest = decision
    return fastest


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
