"""The scorecard as a value, and as JSON."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from hexkv.contracts.promise import Level, Promise
from hexkv.plugins.spec import CONTRACT

SCHEMA = 1
"""Version of the JSON: grows when a reader of the version before would misread it."""


class Verdict(StrEnum):
    """What became of a promise."""

    KEPT = "kept"
    BROKEN = "broken"
    WAIVED = "waived"
    """Given up by the author, who says why."""

    NOT_OFFERED = "not offered"
    """It is of an optional ability that the adapter does not have."""

    NOT_CHECKED = "not checked"
    """Nobody gave what the check needs, for instance a back door to the medium."""


@dataclass(frozen=True, slots=True)
class Line:
    """One promise, and what became of it."""

    promise: Promise
    verdict: Verdict

    reason: str = ""
    """How it was broken, why it was waived, or what was missing."""

    measured: Mapping[str, object] = field(default_factory=dict)
    """What the check recorded as properties, for instance a ratio to the physical limit."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What was checked."""

    name: str
    """A URL, an adapter's name, ``module:factory``, or a test class."""

    distribution: str = ""
    """Who offers the adapter, with its version; empty where nobody knows."""

    contract: int | None = None
    """The contract version that the adapter was written for, where it says one."""

    engine: str = ""
    """The service behind the adapter with its version, where the author tells."""


@dataclass(frozen=True, slots=True)
class Card:
    """The promises of one subject, by level and number."""

    subject: Subject
    lines: Sequence[Line]

    def count(self, level: Level) -> Counter[Verdict]:
        """How many promises of *level* had which verdict."""
        return Counter(line.verdict for line in self.lines if line.promise.level is level)

    def having(self, verdict: Verdict) -> list[Line]:
        """The promises with *verdict*."""
        return [line for line in self.lines if line.verdict is verdict]

    @property
    def held(self) -> list[Level]:
        """The levels of which something was kept and nothing broken."""
        counts = {level: self.count(level) for level in Level}
        return [n for n, c in counts.items() if c[Verdict.KEPT] and not c[Verdict.BROKEN]]


@dataclass(frozen=True, slots=True)
class Kit:
    """What checked."""

    version: str = field(default_factory=lambda: importlib.metadata.version("hexkv-contracts"))
    contract: int = CONTRACT
    python: str = field(default_factory=platform.python_version)
    platform: str = field(default_factory=lambda: f"{platform.system()} {platform.machine()}")


@dataclass(frozen=True, slots=True)
class Scorecard:
    """One run of the kit."""

    cards: Sequence[Card]
    kit: Kit = field(default_factory=Kit)

    @property
    def broken(self) -> bool:
        """Whether any subject broke a promise."""
        return any(card.having(Verdict.BROKEN) for card in self.cards)

    def as_json(self) -> dict[str, object]:
        """Plain values of :data:`SCHEMA`, for ``json.dumps``."""
        return {
            "schema": SCHEMA,
            "kit": asdict(self.kit),
            "cards": [
                {
                    "subject": asdict(card.subject),
                    "held": list(card.held),
                    "levels": {
                        level: {verdict: card.count(level)[verdict] for verdict in Verdict}
                        for level in Level
                    },
                    "promises": [
                        asdict(line.promise)
                        | {
                            "verdict": line.verdict,
                            "reason": line.reason,
                            "measured": dict(line.measured),
                        }
                        for line in card.lines
                    ],
                }
                for card in self.cards
            ],
        }
