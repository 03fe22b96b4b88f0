"""The contracts catch every lie we could think of, and call it by its name."""

import json

import pytest

from hexkv.contracts.check.command import run
from hexkv.contracts.kit.cases import each
from mutants import HANGING, PORTS, WITNESSES, mutants, trial
from mutants.__main__ import README, counted

MUTANTS = mutants()
DROPPED, WAIVED = "witnesses.TestDropsAPromise", "witnesses.TestWaivesAPromise"

CORRECT = [
    "TestCapableStore",
    "TestPlainStore",
    "TestPlainSerde",
    "TestBoundedSerde",
    "TestLossySerde",
    "TestSlotKV",
    "TestBlockwiseKV",
    "TestPlainMemory",
    "TestPlainChunker",
    "TestPlainFinder",
    "TestSegments",
    "TestListPolicy",
    "TestGramophone",
    "TestCacheEngine",
    "TestLocalChannel",
    "TestLocalCollective",
    "TestDecodingKV",
    "TestBoard",
    "TestSums",
    "TestContents",
    "TestLeavingStore",
]
MODEST = {
    "TestCapableStore": "largest",
    "TestPlainStore": (
        "SupportsClear, SupportsLimit, SupportsQuarantine, SupportsRangeRead, SupportsScan, "
        "SupportsZeroCopy, foreign, huge, largest, limit, reopen, service.cut, service.full, "
        "service.garbage, service.kill, service.slow, service.stall, sibling, unreadable"
    ),
    "TestLossySerde": (
        "a bound on its error, float16, float32, float8_e4m3fn, float8_e5m2, per_layer, uint8"
    ),
    "TestBoundedSerde": "per_layer",
    "TestLocalChannel": "proxied, recipe, stranger, successor",
    "TestSlotKV": "units of several tokens",
    "TestPlainMemory": "SupportsPrefault",
}
"""Correct adapters that offer less than there is."""


SLOW = {"announcings.TestHasNoTime", "prefix_caches.TestNamesChunksAlone"}
SLOW |= {"segment_finders.TestGrows", "channels.TestKeepsCorruptFrames"}
"""To catch these takes seconds."""

FEW = [
    next(one for one in MUTANTS if one.port == port.name and one.case not in SLOW) for port in PORTS
]
"""The first of each port that is caught at once."""

SAID = next(m for m in MUTANTS if m.case == "store_data.TestKeepsTheCallersBuffer")
OPENLY = [
    f"{WITNESSES}::TestDropsAPromise::test_contract_is_whole",
    f"{WITNESSES}::TestWaivesAPromise::test_a_miss_is_a_value",
    f"{WITNESSES}::TestWaivesAPromise::test_begins_empty",
]


STALE = ("positional argument", "unexpected keyword argument")
"""What a mutant says that no longer fits what it changes: it is caught for nothing it means."""


def missed(found, some):
    """Those of *some* mutants that were not caught by the promise they break."""
    assert [text for text in STALE if text in found.output] == []
    return {
        mutant.case: found.verdicts[mutant.case]
        for mutant in some
        if not found.kills(mutant.case, mutant.promise.number)
    }


@pytest.fixture(scope="module")
def few():
    """One run of pytest over a few of them."""
    return trial([*OPENLY, *(node for mutant in (*FEW, SAID) for node in mutant.nodes)])


@pytest.fixture(scope="module")
def found():
    """One run of pytest: mutants against the promise they break, correct ones against all."""
    nodes = [f"{WITNESSES}::{name}" for name in CORRECT]
    return trial([*nodes, *(node for mutant in MUTANTS for node in mutant.nodes)])


def test_a_broken_adapter_of_each_port_is_caught_by_the_promise_it_breaks(few):
    assert missed(few, FEW) == {}


@pytest.mark.thorough
def test_every_broken_adapter_is_caught_by_the_promise_it_breaks(found):
    assert missed(found, MUTANTS) == {}


