"""A serving engine of one's own with hexkv inside: paged KV on a GPU, or on the CPU without one.

Needs hexkv, hexkv-local, hexkv-cuda and torch. The engine is as small as they get: two layers
of attention with random weights, its KV in pages, and one request at a time.
"""

from __future__ import annotations

import sys

import torch

from hexkv.adapters.cuda.streams import CudaKV
from hexkv.api import DType, KVLayout, open_cache

LAYERS, HEADS, WIDTH = 2, 4, 16
BLOCK, BLOCKS = 16, 128
VOCABULARY = 1_000
LAYOUT = KVLayout.attention(DType.FLOAT32, layers=LAYERS, heads=HEADS, key_width=WIDTH)


class OwnEngine:
    """Computes the KV and the last state of a prompt, in pages that requests share."""

    def __init__(self, device: str) -> None:
        made = torch.Generator().manual_seed(0)

        def weights(*shape: int) -> torch.Tensor:
            drawn: torch.Tensor = torch.randn(*shape, generator=made).to(device)
            return drawn.div(shape[0] ** 0.5)

        self.embedding = weights(VOCABULARY, HEADS * WIDTH) * VOCABULARY**0.5
        self.projections = [weights(HEADS * WIDTH, 3 * HEADS * WIDTH) for _ in range(LAYERS)]
        shape = (BLOCKS, BLOCK, HEADS, WIDTH)
        self.pages = [[torch.zeros(shape, device=device) for _ in "kv"] for _ in range(LAYERS)]
        self.device = device

    def run(self, prompt: list[int], slots: torch.Tensor, start: int) -> torch.Tensor:
        """The state of the last token; KV before *start* is in the pages already."""
        state = self.embedding[torch.tensor(prompt[start:], device=self.device)]
        there = (slots // BLOCK, slots % BLOCK)
        new = (there[0][start:], there[1][start:])
        mask = torch.ones(len(state), len(prompt), dtype=torch.bool, device=self.device)
        mask = mask.tril(start)
        for projection, (keys, values) in zip(self.projections, self.pages, strict=True):
            mixed = (state @ projection).view(-1, 3, HEADS, WIDTH)
            keys[new], values[new] = mixed[:, 1], mixed[:, 2]
            heads = (mixed[:, 0], keys[there], values[there])
            q, k, v = (part.transpose(0, 1) for part in heads)
            seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            state = state + seen.transpose(0, 1).reshape(len(state), -1)
        last: torch.Tensor = state[-1]
        return last


def main() -> int:
    """Compute a prompt, lose its KV, load it, compute the rest. 0 if the answer is the same."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    own, cuda = OwnEngine(device), CudaKV(device)
    prompt = [token * token % VOCABULARY for token in range(1_000)]
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(1))
    slots = (order[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[: len(prompt)]
    on_device = slots.to(device)

    config = {"pool": {"bytes": "16MiB", "provider": "pinned"}}
    with open_cache(config, model="own-model", layout=LAYOUT) as cache:
        window = cuda.paged(LAYOUT, own.pages, slots)
        computed = own.run(prompt, on_device, 0)
        stored = cache.store(prompt, window).stored_tokens
        for planes in own.pages:
            for plane in planes:
                plane.zero_()  # other requests came and went
        hit = cache.retrieve(prompt, window).hit_tokens
        answer = own.run(prompt, on_device, hit)
    same = torch.allclose(answer, computed, atol=1e-4)
    print(f"on {cuda.device}: stored {stored}, loaded {hit}, computed {len(prompt) - hit} tokens")
    print("the answer is the same" if same else "the answer differs")
    return 0 if same and hit else 1


if __name__ == "__main__":
    sys.exit(main())
