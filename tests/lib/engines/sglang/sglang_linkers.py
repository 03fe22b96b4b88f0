"""Linkers over SGLang's device pools, and their stores and loads."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from engines.sglang.sglang_pools import PAGE, device_pool, extra, slots
from hexkv.adapters.sglang.linker import HexKVLinker
from processes import until

SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1")
FROM, TO = (3, 1, 8), (2, 7, 4)
PATIENCE = 60.0


@contextmanager
def linker(pool, root, components=(ComponentType.FULL,), sizes=None, **more):
    """A linker as SGLang makes one, on one rank."""
    given = extra(root, **{"model": {"name": "tiny", "weights": "one"}} | more)
    params = SimpleNamespace(
        token_to_kv_pool_allocator=TokenToKVPoolAllocator(
            pool.size, pool.dtype, "cpu", pool, need_sort=False
        ),
        page_size=PAGE,
        attn_tp_cache_group=None,
        tp_cache_group=None,
        **(sizes or {}),
    )
    made = HexKVLinker(
        None,
        params,
        components=set(components),
        extra_config={key: value for key, value in given.items() if key not in SGLANGS},
    )
    try:
        yield made
    finally:
        made.close()


def filled(kind, seed=None):
    """A device pool: zeros, or numbers from *seed*."""
    pool = device_pool(kind)
    made = torch.Generator().manual_seed(seed or 0)
    for buffer in buffers(pool):
        buffer.copy_(torch.randn(buffer.shape, generator=made) * (seed is not None))
    return pool


def buffers(pool):
    return [*pool.k_buffer, *pool.v_buffer] if hasattr(pool, "k_buffer") else list(pool.kv_buffer)


def moved(source, target):
    return all(
        torch.equal(one[slots(*FROM)], other[slots(*TO)])
        for one, other in zip(buffers(source), buffers(target), strict=True)
    )


def kv(keys, pages=None):
    indices = None if pages is None else slots(*pages)
    return [PoolTransfer(name=PoolName.KV, keys=keys, device_indices=indices)]


def offloaded(one, keys, pages):
    assert one.offload(kv(keys, pages))
    until(lambda: one.num_completed_offloads() == 1)
    return one.pop_completed_offload()
