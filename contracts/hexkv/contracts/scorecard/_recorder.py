"""A pytest plugin that records the results of promises."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import pytest

from hexkv.contracts.kit.promise import Promise
from hexkv.contracts.scorecard._card import Card, Scorecard, ScoreLine, Subject, Verdict
from hexkv.contracts.scorecard._explained import explained

FIXTURES = frozenset(
    [
        "announced",
        "another",
        "aside",
        "closed",
        "collected",
        "crowd",
        "damaged",
        "elapse",
        "end",
        "exposed",
        "faulty",
        "foreign",
        "forget",
        "held",
        "holed",
        "huge",
        "ledger",
        "largest",
        "limit",
        "make",
        "members",
        "near",
        "other",
        "private",
        "proxied",
        "publish",
        "raw",
        "reading",
        "recipe",
        "reopen",
        "seen",
        "serde",
        "service",
        "sibling",
        "stalled",
        "stranger",
        "stuck",
        "successor",
        "total",
        "unreadable",
        "vanish",
    ]
)
"""The fixtures that an author provides. A promise that needs a missing one is not
checked; one that needs an ability which the adapter does not have is not offered."""

_WORST_FIRST = (
    Verdict.BROKEN,
    Verdict.WAIVED,
    Verdict.KEPT,
    Verdict.NOT_CHECKED,
    Verdict.NOT_OFFERED,
)


def of_test(item: pytest.Item) -> Promise | None:
    """The promise that *item* checks, or replaces: ``waive`` hides the mark."""
    if found := Promise.of(item.iter_markers("promise")):
        return found
    if not isinstance(item, pytest.Function) or item.cls is None:
        return None
    for base in item.cls.__mro__:
        if found := Promise.of(getattr(vars(base).get(item.originalname), "pytestmark", [])):
            return found
    return None


@dataclass(slots=True)
class _Entry:
    """The results of a promise so far: several tests may check it."""

    promise: Promise
    verdicts: dict[Verdict, str] = field(default_factory=dict)
    measured: dict[str, object] = field(default_factory=dict)

    def line(self) -> ScoreLine:
        verdict = next(v for v in _WORST_FIRST if v in self.verdicts)
        return ScoreLine(self.promise, verdict, self.verdicts[verdict], self.measured)


class Recorder:
    """Register it with pytest, run, and call :meth:`scorecard`.

    Args:
        subject_of: returns the subject of a test's promise; by default the test's class.
    """

    def __init__(self, subject_of: Callable[[pytest.Item], Subject] | None = None) -> None:
        self._subject_of = subject_of or _its_class
        self._found: dict[Subject, dict[str, _Entry]] = {}

    def scorecard(self) -> Scorecard:
        """The results so far."""
        return Scorecard(
            [
                Card(
                    subject,
                    sorted(
                        (e.line() for e in entries.values()), key=lambda line: line.promise.order
                    ),
                )
                for subject, entries in self._found.items()
            ]
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        promise = of_test(item)
        if promise is not None and (seen := _verdict(report, call)) is not None:
            entries = self._found.setdefault(self._subject_of(item), {})
            entry = entries.setdefault(promise.number, _Entry(promise))
            entry.verdicts.setdefault(*seen)
            entry.measured.update(item.user_properties)
        return report


def _verdict(report: pytest.TestReport, call: pytest.CallInfo[None]) -> tuple[Verdict, str] | None:
    """The verdict that *report* implies; ``None`` for a set-up or teardown without an error."""
    if report.failed:
        said = str(report.longrepr) if call.excinfo is None else explained(call.excinfo.value)
        return Verdict.BROKEN, said
    if (reason := getattr(report, "wasxfail", None)) is not None:
        reason = reason.removeprefix("[NOTRUN] ").removeprefix("reason: ")
        return Verdict.WAIVED, f"{reason} (and kept after all)" if report.passed else reason
    if report.skipped:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        lacking = text.removeprefix("Skipped: ")
        if (ability := lacking.removeprefix("not offered: ")) == lacking:
            return Verdict.NOT_CHECKED, lacking
        needs_fixture = re.split(r"\W", ability, maxsplit=1)[0] in FIXTURES
        return (Verdict.NOT_CHECKED if needs_fixture else Verdict.NOT_OFFERED), ability
    return (Verdict.KEPT, "") if report.when == "call" else None


def _its_class(item: pytest.Item) -> Subject:
    return Subject(item.nodeid.rpartition("::")[0])
