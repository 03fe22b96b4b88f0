"""The scorecard as a value, and as JSON."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from hexkv.contracts.kit.promise import Level, Promise
from hexkv.plugins.spec import CONTRACT

SCHEMA = 1
"""Version of the JSON: grows when a reader of the version before would misread it."""


class Verdict(StrEnum):
    """The result of a promise."""

    KEPT = "kept"
    BROKEN = "broken"
    WAIVED = "waived"
    """Waived by the author, with a reason."""

    NOT_OFFERED = "not offered"
    """It belongs to an optional ability that the adapter does not have."""

    NOT_CHECKED = "not checked"
    """A fixture that the check needs is missing, for instance a back door to the medium."""


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One promise and its result."""

    promise: Promise
    verdict: Verdict

    reason: str = ""
    """How it was broken, why it was waived, or the missing fixture."""

    measured: Mapping[str, object] = field(default_factory=dict)
    """The properties that the check recorded, for instance a ratio to the physical limit."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a check."""

    name: str
    """A URL, an adapter's name, ``module:factory``, or a test class."""

    distribution: str = ""
    """The distribution with the adapter, and its version; empty if unknown."""

    contract: int | None = None
    """The contract version that the adapter declares; None if it declares none."""

    engine: str = ""
    """The service behind the adapter with its version, if the author names it."""


@dataclass(frozen=True, slots=True)
class Card:
    """The promises of one subject, by level and number."""

    subject: Subject
    lines: Sequence[ScoreLine]

    def count(self, level: Level) -> Counter[Verdict]:
        """The number of promises of *level* by verdict."""
        return Counter(line.verdict for line in self.lines if line.promise.level is level)

    def having(self, verdict: Verdict) -> list[ScoreLine]:
        """The promises with *verdict*."""
        return [line for line in self.lines if line.verdict is verdict]

    @property
    def held(self) -> list[Level]:
        """The levels with some promise kept and none broken."""
        counts = {level: self.count(level) for level in Level}
        return [n for n, c in counts.items() if c[Verdict.KEPT] and not c[Verdict.BROKEN]]


@dataclass(frozen=True, slots=True)
class Kit:
    """The contract kit that checked."""

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
        """True if any subject broke a promise."""
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
