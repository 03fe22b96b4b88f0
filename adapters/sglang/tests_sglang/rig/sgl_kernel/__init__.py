"""In place of SGLang's CUDA kernels: what a plain text model calls on a CPU, in torch.

Everything else can be imported, because SGLang does, and says so when it is called.
"""

from . import kvcacheio as kvcacheio

__version__ = "0"


def assign_req_to_token_pool_cpu(requests, table, starts, ends, slots, width):
    """Write each request's new slots into its row of the table."""
    del width
    taken = 0
    for row, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=False):
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} is not part of the CPU rig")

    return missing
