"""What the workers' half does with a step: real engines over tensors of vLLM's shape."""

import gc
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from threading import Event

import pytest
import torch

from engines.vllm.vllm_rank import (
    ALL,
    BLOCK,
    CHUNK,
    MINE,
    NAMES,
    OTHER,
    PLAIN,
    PROMPT,
    Rank,
    load,
    lose,
    packed,
    save,
    store,
)
from hexkv.adapters.vllm.messages import Save, Scope, Step
from hexkv.adapters.vllm.metrics.events import EventBuffer
from hexkv.adapters.vllm.metrics.metrics import FAILED_TOKENS, LOADED_TOKENS, STORED_TOKENS
from hexkv.adapters.vllm.worker import worker_connector
from hexkv.contracts.kit.cases import each
from hexkv.ports import Cleared, InvalidRequest, traceparent


class Adapter:
    """Like vLLM's, as far as what is in it counts."""

    def __init__(self, weight):
        self.weights = [weight]


@pytest.fixture
def rank():
    rank = Rank()
    yield rank
    rank.half.close()


def test_what_was_saved_is_loaded_into_other_blocks(rank):
    assert rank.find() == 0
    store(rank)
    assert rank.find() == len(PROMPT)
    rank.run(Step(2, loads=[load()]))
    assert rank.equal(OTHER, MINE)
    assert rank.half.bad_blocks() == set()
    counts = rank.half.tally.take()
    assert (counts[STORED_TOKENS], counts[LOADED_TOKENS]) == (len(PROMPT), len(PROMPT))
    assert rank.half.tally.take() == {}


