"""Tails: the last chunk of a prompt, shorter than the others, which a longer prompt finds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import configured
from configured import settle
from dict_store import ScanningStore
from engines.hf.families import ends, families, longest
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.tiers.rules import TierRules, Writes
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.configuration.config import load
from hexkv.ports import ConfigError, CounterName, Reason
from layered import PROMPT, Ranged, computed, disk, empty, layerwise, memory, store_layerwise
from prompts import files_in
from rigging import CHUNK, chosen, rigging, tier

STEP = 4
TAILS = PrefixChunker(CHUNK, STEP)


@settings(max_examples=40)
@given(
    prompts=families(),
    step=st.sampled_from([1, 2, 4, 8, 16]),
    place=st.sampled_from(["memory", "both", "store", "parts"]),
    by_layer=st.booleans(),
)
def test_a_prompt_finds_the_longest_prefix_that_was_stored(prompts, step, place, by_layer):
    """In lookups, pins and retrieves of any kind; the others of its chunks are misses."""
    slow = {
        "memory": [memory()],
        "both": [memory(), tier("slow", ScanningStore({}), shortest=CHUNK)],
        "store": [tier("slow", ScanningStore({}))],
        "parts": [tier("slow", Ranged())],
    }[place]
    with rigging() as build:
        r = build(slow, chunker=PrefixChunker(CHUNK, step))
        settle(r.engine)  # tiers know what they hold: a prefetch does not wait for that
        stored = set()
        for number, tokens in enumerate(prompts):
            expected = longest(tokens, stored)
            assert r.engine.lookup(tokens, pin="lookup").hit_tokens == expected
            assert sum(r.engine.lookup(tokens).tiers.values()) == expected
            assert r.engine.pin(tokens, "pin") == r.engine.prefetch(f"{number}", tokens) == expected
            assert r.engine.explain(tokens).hit_tokens == expected
            for options in ({}, {"lookup_id": f"{number}"}):
                target = empty(tokens)
                got = (
                    layerwise(r, target, tokens, **options)
                    if by_layer
                    else r.engine.retrieve(tokens, target, **options)
                )
                assert got.hit_tokens == got.loaded_tokens == expected
                assert target.agrees(computed(tokens), expected)
                whole = [end for end in ends(tokens, step) if tokens[:end] in stored]
                assert sum(got.misses.values()) == len(ends(tokens, step)) - len(whole)
            r.engine.unpin("lookup")
            r.engine.unpin("pin")
            store_layerwise(r, tokens) if by_layer else r.engine.store(tokens, computed(tokens))
            stored |= {tokens[:end] for end in ends(tokens, step)}
            assert r.engine.lookup(tokens).hit_tokens == len(tokens) // step * step
        total = r.telemetry.total
        assert total(CounterName.LOOKUPS) == total(CounterName.HITS) + total(CounterName.MISSES)
        assert r.at_rest()


def test_only_tiers_that_keep_tails_are_given_any_or_asked_for_one(rig, tmp_path):
    """New, promoted, evicted or copied: on the others there are as many objects as without."""
    slow = Ranged()
    asked = []
    slow.contains = lambda keys, deadline: asked.extend(keys) or [k in slow.medium for k in keys]
    below = tier("below", ScanningStore({}), shortest=CHUNK, writes=Writes.EVICTED)
    tiers = [memory(), TierPlan("slow", slow, rules=TierRules(shortest=CHUNK)), below]
    r = rig([*tiers, disk(tmp_path)], chunker=TAILS)
    first, longer = PROMPT[: 2 * CHUNK + 9], PROMPT[: 2 * CHUNK + 14]
    report = r.engine.store(first, computed(first))
    assert report.tiers == dict.fromkeys(("memory", "disk"), 2 * CHUNK + 8) | {"slow": 2 * CHUNK}
    assert (report.stored_tokens, report.dropped_tokens) == (2 * CHUNK + 8, 0)
    assert r.engine.store(first, computed(first)).present_tokens == 2 * CHUNK + 8
    again = r.engine.store(longer, computed(longer))
    assert (again.present_tokens, again.stored_tokens) == (2 * CHUNK, 12)
    assert len(files_in(tmp_path)) == 4
    r.engine.clear(longer, tiers=["memory"])
    target = empty(longer)
    assert r.engine.retrieve(longer, target).tiers == {"slow": 2 * CHUNK, "disk": 12}
    assert target.agrees(computed(longer), 2 * CHUNK + 12)
    assert r.engine.lookup(longer).tiers == {"memory": 2 * CHUNK + 12}
    r.engine.admin.copy(chosen(r.engine, longer), "memory", "slow")
    memory_tier = r.tiers["memory"]
    assert len(memory_tier.index.keys()) == 3
    r.pool.reclaim(memory_tier.index.used)
    settle(r.engine)
    assert memory_tier.index.keys() == []
    assert len(slow.medium) == 2
    assert asked
    assert {bytes(key) for key in asked} <= set(slow.medium)
    assert r.telemetry.total(CounterName.DROPPED) == 0
    r.engine.clear(longer)
    why = r.engine.explain(longer).missed[2].tiers
    assert why["slow"].detail == f"the tier takes no chunk of fewer than {CHUNK} tokens"
    assert why["disk"].reason is Reason.CLEARED


def test_memory_keeps_tails_and_other_tiers_where_that_is_configured(tmp_path):
    tokens, full = configured.PROMPT[: 2 * CHUNK + 11], 2 * CHUNK
    store = {"store": "disk", "settings": {"root": str(tmp_path)}}
    for tiers, found, chunks in (
        ([{"store": "memory"}, store], full + 8, 2),
        ([store], full, 2),
        ([{"store": "memory", "tails": False}, store], full, 2),
        ([store | {"tails": True}], full + 8, 3),
    ):
        with configured.built(tmp_path, chunk={"size": CHUNK, "tail": STEP}, tiers=tiers) as engine:
            report = engine.store(tokens, configured.computed(tokens))
            assert report.dropped_tokens == 0
            assert configured.hit(engine, tokens) == configured.hit(engine, [*tokens, 1]) == found
            settle(engine)
            assert engine.health().tiers[-1].chunks == chunks
    for chunk, why in ({"tail": 5}, "does not divide"), ({"tail": 8, "seeded": False}, "seeded"):
        with pytest.raises(ConfigError, match=rf"chunk\.tail.*{why}"):
            load(None, {}, {"chunk": chunk})


def test_to_clear_a_prompt_clears_the_tails_of_its_every_chunk(rig, tmp_path):
    r = rig([memory(), disk(tmp_path)], chunker=TAILS)
    for length in range(STEP, 3 * CHUNK, STEP):
        r.engine.store(PROMPT[:length], computed(PROMPT[:length]))
    assert r.engine.lookup([*PROMPT[: CHUNK + 8], 7]).hit_tokens == CHUNK + 8
    cleared = r.engine.clear(PROMPT)
    assert cleared.complete
    assert cleared.tiers == {"memory": cleared.chunks, "disk": cleared.chunks}
    assert files_in(tmp_path) == []
    assert r.engine.health().tiers[0].chunks == 0
