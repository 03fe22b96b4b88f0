"""A tier of compressed memory behind the plain one: what fits, comes back, and may go wrong."""

import random

import pytest

from configured import PATIENT, settle
from hexkv.adapters.local import heap
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import ConfigError, CounterName, DType, KVLayout, Namespace, Reason, frame_bytes

CHUNK = 64
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=4, heads=2, key_width=64)
RAW = frame_bytes(LAYOUT.chunk_bytes(CHUNK))
PROMPTS = [random.Random(n).choices(range(50_000), k=2 * CHUNK) for n in range(12)]


def compressed(budget=8 * RAW, serde="zstd", memory=4 * RAW, slots=16, **sections):
    """An engine with memory for two prompts, and compressed memory behind it."""
    tiers = [
        {"store": "memory", "budget": memory},
        {"store": "heap", "budget": budget, "serde": serde, "write": "evicted"},
    ]
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": slots * RAW}, "tiers": tiers}
    settings = load(None, {}, wanted | {"deadlines": PATIENT} | sections)
    return build(settings, Namespace("toy", LAYOUT))


def store(engine, tokens):
    kv = HeapKV(LAYOUT, len(tokens)).compute(tokens)
    stored = engine.store(tokens, kv).stored_tokens
    settle(engine)
    return stored


def tiers_of_hits(engine, tokens):
    """By tier, tokens that a retrieve brings, each bit checked."""
    target = HeapKV(LAYOUT, len(tokens))
    got = engine.retrieve(tokens, target)
    settle(engine)
    assert target.agrees(HeapKV(LAYOUT, len(tokens)).compute(tokens), got.hit_tokens)
    return dict(got.tiers)


def behind(engine):
    """The tier of compressed memory, and its store."""
    tier = engine._chunks.stack.named(["heap"])[0]
    return tier, tier.store


def test_what_memory_evicts_is_kept_smaller_and_comes_back_bit_for_bit():
    with compressed() as engine:
        for tokens in PROMPTS:
            assert store(engine, tokens) == len(tokens)
        tier, kept = behind(engine)
        assert len(tier.index) > 8, "more chunks than would fit as they are"
        assert tier.index.used == kept.used_bytes <= 8 * RAW
        assert tiers_of_hits(engine, PROMPTS[-4]) == {"heap": 2 * CHUNK}
        assert tiers_of_hits(engine, PROMPTS[-4]) == {"memory": 2 * CHUNK}, "it was promoted"
        assert engine.explain(PROMPTS[-4]).hit_tokens == 2 * CHUNK
    assert kept.used_bytes == 0


@pytest.mark.thorough
def test_its_rate_counts_decoding_so_computing_may_be_sooner():
    with compressed(compute_rate=1e12) as engine:
        for tokens in PROMPTS[:4]:
            store(engine, tokens)
        assert tiers_of_hits(engine, PROMPTS[0]) == {"heap": 2 * CHUNK}, "nothing was measured yet"
        link = behind(engine)[0].link
        assert 0 < link.tokens_rate < 1e12
        got = engine.retrieve(PROMPTS[1], HeapKV(LAYOUT, 2 * CHUNK))
        assert got.misses == {Reason.SLOWER: 1, Reason.BEHIND_A_MISS: 1}


@pytest.mark.thorough
def test_a_damaged_frame_is_a_miss_and_goes():
    with compressed() as engine:
        for tokens in PROMPTS[:4]:
            store(engine, tokens)
        tier, kept = behind(engine)
        for key in tier.index.keys():  # noqa: SIM118 - no mapping
            kept._kept[key].memory[-1] ^= 1
            kept._kept[key].memory[5000] ^= 1
        held = len(tier.index)
        assert tiers_of_hits(engine, PROMPTS[0]) == {}
        assert len(tier.index) < held
        assert tier.index.used == kept.used_bytes


@pytest.mark.thorough
@each("failing", ["no memory", "full"])
def test_without_room_chunks_go_and_the_rest_stays_right(failing, monkeypatch):
    with compressed() as engine:
        for tokens in PROMPTS[:4]:
            store(engine, tokens)
        tier, kept = behind(engine)
        if failing == "full":
            kept._capacity = kept.used_bytes
        else:

            def fail(frame):
                raise OSError(12, "Cannot allocate memory")

            monkeypatch.setattr(heap, "_filled", fail)
        for tokens in PROMPTS[4:8]:
            assert store(engine, tokens) == len(tokens)
        assert tier.index.used == kept.used_bytes
        for tokens in PROMPTS[:8]:
            tiers_of_hits(engine, tokens)


@pytest.mark.thorough
def test_layers_come_one_by_one_and_a_tail_is_kept():
    tail = PROMPTS[0][: CHUNK + CHUNK // 2]
    with compressed(chunk={"size": CHUNK, "tail": CHUNK // 2}) as engine:
        store(engine, tail)
        for tokens in PROMPTS[1:5]:
            store(engine, tokens)
        assert sum(tiers_of_hits(engine, tail).values()) == len(tail)


@pytest.mark.thorough
def test_what_ends_with_the_process_is_shared_with_nobody():
    assert not load(None, {}, {"tiers": [{"store": "heap"}]}).settings.shared


@pytest.mark.thorough
def test_what_chunks_like_it_were_never_asked_for_again_is_not_kept_there():
    rules = {"store": "heap", "budget": 8 * RAW, "write": "evicted", "min_reuse": 0.3}
    with compressed(tiers=[{"store": "memory", "budget": 4 * RAW}, rules]) as engine:
        for number in range(150):
            tokens = random.Random(100 + number).choices(range(50_000), k=2 * CHUNK)
            assert store(engine, tokens) == len(tokens)
        telemetry = engine.telemetry
        refused = telemetry.total(CounterName.DROPPED, tier="heap", reason=Reason.UNLIKELY)
        written = telemetry.total(CounterName.STORED, tier="heap")
        assert refused > 50
        assert refused + written == telemetry.total(CounterName.EVICTED, tier="memory")
        before = written
        assert engine.retrieve(tokens, HeapKV(LAYOUT, len(tokens))).hit_tokens == len(tokens)
        for number in range(2):  # what was met meanwhile is of another kind
            store(engine, random.Random(900 + number).choices(range(50_000), k=2 * CHUNK))
        assert telemetry.total(CounterName.STORED, tier="heap") > before
        assert tiers_of_hits(engine, tokens) == {"heap": 2 * CHUNK}


@pytest.mark.thorough
def test_only_evicted_chunks_are_chosen_from():
    with pytest.raises(ConfigError, match=r"min_reuse.*needs write: evicted"):
        load(None, {}, {"tiers": [{"store": "heap", "min_reuse": 0.1}]})
