"""Moving KV between a serving engine's memory and the bytes of chunks. Needs torch.

Engine memory has three shapes today, one module each: ``contiguous`` (Hugging Face: per
layer and plane one tensor that grows with the sequence), ``paged`` (vLLM, SGLang: pages of
fixed size, and a slot for every token) and ``blocks`` (pages whose inside only the engine
understands). All implement :class:`hexkv.ports.DeviceKV`; ``reference`` says token by token
what they must do.
"""

from hexkv.kernels.blocks import NOWHERE, BlockKV, opaque_layout
from hexkv.kernels.contiguous import ContiguousKV
from hexkv.kernels.dtypes import dtype_of, torch_dtype
from hexkv.kernels.paged import PagedKV

__all__ = [
    "NOWHERE",
    "BlockKV",
    "ContiguousKV",
    "PagedKV",
    "dtype_of",
    "opaque_layout",
    "torch_dtype",
]
