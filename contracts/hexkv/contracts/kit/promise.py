"""A promise: the requirement that a test of a contract checks, with a permanent number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NoReturn

import pytest

from hexkv.plugins.spec import CONTRACT as CONTRACT  # the version that hexkv loads adapters of


class Level(StrEnum):
    """The depth of a promise. An adapter that keeps a level has kept those before it, too."""

    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"
    L5 = "L5"
    L6 = "L6"

    @property
    def about(self) -> str:
        """The topic of the promises of this level."""
        return _ABOUT[self]


_ABOUT = {
    Level.L0: "discovery and lifecycle",
    Level.L1: "data",
    Level.L2: "integrity",
    Level.L3: "concurrency",
    Level.L4: "faults",
    Level.L5: "isolation",
    Level.L6: "performance",
}

_BY_PREFIX = {
    "checksum": Level.L1,
    "chunker": Level.L1,
    "device": Level.L1,
    "limit": Level.L1,
    "memory": Level.L1,
    "plugin": Level.L0,
    "policy": Level.L1,
    "quarantine": Level.L2,
    "range": Level.L1,
    "scan": Level.L1,
    "serde": Level.L1,
    "sharing": Level.L1,
}
"""The level of promises whose number does not begin with it, and that name none."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The requirement that a test checks; :func:`promise` attaches it to the test."""

    number: str
    """Never given to another promise, even when this one is withdrawn."""

    text: str
    """The behaviour, as the rest of a sentence that starts with the adapter's name."""

    level: Level

    clause: str = ""
    """The clause of the port that it checks, for instance ``ChunkStore.read``."""

    why: str = ""
    """One sentence: what breaks in production if the promise is broken."""

    hint: str = ""
    """The place that an author should check first."""

    @property
    def order(self) -> tuple[Level, list[tuple[str, int]]]:
        """The sort key: by level, and ``L1.9`` before ``L1.10``."""
        parts = self.number.split(".")
        return self.level, [("", int(p)) if p.isdigit() else (p, 0) for p in parts]

    @staticmethod
    def of(marks: Iterable[pytest.Mark]) -> Promise | None:
        """The nearest promise among a test's *marks*."""
        for mark in marks:
            if mark.name == "promise":
                number, text = mark.args
                return Promise(number, text, **mark.kwargs)
        return None


def promise(
    number: str,
    text: str,
    *,
    level: Level | str = "",
    clause: str = "",
    why: str = "",
    hint: str = "",
) -> pytest.MarkDecorator:
    """Mark a test with the promise it checks. A failure then names the promise.

    Args:
        number: see :class:`Promise`, for this and the others. Several tests may have the same
            number, with the same words: the promise is kept if all of them pass.
        text: what the adapter does.
        level: if neither the number's beginning nor the table in this module gives it.
        clause: of the port.
        why: one sentence.
        hint: for the author.

    Raises:
        ValueError: the level is not known.
    """
    found = Promise(number, text, Level(level or _level(number)), clause, why, hint)
    kept = asdict(found)
    return pytest.mark.promise(kept.pop("number"), kept.pop("text"), **kept)


def _level(number: str) -> Level:
    prefix = number.partition(".")[0]
    level = _BY_PREFIX.get(prefix) or (Level(prefix) if prefix in set(Level) else None)
    if level is None:
        raise ValueError(f"{number!r}: of which level is this promise?")
    return level


def not_offered(ability: str) -> NoReturn:
    """Skip the test: the adapter does not have this optional *ability*.

    The pytest plugin lists such abilities at the end of the run.
    """
    pytest.skip(f"not offered: {ability}")
