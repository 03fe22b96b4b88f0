"""Every cache class of transformers through generate, save and load: right or refused."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    StaticCache,
    cache_utils,
)
from transformers.cache_utils import Cache, DynamicLayer, QuantizedLayer

from engines.hf.hf_right import assert_right
from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.blending.cache import BlendedLayer
from hexkv.adapters.hf.cache import LoadedCache, ReservedLayer
from hexkv.adapters.hf.held import planes_of
from hexkv.adapters.hf.model import CachedModel
from hexkv.contracts.kit.cases import each
from hexkv.ports import InvalidRequest, LayoutMismatch

CHUNK = 16  # as the engines here cut
WINDOW = 24


def hybrid() -> Gemma3ForCausalLM:
    """The first layer keeps all tokens, the second one those of a window."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.2,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Gemma3ForCausalLM(config).eval()


class EightBits(QuantizedLayer):
    """As quanto and HQQ keep KV, whose packages may be missing."""

    def _quantize(self, tensor, axis):
        scale = tensor.abs().amax().clamp_min(1e-9) / 127
        return (tensor / scale).round().to(torch.int8), scale

    def _dequantize(self, q_tensor):
        return q_tensor[0].float() * q_tensor[1]


def quantised(model, length):
    return Cache(layers=[EightBits(residual_length=8) for _ in range(3)])


def layers_of(kind):
    return lambda model, length: Cache(layers=[getattr(cache_utils, kind)() for _ in range(3)])


def offloaded(model, length):
    """What such a cache is between two calls: it needs a GPU while the model computes."""
    return DynamicCache()


NEW_LAYERS = {"eight bits": "Fp8QuantizedLayer", "hybrid": "LinearAttentionAndFullAttentionLayer"}
"""Not in every release of transformers that is supported."""

REFUSED = {"quantised": quantised} | {
    name: layers_of(kind) for name, kind in NEW_LAYERS.items() if hasattr(cache_utils, kind)
}
CACHES = REFUSED | {
    "dynamic": lambda model, length: DynamicCache(),
    "of the configuration": lambda model, length: DynamicCache(config=model.config),
    "static": lambda model, length: StaticCache(config=model.config, max_cache_len=length),
    "offloaded": offloaded,
}
KINDS = ("llama-gqa", "mistral-sliding", "hybrid")


@pytest.fixture(scope="module")
def subjects(models, module_engine):
    made = {kind: hybrid() if kind == "hybrid" else models[kind]() for kind in KINDS}
    return {kind: (model, CachedModel(model, module_engine(model))) for kind, model in made.items()}


def computed(chance, model, cached, kind, tokens, new):
    """A cache of *kind* in which *tokens* were continued, and what came out of it."""
    beams = chance.choice([1, 1, 3])
    if kind == "loaded":
        if chance.random() < 0.7:
            cached.prefill(tokens[: chance.randint(1, len(tokens))])
        cache = cached.load(tokens, room=chance.choice([0, new]), sequences=beams).cache
    else:
        cache = CACHES[kind](model, len(tokens) + new + chance.randrange(20))
    if kind != "loaded" and chance.random() < 0.3 and hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()
    answers = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        **with_cache(model, cache),
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=new,
        min_new_tokens=new,
        pad_token_id=0,
    )
    return cache, answers.tolist()


def change(chance, cache):
    """Do to *cache* as programs do."""
    match chance.choice(["crop", "repeat", "select", "reset", *[""] * 8]):
        case "crop":
            cache.crop(-chance.randint(1, 30))
        case "repeat":
            cache.batch_repeat_interleave(2)
        case "select":
            cache.batch_select_indices(torch.tensor([0]))
        case "reset":
            cache.reset()


