"""The serde contract catches every lie we could think of, and calls it by its name."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hexkv.contracts.serde import SerdeContract

HERE = Path(__file__).parent
SERDES = HERE / "broken_serdes.py"

CAUGHT = {
    "TestHasNoBound": "serde.1",
    "TestHasALongName": "serde.2",
    "TestKnowsTwoByteElementsOnly": "serde.3",
    "TestTakesAllLayersForTheFirst": "serde.3",
    "TestSaysLosslessAndIsNot": "serde.4",
    "TestDividesByTheSpread": "serde.4",
    "TestHopesThatKVShrinks": "serde.4",
    "TestForgetsItsTable": "serde.5",
    "TestWorksInTheTarget": "serde.6",
    "TestLeavesZerosOut": "serde.7",
    "TestWantsToWriteOnTheChunk": "serde.8",
    "TestWantsEvenAddresses": "serde.8",
    "TestKeepsTheCallersBuffer": "serde.9",
    "TestWorksOnItsInput": "serde.9",
    "TestRemembersWhatItEncoded": "serde.10",
    "TestSharesItsWorkingMemory": "serde.11",
    "TestPadsWhatIsCut": "serde.12",
    "TestIgnoresATail": "serde.13",
    "TestFillsWhatThereIs": "serde.14",
    "TestLetsErrorsThrough": "serde.15",
    "TestStumblesOverNoise": "serde.16",
    "TestBelievesClaims": "serde.17",
    "TestDeclaresLayersAndHasNone": "serde.20",
    "TestGivesTheNextLayer": "serde.20",
    "TestReadsAllForOneLayer": "serde.21",
    "TestTrustsParts": "serde.22",
    "TestIsFurtherOffThanItSays": "serde.23",
    "TestTouchesWhatIsNoNumber": "serde.23",
    "TestDeclaresNothingByABound": "serde.24",
}
"""Who is caught, by which promise."""

CORRECT = ("TestCorrect", "TestCorrectAndLossy", "TestCorrectAndBounded")
DROPPED, WAIVED = "TestDropsAPromise", "TestWaivesAPromise"

PROMISES = {
    mark.args[0]: name
    for name in dir(SerdeContract)
    if name.startswith("test_")
    for mark in getattr(getattr(SerdeContract, name), "pytestmark", [])
    if mark.name == "promise"
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """``(tag, message)`` of every test, by serde: each broken one runs the promise it breaks."""
    wanted = [f"{SERDES}::{name}" for name in CORRECT]
    wanted += [f"{SERDES}::{name}::{PROMISES[number]}" for name, number in CAUGHT.items()]
    wanted += [f"{SERDES}::{DROPPED}::test_contract_is_whole"]
    wanted += [f"{SERDES}::{WAIVED}::test_any_bytes_are_kv"]
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
    found = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        marks = [e for e in case if e.tag in ("failure", "error", "skipped")]
        verdict = (marks[0].tag, marks[0].get("message")) if marks else ("passed", "")
        found[case.get("classname").rpartition(".")[2]].append(verdict)
    return found


def test_a_correct_serde_passes_and_skips_nothing(verdicts):
    assert {tag for tag, _ in verdicts["TestCorrect"]} == {"passed"}
    assert len(verdicts["TestCorrect"]) > 90


def test_a_lossy_serde_passes_and_skips_what_it_does_not_offer(verdicts):
    tags = [tag for tag, _ in verdicts["TestCorrectAndLossy"]]
    assert set(tags) == {"passed", "skipped"}
    skipped = {message for tag, message in verdicts["TestCorrectAndLossy"] if tag == "skipped"}
    assert "not offered: per_layer" in skipped
    assert "not offered: float32" in skipped
    assert "not offered: a bound on its error" in skipped


def test_a_lossy_serde_that_declares_its_bound_needs_no_other_fixture(verdicts):
    skipped = {message for tag, message in verdicts["TestCorrectAndBounded"] if tag != "passed"}
    assert skipped == {"not offered: per_layer"}


@pytest.mark.parametrize(("name", "number"), CAUGHT.items())
def test_a_broken_serde_is_caught_by_the_promise_it_breaks(verdicts, name, number):
    failures = [verdict for verdict in verdicts[name] if verdict[0] != "passed"]
    assert failures, f"{name} was not caught"
    for tag, message in failures:
        assert tag == "failure"
        assert message.startswith(f"broken promise {number}: ")


def test_every_broken_serde_is_tried():
    classes = {n.name for n in ast.parse(SERDES.read_text()).body if isinstance(n, ast.ClassDef)}
    tried = {*CAUGHT, *CORRECT, DROPPED, WAIVED}
    assert {name for name in classes if name.startswith("Test")} == tried


def test_every_promise_is_broken_by_somebody():
    assert set(CAUGHT.values()) == set(PROMISES)


def test_every_test_of_the_contract_is_a_promise_with_a_number_of_its_own():
    tests = {name for name in dir(SerdeContract) if name.startswith("test_")}
    assert tests - {"test_contract_is_whole"} == set(PROMISES.values())


def test_a_promise_that_is_dropped_fails_and_one_that_is_waived_says_why(verdicts):
    ((tag, message),) = verdicts[DROPPED]
    assert tag == "failure"
    assert "TestDropsAPromise" in message
    ((tag, message),) = verdicts[WAIVED]
    assert tag == "skipped"
    assert "made for numbers only" in message
