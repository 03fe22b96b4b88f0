"""What SGLang's device pools keep, as pages."""

from __future__ import annotations

from hexkv.adapters.sglang.pools import layout_of
from hexkv.adapters.sglang.staging import DevicePages
from hexkv.ports import LayoutMismatch

_HEADS = "MHATokenToKVPool"
_LATENT = "MLATokenToKVPool"
"""Classes by name: others derive from them and keep more than they do, or in another order."""


def device_pages(pool: object, page: int) -> DevicePages:
    """The pages of a device pool.

    Raises:
        LayoutMismatch: it is none whose memory is understood.
    """
    kind = type(pool).__name__
    if kind == _HEADS:
        layers = list(zip(pool.k_buffer, pool.v_buffer, strict=True))  # type: ignore[attr-defined]
    elif kind == _LATENT:
        widths = (pool.kv_lora_rank, pool.qk_rope_head_dim)  # type: ignore[attr-defined]
        buffers = pool.kv_buffer  # type: ignore[attr-defined]
        if any(buffer.shape[-1] != sum(widths) for buffer in buffers):
            raise LayoutMismatch(f"latent KV of {buffers[0].shape[-1]} elements, not {widths}")
        layers = [buffer.split(widths, dim=-1) for buffer in buffers]
    else:
        raise LayoutMismatch(f"the external linker does not know the memory of a {kind}")
    if any(plane.dim() != 3 or len(plane) % page for planes in layers for plane in planes):
        raise LayoutMismatch(f"{kind}: tokens do not lie one after the other in pages of {page}")
    paged = [[plane.unflatten(0, (-1, page)) for plane in planes] for planes in layers]
    stacked = [plane.unsqueeze(1).expand(-1, len(paged), -1, -1, -1) for plane in paged[0]]
    return DevicePages(layout_of(stacked, latent=kind == _LATENT), paged, page)
