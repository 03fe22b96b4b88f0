"""A plugin of SGLang: what its hierarchical cache needs where device memory is host memory.

SGLang calls :func:`activate` in every process. Three things are in the way: copies between host
and device are CUDA kernels, host memory is pinned for a device, and 10 GiB of it are left free.
"""

import functools
import inspect


def activate():
    """Put torch's copies in the place of the kernels; take memory as it is."""
    from sglang.srt.utils import is_cpu

    if not is_cpu():
        return
    from sgl_kernel import kvcacheio

    try:
        from sglang.srt.mem_cache.pool_host import base, mha, mla

        users = [mha, mla]
    except ImportError:  # before 0.5.14
        from sglang.srt.mem_cache import memory_pool_host as base

        users = [base]
    for name in kvcacheio.__all__:
        for module in users:
            if not hasattr(module, name):
                setattr(module, name, getattr(kvcacheio, name))
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 28
    made = base.HostKVCache.__init__
    if not hasattr(made, "__wrapped__"):
        base.HostKVCache.__init__ = _unpinned(made)


def _unpinned(made):
    signature = inspect.signature(made)

    @functools.wraps(made)
    def init(self, *args, **named):
        given = signature.bind(self, *args, **named)
        given.arguments["pin_memory"] = False
        made(*given.args, **given.kwargs)

    return init
