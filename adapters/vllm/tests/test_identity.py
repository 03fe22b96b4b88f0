"""KV of different weights, adapters, salts and inputs never has the same name."""

import shutil
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.vllm.configuration.identity import (
    Rank,
    counts_inputs,
    namespace_of,
    scope_of,
    weights_at,
    weights_of,
)
from hexkv.adapters.vllm.configuration.inspection import refuse, replicas_of
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.worker.serving import Scopes, joined
from hexkv.contracts.kit.cases import each
from hexkv.plugins.composition.identity import identify
from hexkv.plugins.configuration.config import load
from hexkv.ports import ConfigError, DType, KVLayout, LayoutMismatch, Namespace, ParallelSlice

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
    parts = [Scope(), Scope(salt="x"), Scope(inputs="x"), Scope(salt="x", inputs="x")]
    assert len({scopes.namespace(part) for part in parts}) == len(parts)
    assert Scopes(Namespace("m", LAYOUT)).namespace(Scope(salt="guest")).salt == "guest"


TEXT = st.text("0123:A\n", max_size=5)
PART = TEXT | st.builds("joined {}:{}".format, st.integers(0, 5), TEXT)


@given(st.lists(st.tuples(PART, PART.filter(bool)), min_size=2, max_size=2, unique=True))
def test_no_two_pairs_of_salts_are_one(pairs):
    """The operator's, which may be empty, and the client's: neither can stand for the other."""
    assert len({joined(own, asked) for own, asked in pairs}) == len(pairs)


def test_a_salt_alone_is_what_tenants_are_known_by():
    assert (joined("", "guest"), joined("house", ""), joined("", "")) == ("guest", "house", "")
    assert joined("A", "B") != joined("", "A\nB")


@each(
    ("rank", "piece", "first"),
    [
        (Rank(3, 4), ParallelSlice(3, 4), True),
        (Rank(2, 4, 2), ParallelSlice(1, 2), True),
        (Rank(3, 4, 2), ParallelSlice(1, 2), False),
        (Rank(1, 2, 2), ParallelSlice(), False),
        (Rank(5, 8, 2), ParallelSlice(2, 4), False),
    ],
)
def test_ranks_hold_slices_or_the_same(rank, piece, first):
    assert (rank.piece, rank.first) == (piece, first)


@dataclass
class Media:
    """Fields of vLLM's, and their defaults."""

    mm_processor_kwargs: dict | None = None
    media_io_kwargs: dict = field(default_factory=dict)
    mm_encoder_attn_dtype: str | None = None
    mm_encoder_fp8_scale_path: str | None = None
    video_pruning_method: str = "evs"
    mm_processor_cache_gb: float = 4
    brought_by_a_new_release: int = 0


def loading(model="org/model", **said):
    """vLLM's configuration of a model."""
    commit = SimpleNamespace(rope_theta=1.0, _commit_hash="1")
    model = {"model": model, "hf_config": commit, "seed": 0, "revision": None} | said
    return SimpleNamespace(
        model_config=SimpleNamespace(**{"max_model_len": 4096, "dtype": "float16"} | model),
        load_config=SimpleNamespace(load_format="auto"),
    )


def served(config=None, said=None, tiers=(), **model):
    """The namespace of a model."""
    configured = load(None, {}, {"model": said or {}, "tiers": [{"store": "memory"}, *tiers]})
    rank = Rank(0, 1)
    host = namespace_of(config or loading(**model), LAYOUT, rank, configured, inside={})
    return identify(host, configured)


def rotated(longest, rope):
    return served(max_model_len=longest, hf_text_config=SimpleNamespace(**rope))


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
    assert (rotated(4096, rope) != rotated(8192, rope)) is differs


