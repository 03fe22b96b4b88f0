"""What is found of a prompt under transformers is what computing it gives."""

import torch
from transformers import DynamicCache

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.held import planes_of


def reference(model, tokens):
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.tensor([tokens]), **with_cache(model, cache))
    return planes_of(cache)


def assert_right(model, cached, tokens):
    """All that is found of *tokens* is what computing them gives."""
    loaded = cached.load([*tokens, 1])
    for found, wanted in zip(planes_of(loaded.cache), reference(model, tokens), strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one, other[:, :, : loaded.hit_tokens], rtol=0, atol=1e-3)
    return loaded.hit_tokens