@pytest.mark.thorough
def test_the_page_of_the_contracts_counts_what_was_caught():
    """``python -m mutants --write PORT`` brings a row up to date."""
    found = {
        port.name: (len(port.promises()), many, many)
        for port in PORTS
        for many in [sum(mutant.port == port.name for mutant in MUTANTS)]
    }
    table = counted(README.read_text())
    assert {name: row[:3] for name, row in table.items()} == found
    assert max(float(seconds) for *_, seconds in table.values() if seconds != "-") < 10


def test_each_says_what_is_wrong_with_it():
    assert [mutant.case for mutant in MUTANTS if not mutant.wrong] == []


@each("port", PORTS, ids=lambda port: port.name)
def test_every_promise_is_broken_by_somebody(port):
    broken = {mutant.promise.number for mutant in MUTANTS if mutant.port == port.name}
    assert sorted(set(port.promises()) - broken) == []


@each("port", PORTS, ids=lambda port: port.name)
def test_every_test_of_a_contract_is_a_promise_and_no_number_means_two_things(port):
    promises = port.tests()
    tests = {name for name in dir(port.contract) if name.startswith("test_")}
    assert tests - {"test_contract_is_whole"} == set(promises)
    for promise in promises.values():
        assert promise == port.promises()[promise.number]


@pytest.mark.thorough
@each("name", CORRECT)
def test_a_correct_adapter_passes_and_skips_only_what_it_does_not_offer(found, name):
    tags = [verdict.tag for verdict in found.verdicts[f"witnesses.{name}"]]
    assert tags.count("passed") >= 5  # as many quick promises has the smallest contract
    assert set(tags) == ({"passed", "skipped"} if name in MODEST else {"passed"})


@pytest.mark.thorough
@each("name", MODEST)
def test_what_an_adapter_does_not_offer_is_said_at_the_end(found, name):
    (line,) = (line for line in found.output.splitlines() if f"{name}: " in line)
    assert line.partition(f"{name}: ")[2] == MODEST[name]


def test_the_output_names_the_promise_and_gives_a_hint(few):
    named = f"broken promise L1.4: {SAID.promise.text}\n"
    assert named in few.output
    assert f"hint: {SAID.promise.hint}\n" in few.output.partition(named)[2][:1000]


def test_a_test_that_is_dropped_in_silence_fails(few):
    (failed,) = few.verdicts[DROPPED]
    assert failed.tag == "failure"
    assert "TestDropsAPromise replaces Data.test_a_miss_is_a_value" in failed.message


def test_a_test_that_is_waived_shows_its_reason(few):
    assert {verdict.tag for verdict in few.verdicts[WAIVED]} == {"passed", "skipped"}
    assert "misses are not known here" in few.output


@pytest.mark.thorough
@each(
    ("kind", "prefix"),
    [
        ("announcing", "announcing"),
        ("chunk_cache", "chunks"),
        ("chunk_service", "service"),
        ("collective", "collective"),
        ("observer", "observer"),
        ("encoded", "encoded"),
        ("hand_over", "handover"),
        ("segment_finder", "finder"),
    ],
)
def test_a_check_takes_each_kind_that_only_a_function_gives(kind, prefix, capsys):
    code = run([f"media.candidates:{kind}", "--json", "-", "--level", "L0", "--level", "L1"])
    (card,) = json.loads(capsys.readouterr().out)["cards"]
    lines = {line["number"]: line["reason"] for line in card["promises"]}
    assert code == 0, lines
    assert sum(number.startswith(f"{prefix}.") for number in lines) >= 3


@pytest.mark.thorough
def test_whoever_blocks_for_ever_is_named_and_the_run_ends():
    """In each method of each port: by its limit, or by the promise's own patience."""
    options = ["-m", "not thorough", "-k", "not outlives", "--hexkv-limit", "3"]
    found = trial([str(HANGING)], *options)
    assert len(found.verdicts) > 40
    for case, verdicts in found.verdicts.items():
        failed = [one for one in verdicts if one.tag in ("failure", "error")]
        assert any("broken promise " in one.message for one in failed), case
        assert len({one.test for one in failed if "did not end within" in one.message}) <= 3, case
