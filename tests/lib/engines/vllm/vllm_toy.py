"""vLLM's own scheduler and this connector around a model that can be seen through.

The KV of a token is a digest of all tokens up to it, and the next token follows from the KV
that is really in the blocks. So a wrong byte anywhere in a prefix gives other tokens.
"""

import copy
import functools
import hashlib
import time
from array import array
from concurrent.futures import wait
from types import SimpleNamespace

import torch
from vllm import SamplingParams
from vllm.config import KVEventsConfig, KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from hexkv.adapters.vllm.connector import HexKVConnector, KVConnectorRole

BLOCK, HEADS, WIDTH = 16, 1, 16
NAMES = ["layer.0", "layer.1"]

FOLLOWED = hasattr(KVConnectorBase_V1, "unregister_kv_caches")
"""Whether this vLLM says when its KV memory goes and comes back."""


def link(before, token, weights=""):
    """The KV of a token, a whole number below 2**24, from that of the one before it."""
    seed = f"{before} {token}{weights}".encode()
    return int.from_bytes(hashlib.blake2b(seed, digest_size=3).digest(), "little")


def alone(prompt, count, weights=""):
    """What the model generates after *prompt*, computed from nothing but the tokens."""
    tokens, state = list(prompt), 0
    for token in tokens:
        state = link(state, token, weights)
    for _ in range(count):
        tokens.append(state % 1000)
        state = link(state, tokens[-1], weights)
    return tokens[len(prompt) :]


