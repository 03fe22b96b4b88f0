"""Found by pytest: names broken promises, and lists what adapters do not offer.

Imports no hexkv code unless it is told to write a scorecard, so that whatever measures coverage
sees all of it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "hexkv.contracts.chunker",
    "hexkv.contracts.device",
    "hexkv.contracts.memory",
    "hexkv.contracts.plugin",
    "hexkv.contracts.policy",
    "hexkv.contracts.serde",
    "hexkv.contracts.store",
    "hexkv.contracts.whole",
)

_NOT_OFFERED = "not offered: "
_OPTION = "--hexkv-scorecard"
_RECORDER = "hexkv-scorecard"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(number, text): what a contract's test checks")
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line(
        "markers", "thorough: takes long, or compares times; for a quiet machine"
    )

    if config.getoption(_OPTION):
        from hexkv.contracts.scorecard import Recorder

        config.pluginmanager.register(Recorder(), _RECORDER)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hexkv", "contracts of hexkv's ports")
    group.addoption(
        _OPTION, metavar="FILE", help="write what became of each promise to FILE, as JSON"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    recorder = config.pluginmanager.get_plugin(_RECORDER)
    if recorder is not None:
        Path(config.getoption(_OPTION)).write_text(
            json.dumps(recorder.scorecard().as_json(), indent=2) + "\n"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("promise")
    if mark is not None and report.failed and report.when == "call":
        number, text = mark.args
        _name_promise(report, f"broken promise {number}: {text}", mark.kwargs.get("hint", ""))
    return report


def _name_promise(report: pytest.TestReport, sentence: str, hint: str) -> None:
    """Put *sentence* into the traceback, the short summary and the JUnit file."""
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
        add("contract", f"{sentence}\nhint: {hint}" if hint else sentence)


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
