"""Layers of chunks from a node's slow tiers come before those behind them are read."""

from threading import Event, Thread

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.node.server.verbs import TOLD
from hexkv.adapters.node.wire import Verb
from hexkv.contracts.chunk_cache._base import TOKENS, soon
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.frames.codec import layer_parts, part_span
from hexkv.ports import CounterName, DType, KVLayout, Namespace, Reason, frame_bytes
from nodes import Node, taken_over
from processes import until

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=9, heads=2, key_width=16)
NAMESPACE = Namespace("deep", LAYOUT)
FRAME = frame_bytes(LAYOUT.chunk_bytes(TOKENS))
PROMPT = list(range(6 * TOKENS))
ENDS = [part_span(layer_parts(LAYOUT, TOKENS), layer)[1] for layer in range(LAYOUT.layers)]


class Ranges:
    """The reads of parts of frames, by layer and chunk; those from layer *held* on wait."""

    def __init__(self, monkeypatch):
        self.held, self.going_on, self.read = LAYOUT.layers, Event(), []
        self.damaged = None
        read, whole = DiskStore.read_range, DiskStore.read

        def at_once(*args):
            self.read.extend(range(LAYOUT.layers))
            return whole(*args)

        def in_turn(store, key, start, into, deadline):
            last = next((i for i, end in enumerate(ENDS) if end >= start + len(into)), -1)
            if last >= self.held:
                assert self.going_on.wait(60)
            self.read.append(last)
            outcome = read(store, key, start, into, deadline)
            if last == self.damaged:
                self.damaged = None
                into[-1:] = bytes([into[-1] ^ 1])
            return outcome

        monkeypatch.setattr(DiskStore, "read_range", in_turn)
        monkeypatch.setattr(DiskStore, "read", at_once)
        monkeypatch.setattr("hexkv.core.requests.layers.groups._LEAST_BYTES", 1)


@pytest.fixture
def ranges(monkeypatch):
    return Ranges(monkeypatch)


@pytest.fixture
def node(tmp_path):
    with Node(tmp_path, frame=FRAME, memory=8) as node:
        yield node
        node.at_rest()


def stored(node, engine):
    """The KV of the prompt, which only the disk has from now on."""
    kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
    assert engine.store(PROMPT, kv).stored_tokens == len(PROMPT)
    assert engine.flush(60)
    node.served.clear(None, ["memory"], soon())
    return kv


def found(node):
    """How many chunks of the disk were hits of the node, and how many of its chunks were not."""
    telemetry = node.served.telemetry
    assert telemetry.total(CounterName.LOOKUPS) == sum(
        telemetry.total(counter) for counter in (CounterName.HITS, CounterName.MISSES)
    )
    return telemetry.total(CounterName.HITS, tier="disk"), telemetry.total(CounterName.MISSES)


def test_the_first_layers_are_loaded_before_the_last_ones_are_read(node, ranges):
    with node.engine(NAMESPACE) as engine:
        kv, window = stored(node, engine), HeapKV(LAYOUT, len(PROMPT))
        ranges.held = LAYOUT.layers - 1
        with engine.retrieve_layers(PROMPT, window) as layers:
            for layer in layers:
                assert window.memory[layer] == kv.memory[layer]
                if layer == 1:
                    assert LAYOUT.layers - 1 not in ranges.read
                    ranges.going_on.set()
        got = layers.result()
        assert (got.hit_tokens, got.tiers) == (len(PROMPT), {"disk": len(PROMPT)})
        assert found(node) == (6, 0)
        assert window.agrees(kv, len(PROMPT))
        assert engine.retrieve(PROMPT, window).tiers == {"memory": len(PROMPT)}
        assert window.agrees(kv, len(PROMPT))


