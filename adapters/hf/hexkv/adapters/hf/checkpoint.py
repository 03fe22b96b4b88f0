"""The proof that a model in memory equals a checkpoint on this machine.

A host that serves from a folder knows its weights by the folder's tensors. transformers has a
model in memory, which may have been changed since, cast, quantised, or put together by a
program: only if none of that is possible, it may go by the folder's digest.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from hexkv.adapters.hf.memory import said_by
from hexkv.kernels.weights import folder_of, tensor_files

_KNOWN = ("torch.", "transformers.")
"""Where the classes of a model's modules are from, unless a program has put in its own."""


def checkpoint_of(model: PreTrainedModel) -> Path | None:
    """The folder whose checkpoint *model* is, if that can be proven.

    That is: class and configuration are those that the folder names, modules are transformers'
    own, all weights have one dtype and equal the folder's tensors of the same names, cast to it,
    none of them are missing on either side, and buffers that no checkpoint has are as
    transformers computes them. Reads all of the folder's tensors.
    """
    commit = getattr(model.config, "_commit_hash", None)
    folder = folder_of(str(model.config.name_or_path), commit)
    try:
        proven = (
            folder is not None
            and _same_code(model, folder)
            and _same_configuration(model, folder)
            and _same_tensors(model, folder)
            and _computed_as_by_transformers(model)
        )
    except (OSError, ValueError, SafetensorError):  # a checkpoint that is none
        return None
    return folder if proven else None


def _same_code(model: PreTrainedModel, folder: Path) -> bool:
    content = json.loads((folder / "config.json").read_bytes())
    kinds = {type(module) for module in model.modules()}
    own = all(kind.__module__.startswith(_KNOWN) for kind in kinds)
    named = content.get("architectures") if isinstance(content, dict) else None
    return own and isinstance(named, list) and type(model).__name__ in named


def _same_configuration(model: PreTrainedModel, folder: Path) -> bool:
    stored = type(model.config).from_pretrained(folder, local_files_only=True)
    return said_by(stored) == said_by(model.config)


def _same_tensors(model: PreTrainedModel, folder: Path) -> bool:
    held = model.state_dict(keep_vars=True)
    dtypes = {tensor.dtype for tensor in held.values() if tensor.is_floating_point()}
    if len(dtypes) != 1:
        return False
    proven = set()
    for file in tensor_files(folder):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - no mapping
                tensor = held.get(name)
                if tensor is None or not _equal(stored.get_tensor(name), tensor):
                    return False
                proven.add(_place(tensor))
    # A tied weight is in the checkpoint under one of its names.
    return bool(proven) and all(_place(tensor) in proven for tensor in held.values())


def _equal(stored: torch.Tensor, held: torch.Tensor) -> bool:
    if stored.shape != held.shape or held.device.type == "meta":
        return False
    if stored.is_floating_point() != held.is_floating_point():
        return False
    return torch.equal(stored.to(held.device, held.dtype), held.detach())


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _computed_as_by_transformers(model: PreTrainedModel) -> bool:
    """True if buffers without a place in checkpoints, as RoPE's frequencies, are as made anew."""
    stored = model.state_dict().keys()
    return all(
        _made_anew(model, module, names)
        for path, module in model.named_modules()
        if (
            names := [
                name
                for name, _ in module.named_buffers(recurse=False)
                if f"{path}.{name}".lstrip(".") not in stored
            ]
        )
    )


def _made_anew(model: PreTrainedModel, module: torch.nn.Module, names: list[str]) -> bool:
    """True if transformers, asked to initialise *module*, makes the buffers that it has.

    Releases before 5 cannot do so; the models that they have loaded are never proven.
    """
    fresh = copy.copy(module)
    held = dict(module.named_buffers(recurse=False))
    wrong = {name: _wrong(held[name]) for name in names}
    parameters = {
        name: torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for name, parameter in module.named_parameters(recurse=False)
    }
    fresh.__dict__ |= {"_buffers": wrong, "_parameters": parameters}
    try:
        with torch.no_grad():
            model._init_weights(fresh)  # type: ignore[no-untyped-call]
    except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError):
        return False
    made = dict(fresh.named_buffers(recurse=False))
    return all(torch.equal(made[name], held[name].cpu()) for name in names)


def _wrong(buffer: torch.Tensor) -> torch.Tensor:
    """Values that no initialisation leaves as they are."""
    if buffer.is_floating_point():
        return torch.full_like(buffer, torch.nan, device="cpu")
    return ~buffer.cpu()
