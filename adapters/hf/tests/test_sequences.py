"""Several sequences go on from one loaded prompt, in any mode, as long as they share it."""

from __future__ import annotations

import pytest
import torch

from engines.hf.hf_right import assert_right
from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.model import CachedModel
from hexkv.contracts.kit.cases import each
from hexkv.ports import InvalidRequest

CHUNK = 16  # as the engines here cut


def test_other_prompts_over_one_loaded_prompt_are_refused(gqa, engine_for, prompt):
    cached = CachedModel(gqa, engine_for(gqa))
    one, other = prompt(4 * CHUNK + 5), prompt(4 * CHUNK + 5, seed=2)
    for hit in (0, 4 * CHUNK):
        loaded = cached.load(one, sequences=2)
        assert loaded.hit_tokens == hit
        with pytest.raises(
            InvalidRequest, match=f"sequence 1 differs from sequence 0 at token {hit}"
        ):
            gqa.generate(torch.cat([one, other]), **with_cache(gqa, loaded.cache), max_new_tokens=2)
        with torch.no_grad():  # one token that differs, the last one
            rows = torch.cat([one, one])[:, hit:]
            rows[1, -1] += 1
            with pytest.raises(InvalidRequest, match=f"at token {4 * CHUNK + 4}"):
                gqa(
                    input_ids=rows % 128,
                    **with_cache(gqa, cached.load(one, sequences=2).cache),
                )
        cached.prefill(one)


def test_sequences_part_behind_the_prompt(gqa, engine_for, prompt):
    cached = CachedModel(gqa, engine_for(gqa))
    ids = prompt(4 * CHUNK + 5)
    cached.prefill(ids)
    loaded = cached.load(ids, sequences=2)
    turn = prompt(7, seed=3)
    with torch.no_grad():
        gqa(input_ids=ids[:, loaded.hit_tokens :].expand(2, -1), **with_cache(gqa, loaded.cache))
        gqa(input_ids=torch.cat([turn, turn.flip(1)]), **with_cache(gqa, loaded.cache))
    for row, said in enumerate((turn, turn.flip(1))):
        tokens = torch.cat([ids, said], 1)[0].tolist()
        cached.save(tokens, loaded.cache, sequence=row)
        assert_right(gqa, cached, tokens)
        with pytest.raises(InvalidRequest, match="layer 0"):
            cached.save(tokens, loaded.cache, sequence=1 - row)


@each("loading", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@each("using", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_cache_loaded_in_one_mode_works_in_every_mode(gqa, engine_for, prompt, loading, using):
    cached = CachedModel(gqa, engine_for(gqa))
    ids = prompt(4 * CHUNK + 5)
    wanted = gqa(input_ids=ids).logits[0, -1].detach()
    cached.prefill(ids)
    for room in (0, 8):
        with loading():
            loaded = cached.load(ids, room=room)
        with using():
            hit = loaded.hit_tokens
            for step in (ids[:, hit : hit + 2], ids[:, hit + 2 :]):
                logits = gqa(input_ids=step, **with_cache(gqa, loaded.cache)).logits[0, -1]
            cached.save(ids, loaded.cache)
        assert torch.allclose(logits, wanted, rtol=0, atol=1e-4)
        if using is torch.enable_grad:
            logits.sum().backward()
            gqa.zero_grad()
