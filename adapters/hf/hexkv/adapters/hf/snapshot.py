"""The tensors of a model, so that another weight in their place is noticed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef


class Snapshot:
    """A model's parameters and buffers, where they lie, and how often each was written to.

    Their values are not read, and nothing is kept alive. Writes past torch's counters are not
    seen: through ``parameter.data`` in place, NumPy, DLPack, a kernel or another process. Tensors
    that are not in memory, on ``meta``, are not seen either.
    """

    def __init__(self, model: nn.Module) -> None:
        """Look at *model* as it is now."""
        self._seen = [
            (weakref.ref(tensor), _writes(tensor), _storage(tensor)) for tensor in _tensors(model)
        ]

    def holds(self, model: nn.Module) -> bool:
        """True if *model* has these tensors, and none was written to. Microseconds for each."""
        seen, count = self._seen, 0
        for tensor in _tensors(model):
            if count == len(seen):
                return False
            known, writes, storage = seen[count]
            if known() is not tensor or writes != _writes(tensor):
                return False
            # ``parameter.data = ...`` changes neither of these. The weak reference keeps the
            # storage's address from being used again, not its memory.
            if storage is not None and storage.cdata != tensor.untyped_storage()._cdata:
                return False
            count += 1
        return count == len(seen)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """The tensors in memory. Twice as fast as ``parameters()``, which looks for repeated ones."""
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if module is None:
            continue
        modules += module._modules.values()
        for tensors in (module._parameters, module._buffers):
            for tensor in tensors.values():
                # A tensor that a host moves in and out of memory is another one each time.
                if tensor is not None and not tensor.is_meta:
                    yield tensor


def _writes(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _storage(tensor: torch.Tensor) -> StorageWeakRef | None:
    try:
        return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
    except (NotImplementedError, RuntimeError):  # a tensor made of others
        return None