def test_a_tail_is_loaded_up_to_its_last_block_and_only_full_chunks_are_told_of():
    end, ledger = ALL - BLOCK, EventBuffer({"memory": "CPU"})
    hashes = tuple(bytes([n]) for n in range(end // BLOCK))
    rank = Rank(tail=BLOCK, ledger=ledger)
    rank.run(Step(1, saves=[replace(save(end=end), hashes=hashes)]))
    assert [event.chunk.hashes for event in ledger.take()] == [hashes[i : i + 2] for i in (0, 2, 4)]
    assert rank.find(PROMPT[:end]) == rank.find() == rank.find([*PROMPT[: end + 3], 7]) == end
    rank.run(Step(2, loads=[load(end=end)]))
    assert rank.half.bad_blocks() == set()
    assert rank.equal(MINE[:-1], OTHER[:-1])
    assert not rank.equal(MINE[-1:], OTHER[-1:])
    rank.half.close()


def test_blocks_before_the_start_stay_as_they_are(rank):
    store(rank)
    before = rank.caches["layer.0"][OTHER[:3]].clone()
    rank.run(Step(2, loads=[load(start=3 * BLOCK)]))
    assert torch.equal(rank.caches["layer.0"][OTHER[:3]], before)
    assert rank.equal(OTHER[3:], MINE[3:])
    assert rank.half.bad_blocks() == set()


@each("layerwise", [False, True])
def test_what_is_lost_between_finding_and_loading_is_reported_block_by_block(layerwise):
    rank = Rank(layerwise=layerwise)
    try:
        store(rank)
        lose(rank, 1)
        rank.run(Step(2, loads=[load()]))
        assert rank.half.bad_blocks() == set(OTHER[2:])
        assert rank.equal(OTHER[:2], MINE[:2])
        assert rank.half.bad_blocks() == set()
        assert rank.half.tally.take()[FAILED_TOKENS] == 3 * CHUNK
    finally:
        rank.half.close()


def test_nothing_is_stored_that_was_computed_from_what_did_not_arrive(rank):
    store(rank, end=CHUNK)
    spoiled = Save("r", Scope(), packed(PROMPT), CHUNK, len(PROMPT), OTHER)
    rank.run(Step(2, loads=[load(end=2 * CHUNK)], saves=[spoiled]))
    assert rank.half.bad_blocks() == set(OTHER[2:4])
    assert rank.find() == CHUNK
    rank.run(Step(3, saves=[spoiled]))
    assert rank.find() == len(PROMPT)


def test_layers_arrive_before_the_model_reads_them():
    rank = Rank(layerwise=True)
    try:
        store(rank)
        step = Step(2, loads=[load()])
        rank.half.start(step)
        for name in NAMES:
            rank.half.wait_for_layer(name)
            assert torch.equal(rank.caches[name][OTHER], rank.caches[name][MINE])
        rank.half.wait_for_layer("drafter.0")
        rank.half.end_loads(step)
        assert rank.half.bad_blocks() == set()
        assert rank.half.finished_steps() == {2: 1}
    finally:
        rank.half.close()


def test_a_model_that_did_not_wait_for_all_layers_computed_without_them():
    rank = Rank(layerwise=True)
    try:
        store(rank)
        rank.run(Step(2, loads=[load()]), layers=NAMES[:2])
        assert rank.half.bad_blocks() == set(OTHER)
    finally:
        rank.half.close()


def over(rank):
    """What has arrived, once something has."""
    _, future = rank.half._outside.running["r"]
    future.exception(timeout=60)
    return rank.half.arrived()


def test_a_load_between_steps_is_reported_once_when_it_is_over(rank):
    store(rank)
    rank.run(Step(2, loads=[load(later=True)]))
    assert (over(rank), rank.half.arrived()) == ({"r"}, set())
    assert (rank.half.bad_blocks(), rank.half.finished_steps()) == (set(), {})
    assert rank.equal(OTHER, MINE)


def test_a_load_between_steps_is_over_before_what_was_held_for_it_is_given_back(rank, monkeypatch):
    """A node's answers are nothing that a first token waits for."""
    store(rank)
    rank.find()
    unpin, may = rank.engine.unpin, Event()
    monkeypatch.setattr(rank.engine, "unpin", lambda owner: may.wait(60) and unpin(owner))
    rank.half.start(Step(2, loads=[load(later=True)]))
    try:
        assert over(rank) == {"r"}
        assert rank.equal(OTHER, MINE)
        assert rank.engine.health().pins == {"r": 4}
    finally:
        may.set()
    rank.half._threads.shutdown()
    assert rank.engine.health().pins == {}


def test_a_step_that_computes_nothing_waits_for_loads_or_answers(rank, monkeypatch):
    waits = []
    monkeypatch.setattr(worker_connector, "wait", lambda loads, *how: waits.append((loads, *how)))
    store(rank)
    for idle in (False, True):
        rank.run(Step(2, loads=[load(later=True)], idle=idle))
        _, future = rank.half._outside.running["r"]
        future.exception(timeout=60)
        assert rank.half.arrived() == {"r"}
        assert waits == [([future], 0.005, FIRST_COMPLETED)][: int(idle)]
    for count, answers in ((1, False), (2, True)):
        rank.run(Step(3, idle=True, waits=answers))
        assert (rank.half.arrived(), len(waits)) == (set(), count)
    assert waits[-1][1] == 0.001, "an answer wakes nobody"


def test_a_load_between_steps_that_fails_is_reported_with_its_blocks(rank):
    store(rank)
    lose(rank, 1)
    rank.run(Step(2, loads=[load(later=True)]))
    assert over(rank) == {"r"}
    assert rank.half.bad_blocks() == set(OTHER[2:])


@pytest.mark.parametrize("later", [False, True])
def test_a_load_that_cannot_even_begin_is_a_failed_one(rank, later):
    store(rank)
    step = Step(2, loads=[load(blocks=[1000] * 8, later=later)])
    if later:
        rank.half.start(step)
        assert over(rank) == {"r"}
    else:
        with pytest.raises(InvalidRequest):
            rank.half.start(step)
        rank.half.failed(step)
    assert rank.half.bad_blocks() == {1000}


def test_a_step_that_failed_as_a_whole_reports_every_block_and_request(rank):
    step = Step(2, loads=[load(later=True), load(blocks=MINE)])
    rank.half.failed(step)
    assert rank.half.arrived() == {"r"}
    assert rank.half.bad_blocks() == {*OTHER, *MINE}


def test_finding_holds_chunks_until_they_are_loaded_or_let_go(rank):
    store(rank)
    assert rank.engine.health().pins == {}
    rank.find()
    assert rank.engine.health().pins == {"r": 4}
    rank.run(Step(2, loads=[load()]))
    assert rank.engine.health().pins == {}
    rank.find(name="other")
    rank.desk({"op": "release", "id": "other"}, memoryview(b""))
    assert rank.engine.health().pins == {}


def test_requests_of_another_kind_share_nothing(rank):
    store(rank, scope=Scope(salt="a"))
    assert rank.find(scope=Scope(salt="a")) == len(PROMPT)
    for scope in (Scope(), Scope(salt="b"), Scope(salt="a", inputs="x")):
        assert rank.find(scope=scope) == 0


@each("way", ["in the step", "layer by layer", "between steps"])
@each("happened", ["replaced", "gone"])
def test_kv_of_an_adapter_is_used_while_that_adapter_is_the_one_that_computes(way, happened):
    rank = Rank(layerwise=way == "layer by layer")
    poet, models = Scope(lora="poet", adapter=1), [Adapter(1)]
    try:
        store(rank, scope=poet)
        assert rank.find(scope=poet) == 0, "nothing was stored of weights that nobody knows"
        rank.adapters.loaded("poet", 1, models[0])
        store(rank, scope=poet)
        assert rank.find() == 0
        assert rank.find(scope=poet) == ALL
        if happened == "replaced":
            models.append(Adapter(2))
            rank.adapters.loaded("poet", 1, models[1])
        else:
            models.clear()
            gc.collect()
        assert rank.find(scope=poet, name="later") == 0
        later = way == "between steps"
        rank.run(Step(3, loads=[load(scope=poet, later=later)], saves=[save(scope=poet)]))
        if later:
            assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
            assert rank.half.arrived() == {"r"}
        assert rank.half.bad_blocks() == set(OTHER)
        assert rank.engine.health().pins == {}
    finally:
        rank.half.close()


def test_only_tiers_that_are_named_are_cleared(rank):
    store(rank)
    nowhere = {"op": "clear", "tiers": []}
    assert rank.desk(nowhere, memoryview(b"")) == {"chunks": 0, "left": {}}
    assert rank.find() == ALL
    memory = nowhere | {"tiers": ["memory"]}
    assert rank.desk(memory, memoryview(b"")) == {"chunks": 4, "left": {}}
    assert rank.find(name="later") == 0


def test_clearing_that_may_have_left_something_says_so(rank, monkeypatch):
    left = Cleared(3, {"memory": 3}, {"disk": "chunks being written may stay"})
    monkeypatch.setattr(rank.engine, "clear", lambda tiers: left)
    answer = rank.desk({"op": "clear", "tiers": ["memory", "disk"]}, memoryview(b""))
    assert answer == {"chunks": 3, "left": {"disk": "chunks being written may stay"}}


@each("way", ["in the step", "layer by layer", "between steps"])
def test_a_load_under_which_the_weights_were_replaced_did_not_arrive(way):
    """It began with the first weights; vLLM is about to compute with others."""
    rank = Rank(layerwise=way == "layer by layer")
    try:
        store(rank)
        assert rank.find() == ALL
        if way == "between steps":
            rank.run(Step(2, loads=[load(later=True)]))
            assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
            rank.run(Step(3, idle=True, replaced=True))
            assert rank.half.arrived() == {"r"}
        else:
            rank.run(Step(2, loads=[load()], replaced=True))
        assert rank.half.bad_blocks() == set(OTHER)
        assert rank.engine.health().pins == {}
    finally:
        rank.half.close()


@each("way", ["in the step", "between steps"])
def test_a_load_under_which_its_adapter_was_replaced_did_not_arrive(way):
    rank = Rank()
    poet, models = Scope(lora="poet", adapter=1), [Adapter(1), Adapter(2)]
    try:
        rank.adapters.loaded("poet", 1, models[0])
        store(rank, scope=poet)
        read = rank.engine.retrieve

        def replaced(*args, **named):
            got = read(*args, **named)
            rank.adapters.loaded("poet", 1, models[1])
            return got

        rank.engine.retrieve = replaced
        rank.run(Step(2, loads=[load(scope=poet, later=way == "between steps")]))
        if way == "between steps":
            assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
            assert rank.half.arrived() == {"r"}
        assert rank.half.bad_blocks() == set(OTHER)
    finally:
        rank.half.close()


@each(
    "question",
    [
        {},
        {"op": "dance"},
        {"op": "find"},
        {"op": "find", "id": "r", "scope": ["a"]},
        {"op": "find", "id": "r", "scope": ["", "", "", "1"]},
    ],
)
def test_questions_without_meaning_are_refused(rank, question):
    with pytest.raises(InvalidRequest):
        rank.desk(question, memoryview(b""))


def test_chunks_are_read_ahead_from_slow_tiers_and_given_back(tmp_path):
    rank = Rank(tiers=[{"store": "disk", "settings": {"root": str(tmp_path)}}])
    try:
        store(rank)
        assert rank.engine.flush(60)
        rank.find()
        assert rank.engine.health().prefetches == 1
        rank.run(Step(2, loads=[load()]))
        assert rank.equal(OTHER, MINE)
        assert rank.engine.health().prefetches == 0
        rank.find()
        assert rank.desk.release("r")
        assert rank.engine.health().prefetches == 0
    finally:
        rank.half.close()


def test_a_question_that_was_overtaken_by_its_release_holds_nothing(rank):
    store(rank)
    for release, find, held in ((2, 1, False), (3, 4, True)):
        rank.desk({"op": "release", "id": "r", "n": release}, memoryview(b""))
        question = {"op": "find", "id": "r", "scope": list(PLAIN), "n": find}
        assert rank.desk(question, memoryview(packed(PROMPT)))["hit"] == ALL
        assert bool(rank.engine.health().pins) == held


def test_loads_of_which_nothing_can_be_said_count_as_lost(rank):
    store(rank)
    rank.half.start(Step(2, loads=[load(later=True)]))
    assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
    assert rank.half.lost() == {"r"}
    assert rank.half.bad_blocks() == set(OTHER)
    assert rank.half.lost() == rank.half.arrived() == set()


@pytest.mark.thorough
@pytest.mark.parametrize("layerwise", [False, True])
def test_calls_for_a_request_belong_to_the_span_that_it_came_with(layerwise, monkeypatch):
    rank, seen = Rank(layerwise=layerwise), {}
    for name in ("store", "lookup", "retrieve", "retrieve_layers"):
        real = getattr(rank.engine, name)

        def noting(*given, name=name, real=real, **more):
            seen[name] = traceparent()
            return real(*given, **more)

        monkeypatch.setattr(rank.engine, name, noting)
    rank.run(Step(1, saves=[replace(save(), parent="stored")]))
    question = {"op": "find", "id": "r", "scope": list(PLAIN), "parent": "looked up"}
    assert rank.desk(question, memoryview(packed(PROMPT)))["hit"] == ALL
    rank.run(Step(2, loads=[replace(load(), parent="loaded")]))
    assert not rank.half.bad_blocks()
    rank.half.close()
    how = "retrieve_layers" if layerwise else "retrieve"
    assert seen == {"store": "stored", "lookup": "looked up", how: "loaded"}
    assert traceparent() == ""
