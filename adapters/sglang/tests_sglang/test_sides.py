"""SGLang's own pools beside the KV: states, indexes and windows go through the tiers."""

import pytest
import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.runtime_context import get_parallel

from engines.sglang.sglang_pools import (
    LATENT,
    LAYERS,
    MHA,
    PAGES,
    ROPE,
    backend,
    extra,
    host_pool,
    names,
    page_of,
    same,
    slots,
)

FROM, TO = (5, 1, 9), (2, 3, 11)


def states(order, temporal=torch.float32, seed=None):
    """Recurrent states: a slot for each page of KV, in two dtypes."""
    shapes = ((2, PAGES, 3, 8, 4), temporal), ((2, PAGES, 5, 3), torch.bfloat16)
    state, conv = (torch.zeros(shape, dtype=dtype) for shape, dtype in shapes)
    made = MambaPoolHost(
        MambaStateBufferInfo(temporal=state, conv=(conv,)),
        1.0,
        0,
        device_capacity=PAGES,
        layout=order,
        pin_memory=False,
    )
    return filled(made, [made.temporal_buffer, *made.conv_buffer], seed)


def indexes(order, seed=None):
    """Keys of an index, on the pages of latent KV."""
    with get_parallel().override(attn_dcp_size=1):
        device = DSATokenToKVPool(
            size=PAGES * 64,
            page_size=64,
            kv_lora_rank=LATENT,
            qk_rope_head_dim=ROPE,
            dtype=torch.bfloat16,
            layer_num=LAYERS,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=LATENT + ROPE,
        )
    anchor = host_pool("mla", order, page=64)
    made = DSAIndexerPoolHost(make_dsa_indexer_pool_decl(device), anchor, pin_memory=False)
    return filled(made, [made.index_k_with_scale_buffer], seed)


def filled(pool, tensors, seed):
    dice = torch.Generator().manual_seed(seed or 0)
    for tensor in tensors:
        noise = torch.randint(0, 255, tensor.shape, generator=dice)
        tensor.copy_(noise if seed else torch.zeros_like(noise))
    return pool


def transfer(name, keys, indices):
    return PoolTransfer(name=name, keys=keys, host_indices=indices)


def arrived(source, target, unit):
    return all(
        same(source.get_data_page(one * unit), target.get_data_page(other * unit))
        for one, other in zip(FROM, TO, strict=True)
    )


@pytest.mark.parametrize("order", ["page_first", "page_first_direct"])
def test_a_recurrent_state_comes_back_bit_for_bit(order, tmp_path):
    keys, kv = names(3), host_pool("mha", order, seed=1)
    source, target = states(order, seed=2), states(order)
    with backend(kv, extra(tmp_path)) as storage:
        storage.register_mem_host_pool_v2(source, PoolName.MAMBA)
        moved = transfer(PoolName.MAMBA, keys, torch.tensor(FROM))
        assert storage.batch_set_v2([moved]) == {PoolName.MAMBA: [True] * 3}
    with backend(kv, extra(tmp_path)) as storage:
        storage.register_mem_host_pool_v2(target, PoolName.MAMBA)
        moved = transfer(PoolName.MAMBA, keys, torch.tensor(TO))
        assert storage.batch_get_v2([moved]) == {PoolName.MAMBA: [True] * 3}
    assert arrived(source, target, 1)


def test_states_of_another_dtype_of_the_same_size_are_not_found(tmp_path):
    keys, kv = names(3), host_pool("mha", "page_first", seed=1)
    for temporal, found in ((torch.float16, True), (torch.bfloat16, False)):
        with backend(kv, extra(tmp_path)) as storage:
            storage.register_mem_host_pool_v2(states("page_first", temporal), PoolName.MAMBA)
            moved = transfer(PoolName.MAMBA, keys, torch.tensor(FROM))
            if found:
                storage.batch_set_v2([moved])
            assert storage.batch_get_v2([moved]) == {PoolName.MAMBA: [found] * 3}


@pytest.mark.parametrize("order", ["layer_first", "page_first", "page_first_direct"])
def test_keys_of_an_index_come_back_bit_for_bit(order, tmp_path):
    keys, kv = names(3), host_pool("mla", order, seed=1, page=64)
    source, target = indexes(order, seed=2), indexes(order)
    with backend(kv, extra(tmp_path), is_mla_model=True) as storage:
        storage.register_mem_host_pool_v2(source, PoolName.INDEXER)
        moved = transfer(PoolName.INDEXER, keys, slots(*FROM, page=64))
        assert storage.batch_set_v2([moved]) == {PoolName.INDEXER: [True] * 3}
    with backend(kv, extra(tmp_path), is_mla_model=True) as storage:
        storage.register_mem_host_pool_v2(target, PoolName.INDEXER)
        moved = transfer(PoolName.INDEXER, keys, slots(*TO, page=64))
        assert storage.batch_get_v2([moved]) == {PoolName.INDEXER: [True] * 3}
    assert arrived(source, target, 64)


@pytest.mark.parametrize("order", MHA)
@pytest.mark.parametrize("layers", [2, 3, 5])
def test_windows_of_plain_kv_are_found_in_every_layout(order, layers, tmp_path):
    """Unless their pages are larger than those of the KV, and SGLang flattens them."""
    keys, kv = names(3), host_pool("mha", "page_first", seed=1)
    source = host_pool("mha", "page_first", seed=2, layers=layers)
    target = host_pool("mha", order, layers=layers)
    with backend(kv, extra(tmp_path)) as storage:
        storage.register_mem_host_pool_v2(source, PoolName.SWA)
        storage.batch_set_v2([transfer(PoolName.SWA, keys, slots(*FROM))])
    found = layers <= LAYERS or order == "page_first"
    with backend(kv, extra(tmp_path)) as storage:
        storage.register_mem_host_pool_v2(target, PoolName.SWA)
        moved = transfer(PoolName.SWA, keys, slots(*TO))
        assert storage.batch_get_v2([moved]) == {PoolName.SWA: [found] * 3}
    if found:
        assert all(
            same(page_of(source, one), page_of(target, other))
            for one, other in zip(FROM, TO, strict=True)
        )
