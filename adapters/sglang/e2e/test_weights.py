"""Weights that a running engine gets as tensors: what is stored is of the weights before."""

import copy

import pytest
import torch
from safetensors.torch import save_file

from processes import until
from sglang_engines import PAGES, PATIENT, behind, frames, linked, prompt


@pytest.mark.parametrize("place", [behind, linked], ids=["hicache", "linker"])
def test_after_an_update_without_a_version_nothing_stored_is_read(
    place, start, reference, greedy, transformer, tmp_path
):
    trained, words = copy.deepcopy(transformer), prompt("before and after")
    dice = torch.Generator().manual_seed(1)
    weight = trained.model.layers[0].self_attn.v_proj.weight
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape, generator=dice) * weight.std())
    save_file({"model.layers.0.self_attn.v_proj.weight": weight}, tmp_path / "new.safetensors")
    after = greedy(trained)(words)
    assert after != reference(words)

    root = tmp_path / "disk"
    disk = {"store": "disk", "settings": {"root": str(root)}}
    engine = start(**place(pool={"bytes": "128MiB"}, deadlines=PATIENT, tiers=[disk]))
    assert engine.generate(words)[0].tokens == reference(words)
    until(lambda: len(frames(root)) == PAGES)
    engine.flush()
    engine.update(tmp_path / "new.safetensors")
    for _ in range(2):
        [answer] = engine.generate(words)
        assert (answer.tokens, answer.cached) == (after, 0)
        engine.flush()
    assert len(frames(root)) == PAGES
    assert engine.said("weights were replaced")
    engine.kill()
