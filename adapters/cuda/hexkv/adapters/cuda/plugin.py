"""Registers windows on CUDA tensors and pinned memory with hexkv. Imported at discovery: light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.plugins.spec import AdapterSpec, OpenContext, hookimpl


@dataclass(frozen=True, slots=True)
class PinnedSettings:
    """Settings of the memory provider ``pinned``."""

    device: int = 0
    """The number of the GPU that the memory is near."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Settings of the windows ``cuda``."""

    device: str = "cuda"
    """As torch names it, for instance ``cuda:1``."""

    direct: bool = False
    """Let kernels read and write pinned memory themselves, without a copy on the device."""


def _open_pinned(settings: PinnedSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.cuda.pinned import PinnedMemory

    return PinnedMemory.near(settings.device)


def _open_cuda(settings: DeviceSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.cuda.streams import CudaKV

    return CudaKV(settings.device, direct=settings.direct)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    hint = "pip install hexkv-cuda"
    return [
        AdapterSpec(
            "memory",
            "pinned",
            "memory that GPUs reach directly, near one of them",
            _open_pinned,
            PinnedSettings,
            requires=("torch",),
            hint=hint,
            contract=2,
        ),
        AdapterSpec(
            "device",
            "cuda",
            "KV in plain tensors, paged or contiguous, copied on streams of their own",
            _open_cuda,
            DeviceSettings,
            requires=("torch",),
            hint=hint,
            contract=2,
        ),
    ]
