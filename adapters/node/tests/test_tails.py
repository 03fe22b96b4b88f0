"""Tails over a node: what there is of a prompt's last chunk is found, however it is asked for."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from engines.hf.families import CHUNK, ends, families, longest
from hexkv.contracts.chunk_cache._base import LAYOUT
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.ports import Reason
from nodes import Node
from processes import until


def computed(tokens):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def prefetched_tokens(engine, lookup_id, tokens):
    """What a prefetch says to hold, once it knows."""
    until(lambda: engine.prefetch(lookup_id, tokens) is not None)
    return engine.prefetch(lookup_id, tokens)


def loaded(engine, tokens, lookup_id, *, by_layer):
    """What a retrieve of *tokens* brings, after its window was compared."""
    window = HeapKV(LAYOUT, len(tokens))
    if by_layer:
        with engine.retrieve_layers(tokens, window, lookup_id=lookup_id) as layers:
            assert list(layers) == [*range(LAYOUT.layers)]
            got = layers.result()
    else:
        got = engine.retrieve(tokens, window, lookup_id=lookup_id)
    assert window.agrees(computed(tokens), got.hit_tokens)
    return got


@settings(max_examples=examples(10))
@given(
    prompts=families(),
    step=st.sampled_from([1, 4, 8, 16]),
    by_layer=st.booleans(),
    prefetched=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_a_prompt_finds_the_longest_prefix_that_was_stored(prompts, step, by_layer, prefetched):
    sections = {"chunk": {"size": CHUNK, "tail": step}, "prefetch": {"share": prefetched}}
    with TemporaryDirectory() as root, Node(Path(root), slots=64, memory=48) as node:
        stored = set()
        with node.engine(**sections) as storing, node.engine(**sections) as engine:
            for number, tokens in enumerate(prompts):
                expected = longest(tokens, stored)
                assert engine.lookup(tokens).hit_tokens == expected
                assert sum(engine.lookup(tokens).tiers.values()) == expected
                assert engine.pin(tokens, "pin") == expected
                assert prefetched_tokens(engine, f"{number}", tokens) == expected
                for lookup_id in (f"{number}", None):
                    got = loaded(engine, tokens, lookup_id, by_layer=by_layer)
                    assert got.hit_tokens == got.loaded_tokens == expected
                    whole = [end for end in ends(tokens, step) if tokens[:end] in stored]
                    assert sum(got.misses.values()) == len(ends(tokens, step)) - len(whole)
                engine.unpin("pin")
                storing.store(tokens, computed(tokens))
                stored |= {tokens[:end] for end in ends(tokens, step)}
                assert engine.lookup(tokens).hit_tokens == len(tokens) // step * step
            last = prompts[-1]
            assert engine.clear(last).complete
            assert engine.lookup(last).hit_tokens == 0
        node.at_rest()


def test_a_node_that_knows_the_size_of_chunks_keeps_tails_where_it_is_told_to(tmp_path):
    chunk = {"size": CHUNK, "tail": 4}
    tokens = list(range(2 * CHUNK + 11))
    with Node(tmp_path, chunk=chunk) as node, node.engine(chunk=chunk) as engine:
        report = engine.store(tokens, computed(tokens))
        assert report.tiers == {"memory": 2 * CHUNK + 8, "disk": 2 * CHUNK}
        assert engine.lookup(tokens).hit_tokens == 2 * CHUNK + 8
        assert engine.flush()
        assert [tier.chunks for tier in engine.health().tiers] == [3, 2]


@pytest.mark.thorough
def test_layers_miss_for_the_reason_that_a_retrieve_has_where_the_node_is_gone(tmp_path):
    tokens = list(range(2 * CHUNK + 8))
    with Node(tmp_path) as node, node.engine(chunk={"size": CHUNK, "tail": 8}) as engine:
        engine.store(tokens, computed(tokens))
        node.stop()
        whole, by_layer = (loaded(engine, tokens, None, by_layer=way) for way in (False, True))
        assert whole.hit_tokens == by_layer.hit_tokens == 0
        assert whole.misses[Reason.TIER_OFF] == 1
        assert by_layer.misses == whole.misses
        node.start()