TRANSFORMERS_REFUSES = (
    AttributeError,
    IndexError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What its caches raise of what they cannot do, each kind another."""

LENGTHS = (1, 8, 15, 16, 17, 22, 23, 24, 25, 31, 32, 33, 40, 47, 48, 49)
"""Around the end of a chunk, of a window, and of two chunks."""


def check_every_way(subjects, examples):
    seen = {"right": 0, "refused": 0}

    @settings(deadline=None, max_examples=examples)
    @given(seed=st.integers(0, 2**32))
    def right_or_refused(seed):
        chance = Random(seed)
        right_or_refused_of(chance, chance.choice(KINDS), chance.choice([*CACHES, "loaded"]))

    def right_or_refused_of(chance, subject, kind):
        model, cached = subjects[subject]
        length, new = chance.choice(LENGTHS), chance.choice(LENGTHS)
        tokens = chance.choices(range(128), k=length)
        try:
            cache, rows = computed(chance, model, cached, kind, tokens, new)
            change(chance, cache)
        except TRANSFORMERS_REFUSES:
            return
        cache.offloading = kind == "offloaded"
        row = chance.randrange(len(rows))
        whole = len(rows[row])
        saved = rows[row][: chance.choice([whole, whole - 1, length, chance.randint(1, whole)])]
        try:
            cached.save(saved, cache, sequence=row)
        except InvalidRequest:
            seen["refused"] += 1
            return
        seen["right"] += assert_right(model, cached, saved) > 0

    right_or_refused()
    for kind in [*CACHES, "loaded"]:  # so that some of both are certain
        right_or_refused_of(Random(2), "llama-gqa", kind)
    assert min(seen.values()) > examples // 20, seen


def test_whatever_cache_generate_filled_is_saved_right_or_refused(subjects):
    check_every_way(subjects, 20)


@pytest.mark.thorough
def test_whatever_cache_generate_filled_is_saved_right_or_refused_over_and_over(subjects):
    check_every_way(subjects, 1500)


def filled(model, cache, tokens, step=40):
    with torch.no_grad():
        for start in range(0, tokens.shape[1], step):
            model(input_ids=tokens[:, start : start + step], **with_cache(model, cache))
    return cache


@each("kind", ["of the configuration", "static"])
def test_a_window_that_has_rolled_is_refused_with_its_layer_and_both_numbers(
    subjects, prompt, kind
):
    ids = prompt(40, seed=3)
    for name, layer in (("mistral-sliding", 0), ("hybrid", 1)):
        model, cached = subjects[name]
        cache = filled(model, CACHES[kind](model, 64), ids)
        held = WINDOW if kind == "static" else WINDOW - 1
        with pytest.raises(
            LayoutMismatch, match=rf"layer {layer} .* counts 40 tokens .* KV of {held}:"
        ):
            cached.save(ids[:, :CHUNK], cache)


@each("kind", ["of the configuration", "static"])
def test_a_window_that_has_not_rolled_is_saved(subjects, prompt, kind):
    model, cached = subjects["mistral-sliding"]
    ids = prompt(WINDOW - 1, seed=4 if kind == "static" else 5)
    assert cached.save(ids, filled(model, CACHES[kind](model, 64), ids)) == CHUNK
    assert assert_right(model, cached, ids[0].tolist()) == CHUNK


def test_a_static_window_that_rolled_and_was_cropped_is_refused(subjects, prompt):
    model, cached = subjects["mistral-sliding"]
    ids = prompt(30, seed=6)
    cache = filled(model, CACHES["static"](model, 64), ids)
    if not hasattr(cache.layers[0], "cumulative_length_int"):
        pytest.skip("this release of transformers crops no static cache")
    cache.crop(-10)
    with pytest.raises(LayoutMismatch, match=r"counts 20 tokens .* its window has rolled"):
        cached.save(ids[:, :CHUNK], cache)


def test_room_that_was_never_computed_is_not_saved(subjects, prompt):
    model, cached = subjects["llama-gqa"]
    ids = prompt(4 * CHUNK, seed=7)
    cache = filled(model, CACHES["static"](model, 100), ids[:, : 2 * CHUNK + 3])
    with pytest.raises(InvalidRequest, match=r"layer 0 .* of 35 tokens, fewer than the 64"):
        cached.save(ids, cache)
    assert cached.save(ids[:, :35], cache) == 2 * CHUNK
    assert assert_right(model, cached, ids[0].tolist()) == 2 * CHUNK


@each("kind", REFUSED)
def test_a_quantised_or_hybrid_layer_is_refused_in_a_sentence(subjects, prompt, kind):
    model, cached = subjects["llama-gqa"]
    ids = prompt(2 * CHUNK, seed=8)
    with pytest.raises(LayoutMismatch, match=r"layer 0 of the cache is a .*, which does not keep"):
        cached.save(ids, filled(model, CACHES[kind](model, 0), ids))


def test_a_layer_of_somebody_elses_making_is_refused(subjects, prompt):
    class Evicting(DynamicLayer):
        def update(self, *given, **more):
            seen = super().update(*given, **more)
            self.keys, self.values = self.keys[:, :, -20:], self.values[:, :, -20:]
            return seen

    model, cached = subjects["llama-gqa"]
    ids = prompt(2 * CHUNK, seed=9)
    cache = filled(model, Cache(layers=[Evicting() for _ in range(3)]), ids)
    with pytest.raises(LayoutMismatch, match="Evicting"):
        cached.save(ids[:, :CHUNK], cache)


def test_kv_of_other_tokens_or_positions_is_refused_at_the_first_of_them(subjects, prompt):
    for model, cached in subjects.values():
        ids = prompt(3 * CHUNK, seed=10)
        cache = filled(model, DynamicCache(), ids, step=100)
        other = ids.clone()
        other[0, 21] += 1
        with pytest.raises(InvalidRequest, match=r"layer 0 .* position 21 than that of token"):
            cached.save(other % 128, cache)
        # As a program that evicts leaves a plain layer.
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, 3:], layer.values[:, :, 3:]
        for tokens in (ids[:, : 2 * CHUNK], ids[:, 3 : 3 + 2 * CHUNK]):
            with pytest.raises(InvalidRequest, match=r"layer 0 .* position 0 than"):
                cached.save(tokens, cache)


def test_another_beams_kv_is_refused(subjects, prompt):
    """Rows of a cache are the beams under way; answers are in the order of their scores."""
    model, cached = subjects["llama-gqa"]
    ids, cache = prompt(10, seed=11), DynamicCache()
    answers = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        **with_cache(model, cache),
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=40,
        do_sample=False,
        pad_token_id=0,
    )
    refused = 0
    for row, tokens in enumerate(answers.tolist()):
        for sequence in range(4):
            try:
                cached.save(tokens[:-1], cache, sequence=sequence)
            except InvalidRequest:
                refused += 1
            else:
                assert assert_right(model, cached, tokens[:-1]), row
    assert refused >= 12


@each("sequence", [-1, 2])
def test_a_sequence_that_the_cache_does_not_hold_is_refused(subjects, prompt, sequence):
    model, cached = subjects["llama-gqa"]
    ids = prompt(CHUNK, seed=12)
    cache = filled(model, DynamicCache(), ids.expand(2, -1))
    with pytest.raises(InvalidRequest, match=f"holds 2 sequences, and no number {sequence}"):
        cached.save(ids, cache, sequence=sequence)


def test_layers_that_count_differently_are_refused(subjects, prompt):
    model, cached = subjects["llama-gqa"]
    ids = prompt(2 * CHUNK, seed=13)
    cache = filled(model, DynamicCache(), ids)
    cache.layers[1].crop(-3)
    with pytest.raises(LayoutMismatch, match=r"layer 1 .* counts 29 tokens, and layer 0 counts 32"):
        cached.save(ids[:, :CHUNK], cache)


def test_a_cache_that_holds_nothing_is_refused(subjects, prompt):
    _, cached = subjects["llama-gqa"]
    both = EncoderDecoderCache(DynamicCache(), DynamicCache())
    for cache in (DynamicCache(), Cache(layers=[DynamicLayer()]), both):
        with pytest.raises(InvalidRequest):
            cached.save(prompt(CHUNK), cache)


def test_blended_kv_is_not_saved_as_exact(subjects, prompt):
    model, cached = subjects["llama-gqa"]
    ids = prompt(2 * CHUNK, seed=14)
    cache = filled(model, DynamicCache(), ids)
    blended = LoadedCache([ReservedLayer(k, v, 2 * CHUNK) for k, v in planes_of(cache)], 2 * CHUNK)
    assert issubclass(BlendedLayer, ReservedLayer)
    with pytest.raises(InvalidRequest, match="blended KV"):
        cached.save(ids, blended)
