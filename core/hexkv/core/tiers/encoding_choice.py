"""In which form to load KV: as it is, encoded so and so, or not at all; and what loading saves.

After CacheGen (arXiv 2310.07240, section 5.3), which takes the best quality that a deadline
allows, and computes again what a link would bring too late. A pure function of measured
rates, so that whoever has some can ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf


def _seconds(amount: float, rate: float) -> float:
    """How long *amount* takes; for ever at a rate that is none."""
    return amount / rate if rate > 0 else inf


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way in which the chunks of a tier can be stored."""

    serde: str

    ratio: float = 1.0
    """Bytes of KV for one byte that is stored."""

    decode_rate: float = inf
    """Bytes of KV per second that come out of the serde, by all threads that decode."""

    def seconds(self, size: int, link_rate: float) -> float:
        """How long *size* bytes of KV take over a link, and then through the serde."""
        return _seconds(size, self.ratio * link_rate) + _seconds(size, self.decode_rate)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and how long that takes."""

    serde: str | None
    """The form to load; ``None``: compute the tokens again."""

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
    """The first of *forms* that is there in time, or whatever is there first.

    Args:
        forms: in the order of their fidelity, the best first.
        size: bytes of KV.
        tokens: how many tokens the KV is of.
        link_rate: bytes per second that the tier brings.
        prefill_rate: tokens per second that the model computes; zero: it is not asked to.
        within: seconds in which the KV should be there; zero asks for the fastest.
    """
    again = fastest = Decision(None, _seconds(tokens, prefill_rate))
    for form in forms:
        decision = Decision(form.serde, form.seconds(size, link_rate))
        # What is slower than computing is not loaded, however long there is time.
        if decision.seconds <= min(within, again.seconds):
            return decision
        if decision.seconds < fastest.seconds:
            fastest = decision
    return fastest


def rate_to_pay(compute_rate: float, saved: float) -> float:
    """Tokens per second with which KV has to come to be there sooner than without it.

    Args:
        compute_rate: tokens per second that the model computes.
        saved: the share of their work that the KV saves: all of it for an exact prefix; of what
            is blended, what is not computed all the same.
    """
    return compute_rate / saved if saved > 0 else inf


class Rate:
    """Bytes per second over a link or out of a serde, the recent ones counting more."""

    __slots__ = ("_bytes", "_keep", "_seconds")

    def __init__(self, keep: float = 0.9) -> None:
        self._keep = keep
        """The part of what was seen before that still counts after one more observation."""

        self._bytes = self._seconds = 0.0

    def observe(self, size: float, seconds: float) -> None:
        """Count a transfer; large ones say more than small ones."""
        self._bytes = self._bytes * self._keep + size
        self._seconds = self._seconds * self._keep + seconds

    @property
    def value(self) -> float | None:
        """``None`` before the first observation that took any time."""
        return self._bytes / self._seconds if self._seconds > 0 else None
