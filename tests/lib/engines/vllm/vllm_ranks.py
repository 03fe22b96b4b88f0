"""The toy of vLLM on several ranks: each has a connector and KV of its own heads and layers.

Every head of every layer has other numbers, so that KV in the place of another head's or layer's
is as wrong as that of other tokens.
"""

import copy
from collections import Counter
from concurrent.futures import wait
from typing import NamedTuple

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
)

from engines.vllm.vllm_toy import BLOCK, WIDTH, Toy, link
from hexkv.adapters.vllm.connector import HexKVConnector, KVConnectorRole

LAYERS, HEADS = 8, 4
"""Of the model whose configuration vLLM reads."""


class Ranks(NamedTuple):
    """How many ranks an engine has."""

    tensor: int = 1
    pipeline: int = 1


class Part(NamedTuple):
    """The KV of one layer on one rank."""

    cache: torch.Tensor
    layer: int
    first: int
    """The first of its heads, among the model's."""


def name_of(layer):
    return f"model.layers.{layer}.self_attn.attn"


class Crew:
    """The connectors of all ranks, which report together as vLLM's executor has them do."""

    def __init__(self, workers):
        self.workers = workers
        self._over = Counter(), Counter()

    def get_finished(self, ids):
        for worker in self.workers:
            for over, names in zip(self._over, worker.get_finished(ids), strict=True):
                over.update(names or ())
        return tuple(map(self._whole, self._over))

    def _whole(self, over):
        done = {name for name, ranks in over.items() if ranks == len(self.workers)}
        for name in done:
            del over[name]
        return done or None

    def get_block_ids_with_load_errors(self):
        bad = [worker.get_block_ids_with_load_errors() for worker in self.workers]
        return set().union(*bad)

    def get_kv_connector_stats(self):
        return self._together("get_kv_connector_stats")

    def build_connector_worker_meta(self):
        return self._together("build_connector_worker_meta")

    def _together(self, method):
        said = [getattr(worker, method)() for worker in self.workers]
        whole = None
        for one in said:
            if one is not None:
                whole = one if whole is None else whole.aggregate(one)
        return whole

    def __getattr__(self, method):
        def each(*args):
            for worker in self.workers:
                getattr(worker, method)(*args)

        return each


class RankedToy(Toy):
    """One engine of vLLM with several workers.

    Args:
        model: as for the toy of one rank; of latent attention where that is wanted.
        extra: the connector's configuration.
        ranks: how many there are.
        latent: whether every rank has all of one latent head.
    """

    def __init__(self, model, extra, *, ranks=Ranks(), latent=False, **settings):  # noqa: B008
        self._ranks = ranks
        self._latent = latent
        self.parts = []
        super().__init__(model, extra, **settings)

    def _work(self, config, kv):
        parallel = config.parallel_config
        parallel.tensor_parallel_size, parallel.pipeline_parallel_size = self._ranks
        ranks = range(self._ranks.tensor * self._ranks.pipeline)
        workers = [self._rank(copy.deepcopy(config), kv.num_blocks, rank) for rank in ranks]
        # The scheduler's half looks at the memory of all.
        kv.kv_cache_groups[0] = self._group(range(LAYERS))
        return Crew(workers)

    @property
    def _workers(self):
        return self.worker.workers

    def _group(self, layers):
        spec = {"block_size": BLOCK, "head_size": WIDTH * 2, "dtype": torch.float32}
        if self._latent:
            spec = MLAAttentionSpec(num_kv_heads=1, **spec)
        else:
            spec["head_size"] = WIDTH
            spec = FullAttentionSpec(num_kv_heads=self._heads, **spec)
        return KVCacheGroupSpec([name_of(layer) for layer in layers], spec)

    @property
    def _heads(self):
        return max(1, HEADS // self._ranks.tensor)

    def _rank(self, config, blocks, rank):
        config.parallel_config.rank = rank
        stage, place = divmod(rank, self._ranks.tensor)
        layers = range(LAYERS)[stage * LAYERS // self._ranks.pipeline :][
            : LAYERS // self._ranks.pipeline
        ]
        group = self._group(layers)
        caches = {}
        for layer in layers:
            if self._latent:
                cache, first = torch.zeros(blocks, BLOCK, 2 * WIDTH), 0
                rows = cache.unsqueeze(1)
            else:
                rows = cache = torch.zeros(blocks, self._heads, BLOCK, 2 * WIDTH)
                first = place * HEADS // self._ranks.tensor
            caches[name_of(layer)] = cache
            self.parts.append(Part(rows, layer, first))
        kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group])
        worker = HexKVConnector(config, KVConnectorRole.WORKER, kv)
        worker.register_kv_caches(caches)
        return worker

    @property
    def _layers(self):
        layers = {}
        for cache, layer, _ in self.parts:
            layers.setdefault(name_of(layer), []).append(cache)
        return layers

    @property
    def engines(self):
        return [worker._worker.half._engine for worker in self.worker.workers]

    def flush(self):
        assert all(engine.flush(60) for engine in self.engines)

    def _rest(self):
        if not self.step():
            halves = [worker._worker.half for worker in self.worker.workers]
            running = [done for half in halves for _, done in half._outside.running.values()]
            wait(running, timeout=0.01)

    def _read(self, name, at):
        states, tokens = [0], self.requests[name].all_token_ids
        for place in range(at + 1):
            states.append(link(states[-1], tokens[place]))
        places = torch.arange(at + 1)
        blocks = torch.tensor(self._tables[name])[places // BLOCK]
        wanted = torch.tensor(states[1:])
        for cache, layer, first in self.parts:
            for head in range(cache.shape[1]):
                found = cache[blocks, head, places % BLOCK]
                if not bool((found == _seen(wanted, layer, first + head)[:, None]).all()):
                    return -1
        return states[-1]

    def _write(self, name, at, state):
        block, offset = self._tables[name][at // BLOCK], at % BLOCK
        for cache, layer, first in self.parts:
            for head in range(cache.shape[1]):
                cache[block, head, offset] = _seen(torch.tensor(state), layer, first + head)


def _seen(state, layer, head):
    """The KV of a token with this *state* in one head of one layer, exact as a float32."""
    return ((state + 1_299_709 * layer + 104_729 * head) % 2**24).float()
