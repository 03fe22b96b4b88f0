"""A model in NumPy with hexkv inside: KV in arrays, no torch.

Needs hexkv and numpy. The model is as small as they get: two layers of attention with random
weights. It computes a prompt, then only the end of a longer one.

    python examples/numpy_alone.py
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hexkv.api import KVLayout, open_cache
from hexkv.api.arrays import ArrayKV

Floats: TypeAlias = NDArray[np.float32]

LAYERS, HEADS, WIDTH = 2, 4, 16
VOCABULARY = 1_000
LAYOUT = KVLayout.attention(np.float32, layers=LAYERS, heads=HEADS, key_width=WIDTH)
CONFIG: dict[str, Any] = {"pool": {"bytes": "16MiB"}, "chunk": {"size": 64}}


class TinyModel:
    """Computes the KV of a prompt, and the state of its last token."""

    def __init__(self) -> None:
        made = np.random.default_rng(0)
        size = HEADS * WIDTH
        self.embedding: Floats = made.normal(size=(VOCABULARY, size)).astype(np.float32)
        self.projections: Floats = made.normal(
            scale=size**-0.5, size=(LAYERS, size, 3 * size)
        ).astype(np.float32)

    def run(self, prompt: list[int], kv: ArrayKV, start: int) -> Floats:
        """Compute tokens from *start* on; the KV of those before is in *kv*."""
        state = self.embedding[prompt[start:]]
        mask = np.tri(len(state), len(prompt), start, dtype=bool)
        for projection, (keys, values) in zip(self.projections, kv.planes, strict=True):
            mixed = (state @ projection).reshape(-1, 3, HEADS, WIDTH)
            keys[start:], values[start:] = mixed[:, 1], mixed[:, 2]
            scores = np.einsum("qhw,khw->hqk", mixed[:, 0], keys) / WIDTH**0.5
            weights = np.exp(np.where(mask, scores, -np.inf) - scores.max())
            weights /= weights.sum(axis=-1, keepdims=True)
            state = state + np.einsum("hqk,khw->qhw", weights, values).reshape(len(state), -1)
        last: Floats = state[-1]
        return last


def main() -> int:
    """Compute a prompt, then a longer one with and without the cache. 0 if the states agree."""
    model = TinyModel()
    prompt = [token * token % VOCABULARY for token in range(500)]
    longer = [*prompt, 1, 2, 3]
    with open_cache(CONFIG, model="tiny", layout=LAYOUT) as cache:
        first = ArrayKV.zeros(LAYOUT, len(prompt))
        model.run(prompt, first, 0)
        stored = cache.store(prompt, first).stored_tokens
        kv = ArrayKV.zeros(LAYOUT, len(longer))
        hit = cache.retrieve(longer, kv).hit_tokens
        state = model.run(longer, kv, hit)
    same = np.allclose(state, model.run(longer, ArrayKV.zeros(LAYOUT, len(longer)), 0), atol=1e-3)
    print(f"stored {stored}, loaded {hit}, computed {len(longer) - hit} tokens")
    print("the state is the same" if same else "the state differs")
    return 0 if same and hit else 1


if __name__ == "__main__":
    sys.exit(main())
