"""SGLang's copies between host pools and device pools, in torch; with its names and arguments.

``lf`` has its layers first, ``pf`` its pages, ``direct`` lays whole pages of each layer together.
"""

import ctypes

__all__ = [
    "transfer_kv_all_layer",
    "transfer_kv_all_layer_direct_lf_pf",
    "transfer_kv_all_layer_lf_pf",
    "transfer_kv_all_layer_mla",
    "transfer_kv_all_layer_mla_lf_pf",
    "transfer_kv_direct",
    "transfer_kv_per_layer",
    "transfer_kv_per_layer_direct_pf_lf",
    "transfer_kv_per_layer_mla",
    "transfer_kv_per_layer_mla_pf_lf",
    "transfer_kv_per_layer_pf_lf",
]


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):
    del page_size
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size
):
    pages = src_indices[::page_size] // page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].flatten(0, 1)


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    pages = dst_indices[::page_size] // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        rows = source[src_indices].unflatten(0, (len(pages), page_size))
        dst_ptrs[number // layers][pages, number % layers] = rows


def transfer_kv_per_layer_mla(src, dst, src_indices, dst_indices, **_):
    dst[dst_indices] = src[src_indices]


def transfer_kv_per_layer(src_k, dst_k, src_v, dst_v, src_indices, dst_indices, **_):
    transfer_kv_per_layer_mla(src_k, dst_k, src_indices, dst_indices)
    transfer_kv_per_layer_mla(src_v, dst_v, src_indices, dst_indices)


def transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices, layer_id, **_):
    dst[dst_indices] = src[src_indices, layer_id]


def transfer_kv_per_layer_pf_lf(
    src_k, dst_k, src_v, dst_v, src_indices, dst_indices, layer_id, **_
):
    transfer_kv_per_layer_mla_pf_lf(src_k, dst_k, src_indices, dst_indices, layer_id)
    transfer_kv_per_layer_mla_pf_lf(src_v, dst_v, src_indices, dst_indices, layer_id)


def _move(source, target, sources, targets, size, step):
    for place, goal in zip(sources.tolist(), targets.tolist(), strict=True):
        ctypes.memmove(target + goal * step, source + place * size, size)


def transfer_kv_all_layer_mla(src_layers, dst_layers, src_indices, dst_indices, item_size, **_):
    for source, target in zip(src_layers.tolist(), dst_layers.tolist(), strict=True):
        _move(source, target, src_indices, dst_indices, item_size, item_size)


def transfer_kv_all_layer(
    src_k_layers, dst_k_layers, src_v_layers, dst_v_layers, src_indices, dst_indices, item_size, **_
):
    transfer_kv_all_layer_mla(src_k_layers, dst_k_layers, src_indices, dst_indices, item_size)
    transfer_kv_all_layer_mla(src_v_layers, dst_v_layers, src_indices, dst_indices, item_size)


def transfer_kv_all_layer_mla_lf_pf(
    src_layers, dst, src_indices, dst_indices, item_size, dst_layout_dim, **_
):
    for layer, source in enumerate(src_layers.tolist()):
        start = dst.data_ptr() + layer * item_size
        _move(source, start, src_indices, dst_indices, item_size, dst_layout_dim)


def transfer_kv_all_layer_lf_pf(
    src_k_layers,
    dst_k,
    src_v_layers,
    dst_v,
    src_indices,
    dst_indices,
    item_size,
    dst_layout_dim,
    **_,
):
    for layers, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(
            layers, target, src_indices, dst_indices, item_size, dst_layout_dim
        )


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise NotImplementedError(f"sgl_kernel.kvcacheio.{name} is not part of the CPU rig")

    return missing
