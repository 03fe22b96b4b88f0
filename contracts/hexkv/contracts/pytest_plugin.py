"""The pytest plugin: limits and names promises, and lists abilities that adapters do not offer.

Imports no hexkv code before there is a promise or a scorecard, so that coverage tools see all of
it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hexkv.contracts.kit.limits import Limits

pytest.register_assert_rewrite(
    "hexkv.contracts.channel",
    "hexkv.contracts.checksum",
    "hexkv.contracts.chunk_cache",
    "hexkv.contracts.chunker",
    "hexkv.contracts.device",
    "hexkv.contracts.directory",
    "hexkv.contracts.memory",
    "hexkv.contracts.plugin",
    "hexkv.contracts.doubles.own_memory",
    "hexkv.contracts.policy",
    "hexkv.contracts.prefix_cache",
    "hexkv.contracts.serde",
    "hexkv.contracts.store",
    "hexkv.contracts.kit.waiting",
    "hexkv.contracts.kit.whole",
)

_NOT_OFFERED = "not offered: "
_OPTION = "--hexkv-scorecard"
_RECORDER = "hexkv-scorecard"
_LIMIT = "--hexkv-limit"
_LIMITS = pytest.StashKey["Limits"]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(number, text): what a contract's test checks")
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line(
        "markers", "thorough: takes long, or compares times; for a quiet machine"
    )

    if config.getoption(_OPTION):
        from hexkv.contracts.scorecard import Recorder

        config.pluginmanager.register(Recorder(), _RECORDER)


_AROUND = {
    "setup": ("the beginning of", "a fixture raised: the adapter does not open, or cannot be used"),
    "teardown": ("the end of", "a fixture raised: close() of the adapter, or what it has left"),
}
"""A sentence's beginning and a hint for a failure before or after the test of a promise."""

_FACTS = ("hint", "clause", "why")
"""The facts of a promise that a failure shows, in this order."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hexkv", "contracts of hexkv's ports")
    group.addoption(
        _OPTION, metavar="FILE", help="write the outcome of each promise to FILE, as JSON"
    )
    group.addoption(
        _LIMIT,
        metavar="SECONDS",
        type=float,
        default=75.0,
        help="seconds for each promise, and for each step of a thorough one, which has five times"
        " as many in all; 0: no limit",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    if (limits := config.stash.get(_LIMITS, None)) is not None:
        limits.close()
    recorder = config.pluginmanager.get_plugin(_RECORDER)
    if recorder is not None:
        Path(config.getoption(_OPTION)).write_text(
            json.dumps(recorder.scorecard().as_json(), indent=2) + "\n"
        )


# pytest itself orders by the scope of fixtures, afterwards.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the promises of each class by level, in a level the plain ones first."""
    ordered: list[pytest.Item] = []
    for _, together in groupby(items, key=lambda item: item.parent):
        ordered += sorted(together, key=_rank)
    items[:] = ordered


def _rank(item: pytest.Item) -> tuple[str, bool]:
    mark = item.get_closest_marker("promise")
    if mark is None:
        return "", False
    return str(mark.kwargs.get("level", "")), item.get_closest_marker("thorough") is not None


# The innermost of all wrappers, so that no code of pytest itself is interrupted.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item, fixture=True, begins=True):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item, fixture=False):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _limited(item, fixture=True):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("promise")
    if mark is not None and report.failed:
        number, text = mark.args
        if report.when == "call" or _is_overdue(call):
            _name_promise(report, f"broken promise {number}: {text}", mark.kwargs)
        else:
            what, hint = _AROUND[str(report.when)]
            facts = {**mark.kwargs, "hint": hint}
            _name_promise(report, f"{what} promise {number} failed: {text}", facts)
    return report


@contextmanager
def _limited(item: pytest.Item, *, fixture: bool, begins: bool = False) -> Iterator[None]:
    """End the block within the limit of the promise that *item* checks, if any."""
    mark = item.get_closest_marker("promise")
    limits = None if mark is None else _limits(item.config)
    if mark is None or limits is None:
        yield
        return
    adapter = item.nodeid.rpartition("::")[0]
    if begins and (reason := limits.given_up(adapter)):
        pytest.skip(reason)
    times = limits.THOROUGH if item.get_closest_marker("thorough") else 1
    number, text = mark.args
    with limits.within(adapter, number, text, times, fixture=fixture):
        yield


def _limits(config: pytest.Config) -> Limits | None:
    """The limits of this run; None with a debugger or if switched off."""
    seconds = config.getoption(_LIMIT)
    if not seconds or config.getoption("usepdb", default=False):
        return None
    if _LIMITS not in config.stash:
        from hexkv.contracts.kit.limits import Limits

        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            config.stash[_LIMITS] = Limits(seconds, os.dup(2))
    return config.stash[_LIMITS]


def _is_overdue(call: pytest.CallInfo[None]) -> bool:
    """True if a fixture did not end in time: then the adapter, not the fixture, broke a promise."""
    from hexkv.contracts.kit.limits import OverdueFixture

    return call.excinfo is not None and isinstance(call.excinfo.value, OverdueFixture)


def _name_promise(report: pytest.TestReport, sentence: str, facts: Mapping[str, str]) -> None:
    """Put *sentence* into the traceback, the short summary and the JUnit file.

    The traceback has the promise's hint, clause and reason, too.
    """
    longrepr = report.longrepr
    if longrepr is None or isinstance(longrepr, tuple):
        return
    if isinstance(longrepr, str):
        report.longrepr = f"{sentence}\n{longrepr}"
        return
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = f"{sentence}\n{crash.message}"
    add = getattr(longrepr, "addsection", None)
    if add is not None:
        known = [f"{name}: {facts[name]}" for name in _FACTS if facts.get(name)]
        add("contract", "\n".join([sentence, *known]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lacking: dict[str, set[str]] = defaultdict(set)
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple) and _NOT_OFFERED in report.longrepr[2]:
            suite = report.nodeid.rpartition("::")[0]
            lacking[suite].add(report.longrepr[2].partition(_NOT_OFFERED)[2])
    if lacking:
        terminalreporter.section("contracts: not offered", sep="-")
        for suite, abilities in sorted(lacking.items()):
            terminalreporter.write_line(f"{suite}: {', '.join(sorted(abilities))}")
