"""A plugin of SGLang: what its hierarchical cache needs where device memory is host memory.

SGLang calls :func:`activate` in every process. Three things are in the way: copies between host
and device are CUDA kernels, host memory is pinned for a device, and 10 GiB of it are left free.
And its attention for CPUs reads windows where they are not, as soon as they lie elsewhere than the
other layers' KV, which only a hit brings about.
"""

import functools
import inspect

import torch


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
    _find_windows()
    for name in ("empty", "tensor", "zeros"):
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor: tensor
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


def _without_pinning(make):
    if hasattr(make, "__wrapped__"):
        return make

    @functools.wraps(make)
    def made(*args, pin_memory=False, **named):
        del pin_memory
        return make(*args, **named)

    return made


def _find_windows():
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    for name in ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
        run = getattr(TorchNativeAttnBackend, name)
        if not hasattr(run, "__wrapped__"):
            setattr(TorchNativeAttnBackend, name, _in_windows(run))


def _in_windows(run):
    """Look tokens up in the pool of windows, where a layer's KV is in that one."""

    @functools.wraps(run)
    def found(self, query, output, keys, values, slots, *args, **named):
        if named.get("sliding_window_size") and getattr(self, "use_sliding_window_kv_pool", False):
            slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)
        return run(self, query, output, keys, values, slots, *args, **named)

    return found