def test_a_damaged_layer_is_read_again_or_ends_the_hit(node, ranges, tmp_path):
    with node.engine(NAMESPACE) as engine:
        kv, window = stored(node, engine), HeapKV(LAYOUT, len(PROMPT))
        ranges.damaged = 5  # in one read only
        with engine.retrieve_layers(PROMPT, window) as layers:
            assert [*layers] == [*range(LAYOUT.layers)]
        assert layers.result().hit_tokens == len(PROMPT)
        assert window.agrees(kv, len(PROMPT))
        node.served.clear(None, ["memory"], soon())
        for file in (tmp_path / "disk").rglob("*"):
            if file.is_file() and file.stat().st_size >= FRAME:
                data = bytearray(file.read_bytes())
                data[ENDS[6] - 1] ^= 1
                file.write_bytes(data)
        with engine.retrieve_layers(PROMPT, window) as layers:
            assert layers.hit_tokens == len(PROMPT)
            assert [*layers] == [*range(LAYOUT.layers)]
        got = layers.result()
        assert (got.hit_tokens, got.misses[Reason.CORRUPT]) == (0, 1)
        assert found(node) == (6, 6)


@pytest.mark.thorough
def test_a_request_that_is_left_between_two_layers_leaves_nothing(node, ranges):
    with node.engine(NAMESPACE) as engine:
        kv, window = stored(node, engine), HeapKV(LAYOUT, len(PROMPT))
        ranges.held = LAYOUT.layers - 1
        with engine.retrieve_layers(PROMPT, window) as layers:
            assert next(layers) == 0
        assert engine._chunks.ledger() == {}
        ranges.going_on.set()
        assert engine.retrieve(PROMPT, window).hit_tokens == len(PROMPT)
        assert window.agrees(kv, len(PROMPT))


@pytest.mark.thorough
def test_a_node_that_knows_no_groups_of_layers_sends_whole_chunks(node, ranges, monkeypatch):
    monkeypatch.delitem(TOLD, Verb.LAYERS)
    with node.engine(NAMESPACE) as engine:
        kv, window = stored(node, engine), HeapKV(LAYOUT, len(PROMPT))
        with engine.retrieve_layers(PROMPT, window) as layers:
            assert [*layers] == [*range(LAYOUT.layers)]
        assert layers.result().hit_tokens == len(PROMPT)
        assert window.agrees(kv, len(PROMPT))


@pytest.mark.thorough
def test_a_node_that_is_taken_over_between_two_layers_brings_the_others_before(tmp_path, ranges):
    def go_on(node):
        until(lambda: node.server._barrier.down)
        ranges.going_on.set()

    with Node(tmp_path, frame=FRAME, memory=8) as node, node.engine(NAMESPACE) as engine:
        kv, window = stored(node, engine), HeapKV(LAYOUT, len(PROMPT))
        ranges.held = LAYOUT.layers - 1
        with engine.retrieve_layers(PROMPT, window) as layers:
            assert next(layers) == 0
            Thread(target=go_on, args=(node,)).start()
            with taken_over(node) as heir:
                assert [*layers] == [*range(1, LAYOUT.layers)]
                assert layers.result().hit_tokens == len(PROMPT)
                assert window.agrees(kv, len(PROMPT))
                assert engine.retrieve(PROMPT, window).hit_tokens == len(PROMPT)
                until(lambda: not (heir.server.leased_bytes or heir.ledger()))


@pytest.mark.thorough
def test_layers_that_do_not_come_in_time_end_the_hit(node, ranges):
    quick = {"lookup": 60.0, "retrieve": 0.5, "store": 60.0, "close": 60.0}
    with node.engine(NAMESPACE) as patient, node.engine(NAMESPACE, deadlines=quick) as engine:
        stored(node, patient)
        ranges.held = LAYOUT.layers - 1
        with engine.retrieve_layers(PROMPT, HeapKV(LAYOUT, len(PROMPT))) as layers:
            assert [*layers] == [*range(LAYOUT.layers)]
        got = layers.result()
        assert got.hit_tokens == 0
        assert got.misses[Reason.TIMED_OUT] == 1
        ranges.going_on.set()
