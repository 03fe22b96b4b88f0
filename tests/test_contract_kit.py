"""The contract kit catches every lie we could think of, and calls it by its name."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hexkv.contracts.store import StoreContract

HERE = Path(__file__).parent
STORES = HERE / "broken_stores.py"

CAUGHT = {
    "TestGivesAnotherChunk": "L1.20",
    "TestDropsTheLastByte": "L1.1",
    "TestHidesBehindItsOwnReading": "L1.13",
    "TestKeepsTheCallersBuffer": "L1.4",
    "TestAnswersOutOfOrder": "L1.20",
    "TestFillsRoomsOutOfOrder": "L1.20",
    "TestSaysStoredAndDidNot": "L1.6",
    "TestDropsTheNamespace": "L1.23",
    "TestFoldsCase": "L1.23",
    "TestStopsAtAZeroByte": "L1.23",
    "TestContainsLies": "L1.9",
    "TestDeleteAlwaysSaysTrue": "L1.10",
    "TestDeleteDoesNotDelete": "L1.11",
    "TestOverwritesInPlace": "L1.8",
    "TestTearsUnderThreads": "L3.1",
    "TestLeavesAGapWhileOverwriting": "L3.1",
    "TestAsksForAWrongSize": "L1.5",
    "TestFillsHalfTheRoom": "L1.5",
    "TestShortReadsOfLargeFrames": "L1.2",
    "TestRaisesOnAMiss": "L1.7",
    "TestIgnoresARefusal": "L1.12",
    "TestHangsPastTheDeadline": "L1.24",
    "TestMergesDuplicates": "L1.21",
    "TestCloseRaisesTheSecondTime": "L0.5",
    "TestCrashesOnceClosed": "L0.6",
    "TestMendsDamage": "L2.3",
    "TestFallsOverDamage": "L2.1",
    "TestScanForgetsOne": "scan.1",
    "TestScanListsStrangers": "scan.1",
    "TestMisspellsAnAbility": "L0.2",
    "TestQuarantineKeepsReading": "quarantine.1",
    "TestLeaksALease": "sharing.9",
    "TestLendsACopy": "sharing.1",
    "TestTakesTheCallersLease": "sharing.2",
    "TestRangeForgetsTheStart": "range.1",
    "TestReopensEmptyFrames": "L3.4",
    "TestResurrects": "L3.5",
}
"""Who is caught, by which promise."""

CORRECT = ("TestCorrect", "TestCorrectAndPlain")
DROPPED, WAIVED = "TestDropsAPromise", "TestWaivesAPromise"


@dataclass
class Verdict:
    test: str
    tag: str
    """``passed``, ``failure``, ``error`` or ``skipped``."""
    message: str = ""


def promises():
    """The mark of every promise in the contract, by the test that checks it."""
    return {
        name: mark
        for name in dir(StoreContract)
        if name.startswith("test_")
        for mark in getattr(getattr(StoreContract, name), "pytestmark", [])
        if mark.name == "promise"
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run of pytest over all stores: each broken one against the promise that it breaks."""
    numbers = {mark.args[0]: name for name, mark in promises().items()}
    wanted = [f"{STORES}::{name}" for name in CORRECT]
    wanted += [f"{STORES}::{name}::{numbers[number]}" for name, number in CAUGHT.items()]
    wanted += [f"{STORES}::{DROPPED}::test_contract_is_whole", f"{STORES}::{WAIVED}"]
    report = tmp_path_factory.mktemp("kit") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *wanted],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    return done.stdout, ET.parse(report)


@pytest.fixture(scope="module")
def output(run):
    return run[0]


@pytest.fixture(scope="module")
def verdicts(run):
    found = {}
    for case in run[1].iter("testcase"):
        store = case.get("classname").rpartition(".")[2]
        test, tags = case.get("name"), ("failure", "error", "skipped")
        marks = [Verdict(test, e.tag, e.get("message")) for e in case if e.tag in tags]
        found.setdefault(store, []).extend(marks or [Verdict(test, "passed")])
    return found


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_store_passes(verdicts, name):
    tags = [verdict.tag for verdict in verdicts[name]]
    assert tags.count("passed") > 60
    assert set(tags) <= {"passed", "skipped"}


def test_a_store_with_every_ability_skips_nothing(verdicts):
    assert {verdict.tag for verdict in verdicts["TestCorrect"]} == {"passed"}


def test_what_a_store_does_not_offer_is_said_at_the_end(verdicts, output):
    skipped = [v for v in verdicts["TestCorrectAndPlain"] if v.tag == "skipped"]
    assert all(verdict.message.startswith("not offered: ") for verdict in skipped)
    (line,) = (line for line in output.splitlines() if "TestCorrectAndPlain: " in line)
    assert line.endswith(
        ": SupportsQuarantine, SupportsRangeRead, SupportsScan, SupportsSharing, foreign, limit, "
        "reopen, service.cut, service.full, service.garbage, service.kill, service.slow, "
        "service.stall, sibling"
    )


@pytest.mark.parametrize(("name", "number"), CAUGHT.items())
def test_a_broken_store_is_caught_by_the_promise_it_breaks(verdicts, name, number):
    failures = [verdict for verdict in verdicts[name] if verdict.tag != "passed"]
    assert failures, f"{name} was not caught"
    for failure in failures:
        assert failure.tag == "failure"
        assert failure.message.startswith(f"broken promise {number}: ")


def test_the_output_names_the_promise_and_gives_a_hint(output):
    mark = promises()["test_lets_go_of_the_callers_buffers"]
    assert f"broken promise L1.4: {mark.args[1]}\nhint: {mark.kwargs['hint']}\n" in output


def test_every_broken_store_is_tried():
    classes = {n.name for n in ast.parse(STORES.read_text()).body if isinstance(n, ast.ClassDef)}
    assert classes == {*CAUGHT, *CORRECT, DROPPED, WAIVED}


def test_a_test_that_is_dropped_in_silence_fails(verdicts):
    (verdict,) = verdicts[DROPPED]
    assert verdict.tag == "failure"
    assert "TestDropsAPromise replaces Data.test_a_miss_is_a_value" in verdict.message


def test_a_test_that_is_waived_shows_its_reason(verdicts, output):
    others = [v for v in verdicts[WAIVED] if v.test != "test_a_miss_is_a_value"]
    assert {verdict.tag for verdict in others} <= {"passed", "skipped"}
    assert "misses are not known here" in output


def test_every_test_of_the_contract_is_a_promise_with_a_number_of_its_own():
    tests = {name for name in dir(StoreContract) if name.startswith("test_")}
    assert tests - {"test_contract_is_whole"} == set(promises())
    numbers = [mark.args[0] for mark in promises().values()]
    assert len(numbers) == len(set(numbers))