def test_what_is_not_as_vllm_has_it_has_another_name(tmp_path):
    scales = tmp_path / "scales"
    scales.write_text("1")
    ways = [
        {},
        {"mm_processor_kwargs": {"do_normalize": False}},
        {"media_io_kwargs": {"video": {"num_frames": 4}}},
        {"mm_encoder_attn_dtype": "fp8"},
        {"mm_encoder_fp8_scale_path": str(scales)},
        {"video_pruning_method": "other"},
        {"brought_by_a_new_release": 1},
    ]

    def names():
        return [served(multimodal_config=Media(**way)) for way in ways]

    first = names()
    assert len(set(first)) == len(ways)
    assert first == names(), "the same in every process"
    assert first[0] == served(), "whatever is as vLLM has it is not said"
    unrelated = Media(mm_processor_kwargs={}, mm_processor_cache_gb=1)
    assert first[0] == served(multimodal_config=unrelated)
    scales.write_text("2")
    assert [a == b for a, b in zip(first, names(), strict=True)].index(False) == 4


@pytest.mark.parametrize("said", [{}, {"revision": "1"}, {"name": "n", "revision": "1"}])
@pytest.mark.parametrize("replaced", ["in another folder", "in place"])
def test_folders_of_one_name_are_told_apart_by_their_weights(weights, tmp_path, said, replaced):
    before = served(model=str(weights), said=said)
    if replaced == "in another folder":
        copy = tmp_path / "b" / weights.name
        shutil.copytree(weights, copy)
        assert served(model=str(copy), said=said) == before, "a copy shares what is cached"
        weights = copy
    (weights / "model.safetensors").write_bytes(bytes([1]) * (3 << 20))
    assert served(model=str(weights), said=said) != before
    vouched = said | {"weights": "mine"}
    assert "mine" in served(model=str(weights), said=vouched).revision


def test_a_copy_in_a_folder_of_another_name_shares_where_both_are_called_the_same(weights):
    copy = weights.with_name("model-copy")
    shutil.copytree(weights, copy)
    for said, names in (({}, 2), ({"name": "model"}, 1)):
        assert len({served(model=str(folder), said=said) for folder in (weights, copy)}) == names


def test_a_copy_of_what_a_hub_has_is_named_as_a_folder_with_the_same(weights, tmp_path):
    pytest.importorskip("huggingface_hub")
    hub = tmp_path / "hub" / "models--org--model"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("0123")
    shutil.copytree(weights, hub / "snapshots" / "0123")
    config = loading()
    config.load_config.download_dir = str(tmp_path / "hub")
    assert served(config).revision == served(model=str(weights)).revision


@each("way", ["hf_overrides", "hf_config_path"])
def test_a_configuration_from_elsewhere_is_another_model(weights, way):
    """What is in force counts: overrides may be a function, a path may lead to anything."""
    names = {
        served(model=str(weights), hf_config=SimpleNamespace(rope_theta=theta), **asked)
        for theta in (1.0, 2.0)
        for asked in ({}, {way: "somewhere"})
    }
    assert len(names) == 3  # without either, what the folder says is in its digest


@each(
    ("model", "load_format"),
    [
        ({"hf_config": SimpleNamespace()}, "auto"),
        ({"model_weights": "s3://bucket/model"}, "runai_streamer"),
        ({}, "tensorizer"),
    ],
)
def test_a_model_whose_weights_nobody_can_name_is_refused(model, load_format):
    config = loading(**model)
    config.load_config.load_format = load_format
    with pytest.raises(ConfigError, match=r"the weights of org/model are unknown.*model\.weights"):
        served(config)
    assert served(config, {"weights": "mine"}).revision.endswith("mine")


def test_drawn_weights_are_those_of_their_seed_and_configuration():
    def drawn(seed, theta):
        config = loading(seed=seed, hf_config=SimpleNamespace(rope_theta=theta))
        config.load_config.load_format = "dummy"
        return served(config)

    assert len({drawn(0, 1.0), drawn(1, 1.0), drawn(0, 2.0)}) == 3


def test_weights_that_may_be_replaced_later_have_their_name_until_then():
    config = loading()
    config.weight_transfer_config = object()
    assert served(config) == served()
    assert served(config, tiers=[{"store": "disk", "settings": {"root": "x"}}]) == served()


