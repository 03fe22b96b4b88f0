"""SGLang's own pools, and backends that its own factory makes."""

import hashlib
from contextlib import contextmanager

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _build_mha_mla_host_pool
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.storage import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_hash_str

PATIENT = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0}
"""Deadlines. What a busy machine takes its time for is no miss, and is not dropped."""

PAGE, LAYERS, PAGES = 4, 3, 16
HEADS, WIDTH, VALUE = 2, 8, 8
LATENT, ROPE = 8, 4
MHA = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA = ("layer_first", "page_first", "page_first_direct")
POOLS = [("mha", order) for order in MHA] + [("mla", order) for order in MLA]


def device_pool(kind, *, heads=HEADS, dtype=torch.float16, page=PAGE, layers=LAYERS):
    """A pool for *PAGES* pages, on the CPU."""
    shared = {
        "size": PAGES * page,
        "page_size": page,
        "dtype": dtype,
        "layer_num": layers,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    if kind == "mha":
        return MHATokenToKVPool(head_num=heads, head_dim=WIDTH, **shared)
    return MLATokenToKVPool(kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, **shared)


def host_pool(kind, order, *, seed=None, **shape):
    """A host pool in one layout: zeros, or numbers from *seed*."""
    device = device_pool(kind, **shape)
    pool = _build_mha_mla_host_pool(
        pool=device,
        host_to_device_ratio=1.0,
        page_size=device.page_size,
        layout=order,
        allocator_type="default",
        pool_label="kv",
    )
    pool.kv_buffer.zero_()
    if seed is not None:
        made = torch.Generator().manual_seed(seed)
        pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape, generator=made))
    return pool


def config(extra, **said):
    """SGLang's description of a rank."""
    fields = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": False,
        "model_name": "tiny",
    }
    return HiCacheStorageConfig(**fields | said, extra_config=extra)


def extra(root=None, **more):
    """SGLang's extra configuration for hexkv: a disk in *root*, or memory."""
    tier = (
        {"store": "memory"} if root is None else {"store": "disk", "settings": {"root": str(root)}}
    )
    return {
        "backend_name": "hexkv",
        "module_path": "hexkv.adapters.sglang.hicache",
        "class_name": "HexKVStorage",
        "interface_v1": 1,
        "model": {"weights": "one"},
        "pool": {"bytes": "16MiB"},
        "deadlines": PATIENT,
        "tiers": [tier],
        **more,
    }


@contextmanager
def backend(pool, given, **said):
    """A backend as SGLang makes one, with *pool* registered."""
    made = StorageBackendFactory.create_backend("dynamic", config(given, **said), pool)
    try:
        made.register_mem_pool_host(pool)
        yield made
    finally:
        made.close()


def names(count, seed=0):
    """What SGLang calls the pages of a prompt."""
    return get_hash_str(list(range(seed, seed + count * PAGE)), page_size=PAGE)


def slots(*pages, page=PAGE):
    """The slots of pages, by their numbers in a pool."""
    return torch.tensor([number * page + i for number in pages for i in range(page)])


def page_of(pool, number):
    """A page as ``[layers, tokens, planes * heads * width]``, whatever the order in memory."""
    if hasattr(pool, "head_num"):
        planes = []
        for half in (pool.k_buffer, pool.v_buffer):
            at = slice(number * pool.page_size, (number + 1) * pool.page_size)
            match pool.layout:
                case "layer_first":
                    planes.append(half[:, at])
                case "page_first":
                    planes.append(half[at].transpose(0, 1))
                case "page_first_direct":
                    planes.append(half[number])
                case "page_head":
                    planes.append(half[number].permute(2, 1, 0, 3))
        return torch.cat([plane.flatten(2) for plane in planes], dim=2)
    at = slice(number * pool.page_size, (number + 1) * pool.page_size)
    match pool.layout:
        case "layer_first":
            return pool.kv_buffer[:, at].flatten(2)
        case "page_first":
            return pool.kv_buffer[at].transpose(0, 1).flatten(2)
    return pool.kv_buffer[number].flatten(2)


def same(left, right):
    """Whether tensors are equal, bit for bit."""
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
