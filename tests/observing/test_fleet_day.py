"""A day of a small fleet, watched by a real Prometheus with the rules that the chart renders.

A minute of the rules lasts two seconds (``fleet_day.MINUTE``): factor 30; where an alert waits, it
waits for ten seconds at least.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from media.mounts import NAMESPACE, needs_mounts
from operating.fleet_day import LEAST
from operating.monitoring import generator

pytestmark = pytest.mark.thorough

LIB = Path(__file__).parents[1] / "lib"
FIRES = {
    "start": [],
    "load": [],
    "redis killed": ["HexKVNotStored", "HexKVTierOff"],
    "disk full": ["HexKVNoRoom"],
    "secret rotated": [],
    "directory gone": ["HexKVDirectoryGone", "HexKVDown", "HexKVTierOff"],
    "node upgraded": [],
    "tenant cleared": [],
    "budget changed": [],
    "disk damaged": ["HexKVDamagedChunks"],
    "node killed": ["HexKVClosed", "HexKVDown"],
}
"""The alerts of each step, and no others."""

ELSEWHERE = {
    "HexKVHitRatioFell": "tests/lib/operating/watching.py",
    "HexKVLongIndexing": "examples/deploy/monitoring/rules.test.yaml",
    "HexKVNoMemory": "examples/deploy/monitoring/rules.test.yaml",
    "HexKVSlowTier": "examples/deploy/monitoring/rules.test.yaml",
}
"""Alerts that none of these faults may fire: the file that has one that does."""


@needs_mounts
@pytest.mark.skipif(
    not all(map(shutil.which, ("prometheus", "promtool", "curl")))
    or not (shutil.which("helm") or importlib.util.find_spec("helm_python")),
    reason="needs Debian's prometheus, curl, and helm or its library",
)
def test_three_commands_name_each_fault_of_a_day_and_each_alert_fires_for_its_own(tmp_path):
    steps = tmp_path / "steps.json"
    command = [*NAMESPACE, sys.executable, "-m", "operating.fleet_day", "--json", str(steps)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(LIB)},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(steps.read_text())
    assert [step["name"] for step in found] == list(FIRES)
    for step in found:
        # On a busy machine a process may not answer for ten seconds: then these are right.
        late = {"HexKVClosed", "HexKVDown"} if step["silent"] >= LEAST else set()
        fired, wanted = set(step["alerts"]), set(FIRES[step["name"]])
        assert wanted <= fired <= wanted | late, step
        assert 1 <= len(step["commands"]) <= 3, step
        assert step["cause"], step


def test_each_alert_has_a_fault_of_the_day_or_another_file():
    fired = {name for names in FIRES.values() for name in names}
    assert {alert.name for alert in generator().ALERTS} == fired | set(ELSEWHERE)
    for name, file in ELSEWHERE.items():
        assert name in (LIB.parents[1] / file).read_text(), name