def test_weights_that_are_loaded_anew_are_known_by_the_digest_of_where_they_lie(weights, tmp_path):
    config = loading(model=str(weights))
    first = weights_of(config.model_config, config.load_config)
    assert weights_at(config, None) == weights_at(config, str(weights)) == first
    shutil.copytree(weights, tmp_path / "copy")
    assert weights_at(config, str(tmp_path / "copy")) == first
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"others")
    assert weights_at(config, str(tmp_path / "copy")) != first
    assert weights_at(config, "nobody/knows-this") == ""


def test_a_draft_model_has_a_part_in_what_is_cached(weights):
    def drafting(method):
        config = loading()
        draft = loading(model=str(weights)).model_config
        config.speculative_config = SimpleNamespace(method=method, draft_model_config=draft)
        return served(config)

    assert drafting("ngram") == served()
    before = drafting("eagle")
    assert before != served()
    (weights / "model.safetensors").write_bytes(bytes([1]) * (3 << 20))
    assert drafting("eagle") != before


@each(
    ("model", "why"),
    [
        ({"hf_config": SimpleNamespace(is_causal=False)}, "attend both ways"),
        (
            {"hf_text_config": SimpleNamespace(use_bidirectional_attention=True)},
            "attend both ways",
        ),
        ({"is_prefix_caching_supported": False}, "is_prefix_caching_supported"),
    ],
)
def test_models_of_which_no_prefix_can_be_used_again_are_refused(model, why):
    with pytest.raises(LayoutMismatch, match=why):
        refuse(loading(**model))
    refuse(loading())


class MLAAttentionSpec:
    """By its name: one of vLLM's for latent attention."""

    num_kv_heads = 1


class Attention:
    """One of vLLM's for other attention."""

    def __init__(self, heads):
        self.num_kv_heads = heads


def shared(specs, tensor, said, **more):
    """How many ranks hold the same, by what vLLM says of a model and of its layers."""
    text = SimpleNamespace(**said)
    total = next((value for value in said.values() if type(value) is int), 8)
    model = SimpleNamespace(hf_text_config=text, get_total_num_kv_heads=lambda: total)
    parallel = SimpleNamespace(tensor_parallel_size=tensor)
    config = SimpleNamespace(model_config=model, parallel_config=parallel, **more)
    return replicas_of(config, specs)


@each(
    ("specs", "tensor", "said", "replicas"),
    [
        ([MLAAttentionSpec(), MLAAttentionSpec()], 4, {}, 4),
        ([MLAAttentionSpec(), Attention(1)], 4, {"num_key_value_heads": 4}, 1),
        ([Attention(2)], 4, {"num_key_value_heads": 8}, 1),
        ([Attention(1)], 4, {"num_key_value_heads": 4}, 1),
        ([Attention(1)], 4, {"num_key_value_heads": 2}, 2),
        ([Attention(1)], 8, {"num_key_value_heads": 1}, 8),
        ([Attention(1)], 6, {"num_key_value_heads": 4}, 1),
        # Layers that differ, wherever that is said: nobody knows who shares what of which.
        ([Attention(1), Attention(2)], 4, {"num_key_value_heads": 2}, 1),
        ([Attention(1)], 4, {"num_key_value_heads": 2, "num_global_key_value_heads": 1}, 1),
        ([Attention(1)], 4, {"num_key_value_heads": 2, "blocks": [{"n_head_kv": 1}]}, 1),
        ([Attention(1)], 4, {}, 1),
    ],
)
def test_ranks_share_what_is_certain_to_be_the_same(specs, tensor, said, replicas):
    assert shared(specs, tensor, said) == replicas


def test_ranks_share_nothing_where_a_draft_has_heads_of_its_own():
    drafted = SimpleNamespace(draft_model_config=object())
    said = {"num_key_value_heads": 1}
    assert shared([Attention(1)], 2, said) == 2
    assert shared([Attention(1)], 2, said, speculative_config=drafted) == 1
