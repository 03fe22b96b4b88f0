"""What the machine is: versions, the GPU, and where it is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.gpu.timing import Size, Value, on_gpu
from hexkv.adapters.cuda.pinned import PinnedMemory, _node_of

_PACKAGES = ("hexkv", "hexkv-cuda", "hexkv-kernels", "numpy", "torch", "triton", "transformers")


def facts(device: torch.device, size: Size) -> Iterator[Value]:
    del size
    yield Value("python", platform.python_version())
    for name in _PACKAGES:
        try:
            yield Value(name, version(name))
        except PackageNotFoundError:
            yield Value(name, "not installed")
    yield Value("processors", len(os.sched_getaffinity(0)))
    yield Value("load", round(os.getloadavg()[0], 1))
    if not on_gpu(device):
        return
    number = device.index or 0
    found = torch.cuda.get_device_properties(number)
    yield Value("GPU", found.name)
    yield Value("compute capability", f"{found.major}.{found.minor}")
    yield Value("GiB of memory", round(found.total_memory / 2**30, 1))
    yield Value("CUDA", str(torch.version.cuda))
    yield Value("NUMA node", _node_of(number))
    yield Value("pool's memory is pinned", PinnedMemory.near(number).pins)
