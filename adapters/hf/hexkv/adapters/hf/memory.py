"""A digest of a model as it lies in memory."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import torch
from transformers import PretrainedConfig, PreTrainedModel

from hexkv.ports import LayoutMismatch

_PIECE = 1 << 26
"""Bytes that are copied at once from a device that the CPU cannot read."""

_UNRELATED = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
"""Fields of a configuration that do not change KV, or are in the layout."""


def memory_digest(model: PreTrainedModel) -> str:
    """A digest of class and configuration, and of every byte of parameters and buffers.

    One changed bit gives another digest. The behaviour of the model's code is not in it.

    Raises:
        LayoutMismatch: a tensor is not in memory.
    """
    kind = type(model)
    digest = sha256(f"{kind.__module__} {kind.__qualname__}\n".encode())
    digest.update(json.dumps(said_by(model.config), sort_keys=True, default=str).encode())
    tensors = sorted(tensors_of(model).items())
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for line in threads.map(_line, tensors):
            digest.update(line.encode())
    return f"memory-{digest.hexdigest()[:32]}"


def said_by(config: PretrainedConfig) -> dict[str, object]:
    """The fields of *config* that KV may depend on."""
    return {name: _related(value) for name, value in _kept(config.to_dict())}


def tensors_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, those that no checkpoint has among them."""
    held: dict[str, object] = dict(model.named_buffers(remove_duplicate=False))
    held |= model.state_dict()
    return {name: tensor for name, tensor in held.items() if isinstance(tensor, torch.Tensor)}


def _related(section: object) -> object:
    if isinstance(section, Mapping):
        return {name: _related(value) for name, value in _kept(section)}
    return section


def _kept(section: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    return ((str(name), value) for name, value in section.items() if name not in _UNRELATED)


def _line(named: tuple[str, torch.Tensor]) -> str:
    name, tensor = named
    if tensor.device.type == "meta":
        raise LayoutMismatch(
            f"{name} is not in memory, so the weights cannot be identified: give `weights`"
        )
    digest = sha256()
    for piece in _pieces(tensor):
        digest.update(piece)
    return f"\n{name} {tensor.dtype} {tuple(tensor.shape)} {digest.hexdigest()}"


def _pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    for piece in flat.split(_PIECE):  # type: ignore[no-untyped-call]  # torch's own
        here = piece.cpu()
        # As NumPy may be missing, and a list of the bytes takes a second per 16 MiB.
        yield memoryview((ctypes.c_uint8 * here.numel()).from_address(here.data_ptr()))
