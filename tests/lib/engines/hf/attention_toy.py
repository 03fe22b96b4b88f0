"""A small model of grouped-query or latent attention whose KV lies in pages, on any ranks.

Layers are shared out to stages and KV heads to the ranks of a stage, as serving engines do; of
latent attention (arXiv 2405.04434) every rank has the latent vectors, and heads of queries of its
own. What ranks compute is summed up.
"""

from types import SimpleNamespace

import torch

from hexkv.adapters.vllm.configuration.identity import Rank
from hexkv.adapters.vllm.configuration.inspection import Memory
from hexkv.adapters.vllm.configuration.windows import LayerShape

LAYERS, HEADS, GROUP = 6, 4, 2
"""Layers, KV heads, and heads of queries for each of these."""

WIDTH, HEAD, VOCABULARY = 48, 8, 64
LATENT, ROTATED = 12, 4
BLOCK, BLOCKS = 8, 24


class AttentionToy:
    """Random weights, the same for one *latent*; computed in float32."""

    def __init__(self, *, latent):
        dice = torch.Generator().manual_seed(7)

        def drawn(*shape):
            return torch.randn(*shape, generator=dice) * shape[-2] ** -0.5

        self.latent = latent
        self._embedded = torch.randn(VOCABULARY, WIDTH, generator=dice)
        self._queries = drawn(LAYERS, HEADS * GROUP, WIDTH, HEAD)
        rows = LATENT + ROTATED if latent else HEADS * 2 * HEAD
        self._rows = drawn(LAYERS, WIDTH, rows)
        self._keys = drawn(LAYERS, HEADS * GROUP, LATENT + ROTATED, HEAD)
        self._values = drawn(LAYERS, HEADS * GROUP, LATENT + ROTATED, HEAD)
        self._out = drawn(LAYERS, HEADS * GROUP, HEAD, WIDTH)
        self._logits = drawn(WIDTH, VOCABULARY)

    def computed(self, tokens):
        """The logits behind *tokens*, and ``[layer][token, head, width]`` of KV."""
        state = self._embedded[torch.tensor(tokens)]
        kv = []
        for layer in range(LAYERS):
            kv.append(self._row(layer, state))
            state = state + self._attended(layer, state, kv[-1], range(HEADS * GROUP), 0)
        return _normed(state[-1]) @ self._logits, kv

    def decoded(self, token, ranks):
        """The logits behind *token*, and behind those of which the *ranks* have all KV."""
        state = self._embedded[torch.tensor([token])]
        for layer in range(LAYERS):
            new, told = self._row(layer, state), torch.zeros_like(state)
            here = [rank for rank in ranks if layer in rank.layers]
            share = HEADS * GROUP // len(here)
            for number, rank in enumerate(here):
                heads = slice(rank.first, rank.first + rank.heads)
                rows = torch.cat([rank.read(layer), new[:, heads]])
                queries = range(number * share, (number + 1) * share)
                told += self._attended(layer, state, rows, queries, rank.first)
            state = state + told
        return (_normed(state[-1]) @ self._logits).flatten()

    def _row(self, layer, state):
        rows = _normed(state) @ self._rows[layer]
        return rows.view(len(state), 1 if self.latent else HEADS, -1)

    def _attended(self, layer, state, rows, queries, first):
        """What the *queries* read in *rows*, whose KV heads are those from the *first* on."""
        if self.latent:
            keys = rows[:, 0] @ self._keys[layer, queries]
            values = rows[:, 0] @ self._values[layer, queries]
        else:
            heads = [query // GROUP - first for query in queries]
            keys, values = rows[:, heads].transpose(0, 1).split(HEAD, dim=-1)
        asked = _normed(state) @ self._queries[layer, queries]
        # The last rows are those of the queries' own tokens: nobody sees what comes after.
        hidden = torch.ones(len(state), len(rows)).triu(len(rows) - len(state) + 1) > 0
        scores = (asked @ keys.mT).masked_fill(hidden, float("-inf"))
        return (scores.softmax(-1) @ values @ self._out[layer, queries]).sum(0)


def _normed(state):
    return state / state.square().mean(-1, keepdim=True).sqrt()


class PagedRank:
    """The KV memory of one rank, as vLLM's tensors are, and what vLLM says of it."""

    def __init__(self, number, tensor, pipeline, *, latent):
        self.latent = latent
        stage, place = divmod(number, tensor)
        per = LAYERS // pipeline
        self.layers = range(stage * per, (stage + 1) * per)
        self.heads = 1 if latent else max(1, HEADS // tensor)
        self.first = 0 if latent else place * HEADS // tensor
        replicas = tensor if latent else max(1, tensor // HEADS)
        self.rank = Rank(number, tensor * pipeline, replicas)
        width = LATENT + ROTATED if latent else 2 * HEAD
        shape = (BLOCKS, BLOCK, width) if latent else (BLOCKS, self.heads, BLOCK, width)
        self.caches = {f"layers.{layer}.attn": torch.zeros(shape) for layer in self.layers}
        size = self.heads * BLOCK * width * 4
        said = LayerShape(size, 1, width, 0, LATENT) if latent else None
        said = said or LayerShape(size, self.heads, HEAD, HEAD)
        self.memory = Memory(BLOCKS, BLOCK, dict.fromkeys(self.caches, said), replicas)
        self.config = SimpleNamespace(
            model_config=SimpleNamespace(
                dtype=torch.float32,
                get_total_num_kv_heads=lambda: HEADS,
                get_total_num_hidden_layers=lambda: LAYERS,
                get_layers_start_end_indices=lambda _: (self.layers[0], self.layers[-1] + 1),
            ),
            cache_config=SimpleNamespace(cache_dtype="auto"),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=tensor, pipeline_parallel_size=pipeline
            ),
        )
        self.blocks = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(number))
        self.tokens = 0

    def write(self, kv):
        """Put ``[layer][token, head, width]`` of a model's KV into blocks, this rank's part."""
        self.tokens = len(kv[0])
        for layer in self.layers:
            self._put(layer, kv[layer][:, self.first : self.first + self.heads])

    def read(self, layer):
        """``[token, head, width]`` of the KV of one layer here."""
        cache = self.caches[f"layers.{layer}.attn"]
        used = cache[self.blocks]  # [blocks, heads, tokens, width], or without heads
        rows = used.flatten(0, 1)[:, None] if self.latent else used.transpose(1, 2).flatten(0, 1)
        return rows[: self.tokens]

    def _put(self, layer, rows):
        cache, at = self.caches[f"layers.{layer}.attn"], torch.arange(len(rows))
        blocks, offsets = self.blocks[at // BLOCK], at % BLOCK
        if self.latent:
            cache[blocks, offsets] = rows[:, 0]
        else:
            cache.transpose(1, 2)[blocks, offsets] = rows
