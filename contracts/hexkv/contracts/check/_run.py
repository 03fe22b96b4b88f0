"""Runs pytest on a target, inside this process, and returns the scorecard."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from hexkv.contracts.check import Candidate
from hexkv.contracts.check._targets import Target
from hexkv.contracts.kit.promise import Level
from hexkv.contracts.scorecard import Recorder, Scorecard
from hexkv.contracts.scorecard._recorder import of_test
from hexkv.ports import HexKVError

_SUITE = Path(__file__).with_name("suite.py")


class CheckFailed(HexKVError):
    """pytest could not run the contracts at all."""


class UnknownPromise(CheckFailed):
    """A waived promise does not apply to this target."""


def run(
    target: Target,
    levels: Collection[Level],
    waived: Mapping[str, str],
    limit: float | None = None,
) -> Scorecard:
    """Check *target* and return the scorecard.

    Args:
        target: what to check.
        levels: only these; all if there are none.
        waived: reasons, by the number of the promise. Its tests are not run.
        limit: seconds for each promise; without it, the default of the pytest plugin.

    Raises:
        UnknownPromise: one of *waived* is not checked here.
        CheckFailed: nothing was checked; the message is pytest's output.
    """
    recorder = Recorder(lambda _: target.subject)
    suites = [f"{_file(target.module)}::{target.suite}"]
    if target.plugin:
        suites.insert(0, f"{_SUITE}::TestPlugin")
    conduct, captured = _Conduct(target, levels, waived), StringIO()
    with (
        redirect_stdout(captured),
        redirect_stderr(captured),
        TemporaryDirectory(prefix="hexkv-check") as folder,
    ):
        set_hypothesis_home_dir(folder)  # else it makes one in the current folder
        try:
            code = pytest.main([*_options(limit), *suites], plugins=[recorder, conduct])
        finally:
            set_hypothesis_home_dir(None)
    if conduct.unknown:
        raise UnknownPromise(f"no promise is called {', '.join(conduct.unknown)} here")
    scorecard = recorder.scorecard()
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not scorecard.cards:
        last = [line for line in captured.getvalue().splitlines() if line.strip()][-5:]
        raise CheckFailed(f"nothing was checked: {'; '.join(last)}")
    return scorecard


def _file(module: str) -> str:
    """The path of *module*, without importing it.

    Raises:
        CheckFailed: there is no such module.
    """
    try:
        found = importlib.util.find_spec(module)
    except ImportError as error:
        raise CheckFailed(f"{module}: {error}") from error
    if found is None or found.origin is None:
        raise CheckFailed(f"there is no module {module}")
    return found.origin


def _options(limit: float | None) -> Sequence[str]:
    """Options for pytest: no configuration file, and no cache files."""
    return [
        *([] if limit is None else ["--hexkv-limit", str(limit)]),
        *("-c", os.devnull, "--rootdir", str(_SUITE.parent), "--noconftest"),
        *("-p", "no:cacheprovider", "-p", "no:faulthandler", "--import-mode=importlib"),
        *("-o", "consider_namespace_packages=true", "-q", "--tb=no", "--no-header"),
    ]


class _Conduct:
    """Selects the tests, and provides their candidates."""

    def __init__(
        self, target: Target, levels: Collection[Level], waived: Mapping[str, str]
    ) -> None:
        self._target = target
        self._levels = levels
        self._waived = waived
        self.unknown: list[str] = []
        """The waived numbers that no test found has."""

    @pytest.fixture
    def candidate(self, request: pytest.FixtureRequest) -> Iterator[Candidate]:
        """A new candidate."""
        with self._target.open(request.fixturenames) as candidate:
            yield candidate

    @pytest.fixture
    def entry_point_name(self) -> str:
        """The entry point of the plugin that offers the candidate."""
        return self._target.plugin

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen: list[pytest.Item] = []
        promised = [(item, of_test(item)) for item in items]
        known = {promise.number for _, promise in promised if promise is not None}
        self.unknown = sorted(self._waived.keys() - known)
        for item, promise in [] if self.unknown else promised:
            if promise is None or (self._levels and promise.level not in self._levels):
                continue
            if reason := self._waived.get(promise.number):
                item.add_marker(pytest.mark.xfail(reason=reason, run=False))
            chosen.append(item)
        items[:] = chosen
