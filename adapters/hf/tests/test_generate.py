"""transformers' own ``generate`` with a loaded cache: as without one, or refused."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import Cache

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.shape import layout_of
from hexkv.contracts.kit.cases import each
from hexkv.ports import InvalidRequest, InvalidTokens, LayoutMismatch

CHUNK = 16  # as the engines here cut
NEW = 6


def generated(model, ids, **options):
    torch.manual_seed(0)
    options = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0} | options
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options).tolist()


def test_beams_and_several_answers_go_on_from_one_loaded_prefix(gqa, models, engine_for, prompt):
    for model in (gqa, models["deepseek-mla"]()):
        cached = CachedModel(model, engine_for(model))
        ids = prompt(4 * CHUNK + 3)
        ways = (
            {"num_beams": 3},
            {"num_beams": 3, "num_return_sequences": 2, "do_sample": True},
            {"num_return_sequences": 3, "do_sample": True},
            {"prefill_chunk_size": 2, "num_beams": 3},
        )
        wanted = [generated(model, ids, **options) for options in ways]
        for hit in (0, 4 * CHUNK):
            for options, answers in zip(ways, wanted, strict=True):
                for room in (0, NEW):
                    loaded = cached.load(ids, room=room, sequences=3)
                    assert loaded.hit_tokens == hit
                    found = generated(model, ids, **with_cache(model, loaded.cache), **options)
                    assert found == answers
            cached.prefill(ids)


def test_other_sequences_than_were_loaded_and_computing_all_again_are_refused(
    gqa, engine_for, prompt
):
    cached = CachedModel(gqa, engine_for(gqa))
    ids = prompt(4 * CHUNK + 3)
    with pytest.raises(InvalidRequest, match="at least 1"):
        cached.load(ids, sequences=0)
    for _ in ("miss", "hit"):
        for loaded, beams in ((1, 3), (3, 2), (2, 1)):
            cache = cached.load(ids, sequences=loaded).cache
            with pytest.raises(InvalidRequest, match=rf"load\(\.\.\., sequences={beams}\)"):
                generated(gqa, ids, **with_cache(gqa, cache), num_beams=beams)
        with pytest.raises(InvalidRequest, match="give it use_cache=True"):
            generated(gqa, ids, **with_cache(gqa, cached.load(ids).cache), use_cache=False)
        cached.prefill(ids)


def test_drafts_are_refused_before_anything_is_computed(gqa, engine_for, prompt, llama):
    cached = CachedModel(gqa, engine_for(gqa))
    ids = prompt(4 * CHUNK + 3)
    assistant = llama(num_hidden_layers=1)
    computed = []
    gqa.register_forward_pre_hook(lambda *call: computed.append(call))
    for _ in ("miss", "hit"):
        for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}):
            cache = cached.load(ids).cache
            computed.clear()
            with pytest.raises(InvalidRequest, match="leave out the cache, or the drafts"):
                generated(gqa, ids, **with_cache(gqa, cache), **options)
            assert not computed
        cached.prefill(ids)


def test_releases_that_say_nothing_of_drafts_are_refused_as_they_take_them_back(
    gqa, engine_for, prompt, monkeypatch
):
    monkeypatch.delattr(Cache, "activate_past_recording", raising=False)
    cached = CachedModel(gqa, engine_for(gqa))
    ids = prompt(4 * CHUNK + 3)
    cached.prefill(ids)
    whole, rest = cached.load(ids).cache, cached.load(ids).cache
    with torch.no_grad():
        gqa(input_ids=ids, **with_cache(gqa, whole))
        gqa(input_ids=ids[:, 4 * CHUNK :], **with_cache(gqa, rest))
    with pytest.raises(InvalidRequest, match="drafts"):
        whole.crop(-1)
    rest.crop(-1)
    assert rest.get_seq_length() == 4 * CHUNK + 2


def test_tokens_that_stand_for_images_and_sounds_are_refused(llama, engine_for, monkeypatch):
    model = llama()
    engine = engine_for(model)
    kind = type(model.config)
    monkeypatch.setattr(kind, "sub_configs", {"audio_config": kind})
    model.config.image_token_id = 7
    model.config.audio_config = kind(audio_token_index=9)
    cached = CachedModel(model, engine)
    cache = cached.prefill([1, 2, 3] * CHUNK).cache
    for token, name in ((7, "image_token_id"), (9, "audio_token_index")):
        ids = [1, token, 3] * CHUNK
        for call in (cached.load, cached.prefill, lambda ids: cached.save(ids, cache)):
            with pytest.raises(InvalidTokens, match=f"token {token} at position 1 .* {name}"):
                call(ids)


def with_state_elsewhere(model):
    def counted(module, arguments, output):
        return output + 3 * arguments[0].cumsum(1)  # of this call's tokens

    model.model.layers[0].mlp.register_forward_hook(counted)


def with_positions_of_its_own(model):
    usual = model.forward
    (name,) = with_cache(model, None)

    def forward(input_ids, position_ids=None, **more):
        if position_ids is None:
            begun = more[name].get_seq_length()
            position_ids = torch.arange(input_ids.shape[1])[None] + begun + 2
        return usual(input_ids, position_ids=position_ids, **more)

    model.forward = forward


@each(
    ("change", "reason"),
    [
        (with_state_elsewhere, "more of a prefix than keys and values: .* layer 1"),
        (with_positions_of_its_own, "counts positions otherwise than generate"),
    ],
)
def test_a_model_that_cannot_go_on_from_loaded_kv_is_refused(llama, change, reason):
    model = llama()
    change(model)
    with pytest.raises(LayoutMismatch, match=reason):
        layout_of(model)