TRANSFER = {
    "kv_connector": "HexKVConnector",
    "kv_connector_module_path": "hexkv.adapters.vllm.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


@functools.cache
def configuration(model, budget, prefix_caching):
    """vLLM's configuration, which takes seconds to make."""
    return EngineArgs(
        model=model,
        max_model_len=1024,
        dtype="float32",
        enforce_eager=True,
        block_size=BLOCK * 2,  # what the CPU's backend accepts; the toy has its own
        max_num_batched_tokens=budget,
        max_num_seqs=8,
        enable_prefix_caching=prefix_caching,
        kv_transfer_config=TRANSFER,
    ).create_engine_config()


@functools.cache
def _tensor(weights):
    values = torch.tensor(list(weights.encode()), dtype=torch.uint8)
    return torch.nn.Parameter(values, requires_grad=False)


class _Worker:
    """The methods of vLLM's worker that change a toy's weights, or take its KV memory away."""

    def __init__(self, toy):
        self._toy = toy
        self._place = self._first = str(toy.executor.vllm_config.model_config.model)

    def reload_weights(self, weights_path=None):
        self._place = str(weights_path or self._place)
        self._toy.weights = "" if self._place == self._first else f" {self._place}"

    def sleep(self, level=1):
        self._toy.weights = self._toy.weights if level == 1 else " dropped"
        self.discard(("kv_cache",))

    def discard(self, tags):
        if FOLLOWED and "kv_cache" in tags:
            self._toy.worker.unregister_kv_caches()
        for cache in self._toy.caches.values():
            cache.fill_(torch.nan)

    def wake_up(self, tags=None):
        if tags is not None and "kv_cache" not in tags:
            return
        for cache in self._toy.caches.values():
            assert bool(cache.isnan().all()), "there was no memory to write to"
            cache.fill_(-2.0)
        if FOLLOWED:
            self._toy.worker.restore_kv_caches()

    def get_model(self):
        parameters = [("weights", _tensor(self._toy.weights))]
        return SimpleNamespace(named_parameters=lambda: parameters)


class Toy:
    """One engine of vLLM with one worker. Closed by :meth:`close`."""

    transfer = TRANSFER

    def __init__(self, model, extra, *, blocks=64, budget=256, prefix_caching=True, events=False):
        config = copy.deepcopy(configuration(str(model), budget, prefix_caching))
        config.kv_transfer_config = KVTransferConfig(
            **self.transfer, kv_connector_extra_config=extra
        )
        if events:
            config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        config.cache_config.block_size = BLOCK
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=HEADS, head_size=WIDTH, dtype=torch.float32
        )
        kv = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(NAMES, spec)]
        )
        self.caches = {name: torch.zeros(blocks, HEADS, BLOCK, 2 * WIDTH) for name in NAMES}
        self.weights = ""
        """What the model computes with, beside tokens."""

        self.executor = object.__new__(UniProcExecutor)
        self.executor.vllm_config = config
        self.executor.driver_worker = _Worker(self)
        self.worker = self._work(config, kv)
        self.scheduler = Scheduler(
            config,
            kv,
            StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=True,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._tables = {}
        self.requests = {}
        self.preempted = 0
        self.cached = {}
        self.told = {}
        """By request, the ``kv_transfer_params`` of its answer."""

    def _work(self, config, kv):
        worker = HexKVConnector(config, KVConnectorRole.WORKER, kv)
        worker.register_kv_caches(self.caches)
        return worker

    @property
    def engine(self):
        return self.worker._worker.half._engine

    def add(self, name, prompt, count=4, *, params=None, salt=None):
        """Put a request in the queue."""
        extra = {"kv_transfer_params": params} if params else None
        sampling = SamplingParams(
            max_tokens=count, ignore_eos=True, temperature=0.0, extra_args=extra
        )
        request = Request(
            name, list(prompt), sampling, None, cache_salt=salt, block_hasher=self._hasher
        )
        self.requests[name] = request
        self.scheduler.add_request(request)

    def run(self, seconds=300.0):
        """Step until nothing is left to do, and all of it is stored."""
        until = time.monotonic() + seconds
        while self.scheduler.has_unfinished_requests():
            assert time.monotonic() < until, f"not done after {seconds} seconds"
            self._rest()
        self.settle(seconds)

    def settle(self, seconds):
        """Wait for what runs behind the steps: saves, and the reports of them."""
        for worker in self._workers:
            worker._worker.half._saving._thread.submit(int).result(seconds)

    @property
    def _workers(self):
        return [self.worker]

    def _rest(self):
        """One step; if there was nothing to compute in it, loaders get the processor."""
        if not self.step():
            running = self.worker._worker.half._outside.running.values()
            wait([done for _, done in running], timeout=0.01)

    def call(self, method, **said):
        """Have the worker do something, as vLLM does."""
        self.executor.collective_rpc(method, kwargs=said)

    def answers(self):
        """What every request got so far."""
        return {name: list(request.output_token_ids) for name, request in self.requests.items()}

    def forget(self, seconds=300.0):
        """Empty vLLM's own prefix cache, once loads for requests that were given up are over."""
        until = time.monotonic() + seconds
        while not self.scheduler.reset_prefix_cache():
            assert time.monotonic() < until, "blocks are still in use"
            self._rest()

    def step(self):
        """One step of the engine. How many tokens it computed."""
        output = self.scheduler.schedule()
        worker, known = self.worker, KVConnectorOutput()
        worker.handle_preemptions(output.kv_connector_metadata)
        worker.bind_connector_metadata(output.kv_connector_metadata)
        first = getattr(output, "has_sync_kv_loads", True)
        if first:
            worker.start_load_kv(None)
        sampled = self._forward(output)
        if not first:
            worker.start_load_kv(None)
        worker.wait_for_save()
        known.finished_sending, known.finished_recving = worker.get_finished(
            output.finished_req_ids
        )
        known.invalid_block_ids = worker.get_block_ids_with_load_errors()
        known.kv_connector_stats = worker.get_kv_connector_stats()
        known.kv_connector_worker_meta = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        names = list(sampled)
        told = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[sampled[name] for name in names],
            kv_connector_output=known,
        )
        for answered in self.scheduler.update_from_output(output, told).values():
            for one in answered.outputs:
                if one.kv_transfer_params:
                    self.told[one.request_id] = one.kv_transfer_params
        return output.total_num_scheduled_tokens

    @property
    def _layers(self):
        """The tensors of each layer, by its name, in the order in which they are computed."""
        return {name: [cache] for name, cache in self.caches.items()}

    def _forward(self, output):
        """Compute layer by layer, and give the next token of who is at its end."""
        self._written = []
        sampled = self._compute(output)
        if self._written:
            # Only these: loads write to other blocks meanwhile.
            blocks, offsets = torch.tensor(self._written).T
            layers = self._layers
            computed = {
                name: [cache[blocks, :, offsets] for cache in caches]
                for name, caches in layers.items()
            }
            for caches in layers.values():
                for cache in caches:
                    cache[blocks, :, offsets] = -1.0
            for name, caches in layers.items():
                for cache, content in zip(caches, computed[name], strict=True):
                    cache[blocks, :, offsets] = content
                self.worker.save_kv_layer(name, None, None)
        return sampled

    def _compute(self, output):
        """Write the KV of what is scheduled, and give the next token of who is at its end."""
        cached = output.scheduled_cached_reqs
        computed = {}
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
            computed[new.req_id] = new.num_computed_tokens
            self.cached.setdefault(new.req_id, new.num_computed_tokens)
        for place, name in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[place]
            if name in cached.resumed_req_ids:
                self.preempted += 1
                self._tables[name] = list(blocks[0])
            elif blocks is not None:
                self._tables[name].extend(blocks[0])
            computed[name] = cached.num_computed_tokens[place]
        for name in NAMES:
            self.worker.wait_for_layer_load(name)
        sampled = {}
        for name, count in output.num_scheduled_tokens.items():
            start, tokens = computed[name], self.requests[name].all_token_ids
            state = self._read(name, start - 1) if start else 0
            for at in range(start, start + count):
                state = link(state, tokens[at], self.weights)
                self._write(name, at, state)
                self._written.append((self._tables[name][at // BLOCK], at % BLOCK))
            sampled[name] = [state % 1000] if start + count == len(tokens) else []
        return sampled

    def _read(self, name, at):
        """The state in the KV of one token, if all before it says the same in all layers."""
        states, tokens = [0], self.requests[name].all_token_ids
        for place in range(at + 1):
            states.append(link(states[-1], tokens[place], self.weights))
        places = torch.arange(at + 1)
        blocks = torch.tensor(self._tables[name])[places // BLOCK]
        wanted = torch.tensor(states[1:], dtype=torch.float32)[:, None]
        for cache in self.caches.values():
            if not bool((cache[blocks, 0, places % BLOCK] == wanted).all()):
                return -1  # whatever follows from wrong KV is wrong
        return states[-1]

    def _write(self, name, at, state):
        block, offset = self._tables[name][at // BLOCK], at % BLOCK
        for cache in self.caches.values():
            cache[block, 0, offset] = state

    def close(self):
        """End both halves."""
        self.scheduler.shutdown()
        self.worker.shutdown()


def packed(tokens):
    return memoryview(array("I", tokens)).cast("B").cast("I")
