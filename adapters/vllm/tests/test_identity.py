"""KV of different weights, adapters, salts and inputs never has the same name."""

from types import SimpleNamespace

import pytest

from hexkv.adapters.vllm.identity import Rank, counts_inputs, namespace_of, scope_of
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.serving import Scopes
from hexkv.contracts.cases import each
from hexkv.plugins.weights import digest_of
from hexkv.ports import DType, KVLayout, Namespace, ParallelSlice

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8)


def request(**said):
    known = {"prompt_token_ids": [1], "lora_request": None, "cache_salt": None, "mm_features": []}
    return SimpleNamespace(**known | said)


def image(identifier, offset=4, length=16):
    return SimpleNamespace(
        identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length)
    )


@pytest.fixture
def weights(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "model.safetensors").write_bytes(bytes(3 << 20))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_a_copy_has_the_same_weights(weights, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in weights.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "tokenizer.json").write_text("changed")
    assert digest_of(copy) == digest_of(weights)


@pytest.mark.parametrize("at", [0, 100, (3 << 20) - 1])
def test_other_bytes_are_other_weights(weights, at):
    before = digest_of(weights)
    with (weights / "model.safetensors").open("r+b") as file:
        file.seek(at)
        file.write(b"\1")
    assert digest_of(weights) != before


def test_another_configuration_is_another_model(weights):
    before = digest_of(weights)
    (weights / "config.json").write_text('{"hidden_size": 9}')
    assert digest_of(weights) != before


def test_an_adapter_that_was_trained_anew_is_another_one(weights):
    lora = SimpleNamespace(lora_name="poet", lora_path=str(weights))
    before = scope_of(request(lora_request=lora))
    assert before.lora.startswith("poet ")
    (weights / "model.safetensors").write_bytes(bytes([1]) * 100)
    assert scope_of(request(lora_request=lora)) != before


def test_images_count_with_their_places():
    scopes = [
        scope_of(request(mm_features=features))
        for features in (
            [],
            [image("a")],
            [image("b")],
            [image("a", offset=5)],
            [image("a", length=17)],
            [image("a"), image("b", offset=40)],
            [image("b"), image("a", offset=40)],
        )
    ]
    assert len(set(scopes)) == len(scopes)


def test_embeddings_in_place_of_tokens_are_not_cached():
    assert scope_of(request(prompt_token_ids=None)) is None
    assert scope_of(request(prompt_embeds=object())) is None


def multimodal(cache, prefix, **media):
    """vLLM's configuration: GiB of processed images it keeps, and whether it keeps prefixes."""
    said = SimpleNamespace(mm_processor_cache_gb=cache, **media)
    return SimpleNamespace(
        model_config=SimpleNamespace(multimodal_config=said),
        cache_config=SimpleNamespace(enable_prefix_caching=prefix),
    )


@each(
    ("cache", "prefix", "counted"),
    [(4, True, False), (4, False, False), (0, True, False), (0, False, True)],
)
def test_images_that_are_only_counted_are_not_cached(cache, prefix, counted):
    assert counts_inputs(multimodal(cache, prefix)) is counted
    seen = request(mm_features=[image("renderer0-mm-1-image-0")])
    assert (scope_of(seen, counted=counted) is None) is counted
    assert scope_of(request(), counted=counted) == Scope()


def test_models_without_images_count_nothing():
    config = multimodal(0, False)
    config.model_config.multimodal_config = None
    assert not counts_inputs(config)


def test_every_part_of_a_scope_makes_another_namespace():
    base = Namespace("m", LAYOUT, salt="house", lora="base", extra=(("b", "1"),))
    scopes = Scopes(base)
    assert scopes.namespace(Scope()) == base
    parts = [Scope(), Scope(lora="x"), Scope(salt="x"), Scope(inputs="x"), Scope("x", "x", "x")]
    assert len({scopes.namespace(part) for part in parts}) == len(parts)
    assert scopes.namespace(Scope(salt="guest")).salt == "house\nguest"
    assert Scopes(Namespace("m", LAYOUT)).namespace(Scope(salt="guest")).salt == "guest"


@each(
    ("rank", "piece", "first"),
    [
        (Rank(3, 4, 2, replicated=False), ParallelSlice(3, 4), True),
        (Rank(2, 4, 2, replicated=True), ParallelSlice(1, 2), True),
        (Rank(3, 4, 2, replicated=True), ParallelSlice(1, 2), False),
        (Rank(1, 2, 2, replicated=True), ParallelSlice(), False),
    ],
)
def test_ranks_hold_slices_or_the_same(rank, piece, first):
    assert (rank.piece, rank.first) == (piece, first)


def served(longest=4096, rope=None, media=None):
    """The namespace of a model whose texts may have *longest* tokens."""
    model = SimpleNamespace(
        model="org/model",
        max_model_len=longest,
        hf_text_config=SimpleNamespace(**(rope or {})),
        multimodal_config=media,
    )
    said = SimpleNamespace(settings=SimpleNamespace(model=SimpleNamespace(name="", revision="1")))
    config, rank = SimpleNamespace(model_config=model), Rank(0, 1, 1, replicated=False)
    return namespace_of(config, LAYOUT, rank, said, inside={})


@each(
    ("rope", "differs"),
    [
        ({}, False),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, False),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, True),
        ({"rope_parameters": {"rope_type": "longrope"}}, True),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, False),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, True),
    ],
)
def test_where_rope_depends_on_the_longest_text_so_does_the_name(rope, differs):
    assert (served(4096, rope) != served(8192, rope)) is differs


def test_images_that_are_looked_at_in_another_way_have_another_name():
    plain = {"mm_processor_kwargs": None, "media_io_kwargs": {}, "video_pruning_method": "evs"}
    ways = [
        {},
        {"mm_processor_kwargs": {"do_normalize": False}},
        {"media_io_kwargs": {"video": {"num_frames": 4}}},
        {"mm_encoder_attn_dtype": "fp8"},
        {"video_pruning_rate": 0.5},
        {"video_pruning_rate": 0.5, "video_pruning_method": "other"},
    ]
    names = [served(media=SimpleNamespace(**plain | way)) for way in ways]
    assert len(set(names)) == len(names)
    assert names[0] == served()  # whatever is as the model has it is not said
