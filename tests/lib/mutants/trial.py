"""One run of pytest over many adapters, and what came of it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[3]
_DRIFTED = re.compile(r"TypeError: .*(positional|keyword|required).* argument")
LIMIT = 3600
"""Seconds after which a run is given up: a mutant hangs, and its promise does not notice."""


@dataclass(frozen=True)
class Verdict:
    """What became of one test."""

    test: str
    tag: str
    """``passed``, ``failure``, ``error`` or ``skipped``."""

    message: str = ""
    seconds: float = 0.0
    drifted: bool = False
    """True if it failed because the adapter does not take what it is called with: a method that a
    mutant replaces has other parameters by now."""

    def names(self, number: str) -> bool:
        """Whether the test failed, and said that this promise was broken."""
        said = self.message.startswith(f"broken promise {number}: ")
        return self.tag == "failure" and said and not self.drifted


@dataclass(frozen=True)
class Trial:
    """A finished run."""

    verdicts: Mapping[str, list[Verdict]]
    """Of each test class, which is named by module and class."""

    output: str

    def kills(self, case: str, number: str) -> bool:
        """Whether the class was caught by this promise, and for nothing else."""
        failed = [
            one for one in self.verdicts.get(case, []) if one.tag not in ("passed", "skipped")
        ]
        return bool(failed) and all(one.names(number) for one in failed)

    def seconds(self, case: str) -> float:
        """The seconds of the class's tests until the first one that failed has ended."""
        took = 0.0
        for one in self.verdicts.get(case, []):
            took += one.seconds
            if one.tag == "failure":
                break
        return took


def trial(nodes: Iterable[str], *more: str) -> Trial:
    """Run pytest on *nodes* in a process of its own, with *more* options.

    Raises:
        RuntimeError: pytest did not get through.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-m", "", "-p", "no:cacheprovider", f"--junitxml={report}", *more]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *nodes],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise RuntimeError(done.stdout + done.stderr)
        verdicts: dict[str, list[Verdict]] = defaultdict(list)
        for case in ET.parse(report).iter("testcase"):
            name = str(case.get("classname")).split(".")[-2:]
            verdicts[".".join(name)].append(_verdict(case))
    return Trial(verdicts, done.stdout)


def _verdict(case: ET.Element) -> Verdict:
    test, seconds = str(case.get("name")), float(case.get("time") or 0.0)
    for mark in case:
        if mark.tag in ("failure", "error", "skipped"):
            drifted = _DRIFTED.search(mark.text or "") is not None
            return Verdict(test, mark.tag, str(mark.get("message")), seconds, drifted)
    return Verdict(test, "passed", seconds=seconds)
