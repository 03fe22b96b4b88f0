"""The results of promises: for people, for programs, and as a badge.

A :class:`Recorder` watches a run of pytest, and returns a :class:`Scorecard`. ``hexkv check``
prints one, and ``pytest --hexkv-scorecard FILE`` writes one.
"""

from __future__ import annotations

from hexkv.contracts.scorecard._badge import badge
from hexkv.contracts.scorecard._card import (
    SCHEMA,
    Card,
    Kit,
    Scorecard,
    ScoreLine,
    Subject,
    Verdict,
)
from hexkv.contracts.scorecard._recorder import Recorder
from hexkv.contracts.scorecard._terminal import show

__all__ = [
    "SCHEMA",
    "Card",
    "Kit",
    "Recorder",
    "ScoreLine",
    "Scorecard",
    "Subject",
    "Verdict",
    "badge",
    "show",
]
