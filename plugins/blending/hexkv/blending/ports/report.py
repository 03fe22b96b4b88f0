"""A host's report of a request that might have been blended, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hexkv.ports.errors import InvalidRequest


class BlendOutcome(StrEnum):
    """The outcome of a request that might have been blended; a metric's label."""

    BLENDED = "blended"
    FULL = "full"
    """Computed in full: there was no segment to use."""

    NOT_WORTH = "not worth it"
    """Computed in full: loading takes longer than blending saves."""

    NO_RECORD = "no record"
    """Computed in full: there is no measurement of how well this model can be blended."""

    SWITCHED_OFF = "switched off"
    """Computed in full: blending was switched off, for a check exceeded the measured bound."""

    CHECKED = "checked"
    """Computed in full and blended, to compare."""

    FAILED = "failed"
    """Computed in full after blending failed."""


BLEND_KINDS = ("prefix", "reused", "recomputed", "computed")
"""Kinds of tokens in a :class:`BlendReport`; values of a metric's label."""


@dataclass(frozen=True, slots=True)
class BlendReport:
    """One request as its host computed it, for the metrics. Tokens by kind; durations in seconds.

    Raises:
        InvalidRequest: tokens or a duration are negative.
    """

    outcome: BlendOutcome
    prefix: int = 0
    """Tokens with exact KV, from the cache."""

    reused: int = 0
    """Tokens of segments whose stored KV is used in the layers behind the check layer."""

    recomputed: int = 0
    """Tokens chosen in segments, and computed in every layer."""

    computed: int = 0
    """Tokens in holes."""

    select_seconds: float | None = None
    rotate_seconds: float | None = None
    kl: float | None = None
    """For a request that was checked: Kullback-Leibler divergence of the blended expectation of
    the next token from the full one, in nats."""

    def __post_init__(self) -> None:
        amounts = self.prefix, self.reused, self.recomputed, self.computed
        measured = self.select_seconds or 0.0, self.rotate_seconds or 0.0
        if min(*amounts, *measured) < 0:
            raise InvalidRequest(f"a report of less than nothing: {self}")
