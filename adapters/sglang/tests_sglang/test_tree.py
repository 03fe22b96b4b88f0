"""SGLang's own tree, controller and threads over the backend: written through, and read back."""

import json
from array import array

import pytest
import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.mem_cache.utils import get_hash_str
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from engines.sglang.sglang_pools import PAGE, PAGES, device_pool, extra
from processes import until

TOKENS = list(range(100, 100 + PAGE * PAGES // 2))


class Tree:
    """One tree of SGLang with its pools, controller and threads."""

    def __init__(self, root, order, io, **more):
        arguments = ServerArgs(
            model_path="dummy",
            page_size=PAGE,
            hicache_ratio=2.0,
            hicache_io_backend=io,
            hicache_mem_layout=order,
            hicache_storage_backend="dynamic",
            hicache_storage_backend_extra_config=json.dumps(
                extra(root, prefetch_threshold=PAGE, **more)
            ),
            hicache_storage_prefetch_policy="wait_complete",
        )
        set_global_server_args_for_scheduler(arguments)
        self.pool = device_pool("mha")
        self.allocator = TokenToKVPoolAllocator(
            self.pool.size, self.pool.dtype, "cpu", self.pool, need_sort=False
        )
        params = CacheInitParams(
            req_to_token_pool=ReqToTokenPool(
                size=4, max_context_len=256, device="cpu", enable_memory_saver=False
            ),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            disable=False,
            tree_components=(ComponentType.FULL,),
        )
        self.cache = UnifiedRadixCache(params=params)
        self.cache.init_hicache(arguments, params)
        self.cache.write_through_threshold = 1
        self.cache.load_back_threshold = 0
        self.controller = self.cache.cache_controller

    def match(self, tokens):
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))

    def compute(self, tokens, seed, *, written=True):
        """Put *tokens* into the tree, numbers from *seed* as their KV; wait until it is stored.

        Unless *written*, until it is copied.
        """
        at = self.allocator.alloc(len(tokens))
        made = torch.Generator().manual_seed(seed)
        for buffer in self.buffers:
            buffer[at] = torch.randn((len(at), *buffer.shape[1:]), generator=made).to(buffer.dtype)
        self.cache.insert(InsertParams(key=RadixKey(array("q", tokens)), value=at))
        names = get_hash_str(tokens, page_size=PAGE)
        until(lambda: self.stored(names) if written else self.copied())

    def copied(self):
        """Whether no page of SGLang's memory waits for hexkv, as a step of its scheduler asks."""
        self.cache.check_hicache_events()
        return not self.cache.ongoing_write_through and not self.cache.ongoing_backup

    def stored(self, names):
        return self.copied() and self.controller.storage_backend.batch_exists(names) == len(names)

    def load(self, tokens):
        """Bring what the tiers hold into the device. How many tokens came from them."""
        request = CacheRequestHandle("request", 0)
        root = self.cache.root_node_handle()
        self.cache.prefetch_from_storage(request, root, array("q", tokens))
        until(lambda: self.polled(request))
        loaded = self.cache.pop_prefetch_loaded_tokens(request)
        if loaded:
            assert self.cache.load_back(self.match(tokens).best_match_node, req=None)
            self.cache.ready_to_load_host_cache()
            for said in list(self.controller.ack_load_queue):
                said.finish_event.synchronize()
            self.cache.loading_check()
        return loaded

    def polled(self, request):
        self.cache.drain_storage_control_queues()
        return self.cache.check_prefetch_progress(request)

    def slots(self, tokens):
        return self.cache.path_device_indices(self.match(tokens).last_device_node)

    @property
    def buffers(self):
        return [*self.pool.k_buffer, *self.pool.v_buffer]

    def kv(self, tokens):
        at = self.slots(tokens)
        return torch.stack([buffer[at] for buffer in self.buffers])

    def close(self):
        self.cache.shutdown()
        self.controller._stop_storage_threads()
        self.cache.release_host_resources()


@pytest.fixture(autouse=True)
def alone():
    with get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1):
        yield


@pytest.fixture
def tree(tmp_path):
    trees = []

    def grow(order="page_first", io="kernel", **more):
        trees.append(Tree(tmp_path, order, io, **more))
        return trees[-1]

    yield grow
    for one in trees:
        one.close()


@pytest.mark.parametrize(
    ("order", "io", "v1"),
    [
        ("layer_first", "direct", 0),
        ("layer_first", "kernel", 1),
        ("page_first", "kernel", 1),
        ("page_first_direct", "direct", 1),
    ],
)
def test_what_one_tree_wrote_through_another_one_loads(tree, order, io, v1):
    first = tree()
    first.compute(TOKENS, seed=1)
    second = tree(order, io, interface_v1=v1)
    assert second.load(TOKENS) == len(TOKENS)
    assert torch.equal(first.kv(TOKENS), second.kv(TOKENS))


def test_a_damaged_page_ends_the_prefix_and_is_written_again(tree, tmp_path):
    first = tree()
    first.compute(TOKENS, seed=1)
    [file] = tmp_path.glob(f"??/*{get_hash_str(TOKENS, page_size=PAGE)[3]}*")
    file.write_bytes(bytes(file.stat().st_size))
    second = tree()
    assert second.load(TOKENS) == 3 * PAGE
    third = tree()
    third.compute(TOKENS, seed=1)
    assert tree().load(TOKENS) == len(TOKENS)


def test_a_store_that_hangs_holds_up_no_step_and_no_memory_of_sglang(tree, stalled):
    """Its disk writes nothing until the end of the test."""
    one = tree()
    for seed in range(6):  # more than the host pool takes: backups that are copied leave it
        tokens = [seed * 1000 + token for token in TOKENS]
        one.compute(tokens, seed, written=False)
        one.cache.evict(EvictParams(num_tokens=len(TOKENS)))
    assert stalled.begun.wait(60.0)
    assert not stalled.go.is_set()
