"""``hexkv-hf`` with its small trained model here: the same tokens, most of them loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from benchmarks.gpu.timing import Size, Value, synchronise
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.trained import trained
from hexkv.api import open_cache

_PROMPT = 2_048
_NEW = 32


def generated(device: torch.device, size: Size) -> Iterator[Value]:
    """In single precision, so that equal tokens are a fair demand."""
    tokens, new = (256, 4) if size.layers <= 2 else (_PROMPT, _NEW)
    model = trained("text").to(device)  # type: ignore[arg-type] # of a wrapper
    model.train(False)
    text = (__doc__ or "") * (1 + tokens // 50)
    prompt = list(text.encode())[:tokens]
    config = {"pool": {"bytes": "256MiB", "provider": "pinned"}, "chunk": {"size": 64}}
    with torch.no_grad():
        ids = torch.tensor([prompt], device=device)
        alone = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
        )[0, tokens:].tolist()
    with open_cache(config, namespace=namespace_of_model(model)) as cache:
        cached = CachedModel(model, cache)
        most = tokens - 65
        # The first time of each way compiles its kernel.
        for turn, least in (("stored", 0), ("loaded", most), ("loaded again", most)):
            synchronise(device)
            began = time.perf_counter()
            answer = cached.generate(prompt, new)
            took = time.perf_counter() - began
            assert answer.tokens == alone, f"{turn}: other tokens than without the cache"
            hit = answer.prefill.hit_tokens
            assert hit >= least, f"{turn}: only {hit} tokens were loaded"
            name = f"{turn}: {hit} of {tokens} tokens loaded, the same {new} tokens"
            yield Value(name, "right" if size.layers <= 2 else f"{1e3 * took:.1f} ms")
