"""While vLLM sleeps its KV memory is gone: nothing reads it, and nothing writes to it."""

from concurrent.futures import wait
from threading import Event, Thread

import pytest
import torch

from engines.vllm.vllm_rank import (
    ALL,
    BLOCK,
    BLOCKS,
    HEADS,
    MINE,
    NAMES,
    OTHER,
    WIDTH,
    Rank,
    load,
    save,
    store,
)
from hexkv.adapters.vllm.configuration.windows import LayerShape, pages_of
from hexkv.adapters.vllm.messages import Step
from hexkv.adapters.vllm.worker import worker_connector
from hexkv.ports import EngineBusy

WAYS = ["in the step", "layer by layer", "between steps"]


@pytest.fixture
def rank():
    rank = Rank()
    yield rank
    rank.half.close()


class Slow:
    """A rank's reads, each of which waits until :meth:`go`, and then writes."""

    def __init__(self, rank, monkeypatch):
        self.begun, self.go = Event(), Event()
        read = rank.engine.retrieve

        def slow(*given, **named):
            self.begun.set()
            assert self.go.wait(60)
            return read(*given, **named)

        monkeypatch.setattr(rank.engine, "retrieve", slow)


def move(rank):
    """Give the rank's tensors other memory, which holds nothing yet: windows on it."""
    rank.caches = {name: torch.zeros_like(cache) for name, cache in rank.caches.items()}
    size = HEADS * BLOCK * 2 * WIDTH * 4
    shapes = dict.fromkeys(NAMES, LayerShape(size, HEADS, WIDTH, WIDTH))
    return pages_of(rank.caches, shapes, count=BLOCKS, block=BLOCK, apart=False)


def loaded(rank, way):
    """Run a step that loads, to the end of the load; what did not arrive."""
    rank.run(Step(5, loads=[load(later=way == "between steps")]))
    if way == "between steps":
        assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
        assert rank.half.arrived() == {"r"}
    return rank.half.bad_blocks()


def test_vllm_keeps_its_memory_until_loads_under_way_are_over(rank, monkeypatch):
    store(rank)
    slow = Slow(rank, monkeypatch)
    rank.half.start(Step(2, loads=[load(later=True)]))
    assert slow.begun.wait(60)
    gone = Event()

    def leave():
        rank.half.leave()
        gone.set()

    leaving = Thread(target=leave)
    leaving.start()
    assert not gone.wait(0.05)
    slow.go.set()
    assert gone.wait(60)
    leaving.join()
    before = rank.caches["layer.0"].clone()
    rank.half._threads.shutdown()
    assert torch.equal(rank.caches["layer.0"], before), "nothing is written from then on"


@pytest.mark.parametrize("known", [False, True])
def test_a_load_that_vllm_does_not_know_of_by_then_has_not_arrived(rank, known):
    store(rank)
    rank.half.start(Step(2, loads=[load(later=True)]))
    assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
    if known:
        assert rank.half.arrived() == {"r"}
    rank.half.leave()
    rank.half.go_on(move(rank))
    assert rank.half.arrived() == (set() if known else {"r"})
    assert rank.half.bad_blocks() == (set() if known else set(OTHER))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_loaded_or_stored_while_there_is_no_memory(way):
    rank = Rank(layerwise=way == "layer by layer")
    try:
        store(rank, end=ALL // 2)
        before = {name: cache.clone() for name, cache in rank.caches.items()}
        rank.half.leave()
        step = Step(2, loads=[load(later=way == "between steps")], saves=[save()])
        try:
            rank.run(step)
        except Exception:  # noqa: BLE001 - as the connector does
            rank.half.failed(step)
            rank.half.save(step)
        if way == "between steps":
            assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
            assert rank.half.arrived() == {"r"}
        assert rank.half.bad_blocks() == set(OTHER)
        assert all(torch.equal(cache, before[name]) for name, cache in rank.caches.items())
        assert rank.find(name="later") == ALL // 2
        rank.desk.release("later")
        assert rank.engine.health().pins == {}
    finally:
        rank.half.close()


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_comes_back_elsewhere_is_used_where_it_is(way):
    rank = Rank(layerwise=way == "layer by layer")
    try:
        store(rank)
        before = rank.caches
        old = {name: cache.clone() for name, cache in before.items()}
        for _ in range(2):
            rank.half.leave()
        pages = move(rank)
        for _ in range(2):
            rank.half.go_on(pages)
        assert loaded(rank, way) == set()
        for name in NAMES:
            assert torch.equal(rank.caches[name][OTHER], old[name][MINE])
            assert torch.equal(before[name], old[name]), "the memory of before is left alone"
        for cache in rank.caches.values():
            cache[MINE] = 1.0
        rank.engine.clear()
        store(rank)
        assert loaded(rank, way) == set()
        assert rank.equal(OTHER, MINE)
    finally:
        rank.half.close()


def test_where_a_load_does_not_end_vllm_is_asked_to_stay_awake(rank, monkeypatch):
    store(rank)
    monkeypatch.setattr(worker_connector, "_LEAVING", 0.01)
    slow = Slow(rank, monkeypatch)
    rank.half.start(Step(2, loads=[load(later=True)]))
    assert slow.begun.wait(60)
    with pytest.raises(EngineBusy, match="do not sleep"):
        rank.half.leave()
    slow.go.set()
    assert not wait([done for _, done in rank.half._outside.running.values()], 60).not_done
    assert rank.half.arrived() == {"r"}
    assert rank.half.bad_blocks() == set()
    assert rank.equal(OTHER, MINE)
