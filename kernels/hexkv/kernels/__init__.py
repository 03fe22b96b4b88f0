"""Moving KV between a serving engine's memory and the bytes of chunks, and making it smaller.

Engine memory has three shapes today, one module each: ``contiguous`` (Hugging Face: per layer and
plane one tensor that grows with the sequence), ``paged`` (vLLM, SGLang: pages of fixed size, and a
slot for every token) and ``blocks`` (pages with an inner format that only the engine understands).
All implement :class:`hexkv.ports.DeviceKV`; ``reference`` defines their results token by token.
They need torch, which is imported when one of them is first used.

``coding`` is the base of lossy serdes, and needs numpy only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hexkv.kernels.blocks import NOWHERE, BlockKV, BlockMemory, opaque_layout
    from hexkv.kernels.contiguous import ContiguousKV
    from hexkv.kernels.dtypes import dtype_of, torch_dtype
    from hexkv.kernels.paged import PagedKV, PagedMemory

__all__ = [
    "NOWHERE",
    "BlockKV",
    "BlockMemory",
    "ContiguousKV",
    "PagedKV",
    "PagedMemory",
    "dtype_of",
    "opaque_layout",
    "torch_dtype",
]

_MODULES = {
    "NOWHERE": "blocks",
    "BlockKV": "blocks",
    "BlockMemory": "blocks",
    "ContiguousKV": "contiguous",
    "PagedKV": "paged",
    "PagedMemory": "paged",
    "dtype_of": "dtypes",
    "opaque_layout": "blocks",
    "torch_dtype": "dtypes",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
