"""The contracts catch every lie we could think of, and call it by its name."""

import pytest

from hexkv.contracts.cases import each
from mutants import PORTS, WITNESSES, mutants, trial

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
    "TestListPolicy",
    "TestGramophone",
]
MODEST = {
    "TestPlainStore": (
        "SupportsQuarantine, SupportsRangeRead, SupportsScan, SupportsSharing, foreign, limit, "
        "reopen, service.cut, service.full, service.garbage, service.kill, service.slow, "
        "service.stall, sibling"
    ),
    "TestLossySerde": (
        "a bound on its error, float16, float32, float8_e4m3fn, float8_e5m2, per_layer, uint8"
    ),
    "TestBoundedSerde": "per_layer",
    "TestSlotKV": "units of several tokens",
}
"""Correct adapters that offer less than there is."""


@pytest.fixture(scope="module")
def found():
    """One run of pytest: mutants against the promise they break, correct ones against all."""
    nodes = [f"{WITNESSES}::{name}" for name in CORRECT]
    nodes += [f"{WITNESSES}::TestDropsAPromise::test_contract_is_whole"]
    nodes += [
        f"{WITNESSES}::TestWaivesAPromise::test_{name}"
        for name in ("a_miss_is_a_value", "begins_empty")
    ]
    return trial([*nodes, *(node for mutant in MUTANTS for node in mutant.nodes)])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.case)
def test_a_broken_adapter_is_caught_by_the_promise_it_breaks(found, mutant):
    assert found.kills(mutant.case, mutant.promise.number), found.verdicts[mutant.case]


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


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_adapter_passes_and_skips_only_what_it_does_not_offer(found, name):
    tags = [verdict.tag for verdict in found.verdicts[f"witnesses.{name}"]]
    assert tags.count("passed") > 5
    assert set(tags) == ({"passed", "skipped"} if name in MODEST else {"passed"})


@pytest.mark.parametrize("name", MODEST)
def test_what_an_adapter_does_not_offer_is_said_at_the_end(found, name):
    (line,) = (line for line in found.output.splitlines() if f"{name}: " in line)
    assert line.partition(f"{name}: ")[2] == MODEST[name]


def test_the_output_names_the_promise_and_gives_a_hint(found):
    (promise,) = (m.promise for m in MUTANTS if m.case == "store_data.TestKeepsTheCallersBuffer")
    named = f"broken promise L1.4: {promise.text}\n"
    assert named in found.output
    assert f"hint: {promise.hint}\n" in found.output.partition(named)[2][:1000]


def test_a_test_that_is_dropped_in_silence_fails(found):
    (failed,) = found.verdicts[DROPPED]
    assert failed.tag == "failure"
    assert "TestDropsAPromise replaces Data.test_a_miss_is_a_value" in failed.message


def test_a_test_that_is_waived_shows_its_reason(found):
    assert {verdict.tag for verdict in found.verdicts[WAIVED]} == {"passed", "skipped"}
    assert "misses are not known here" in found.output
