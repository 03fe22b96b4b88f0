"""Weights that each engine draws for itself: a folder with a configuration is a whole model.

Alike in all engines of one seed on one kind of device. Queries and keys vary more than those of
an initialised model: attention is far from uniform, so that other KV means other tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

if TYPE_CHECKING:
    from torch.nn import Module
    from vllm.config import ModelConfig

FORMAT = "drawn"
"""vLLM's ``load_format`` of these weights."""

SHARP = 1.7
"""The deviation of queries and keys, where a normal model has about 1."""


@register_model_loader(FORMAT)
class DrawnWeights(BaseModelLoader):
    """Normal numbers that keep the size of what goes through them."""

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing is fetched."""

    def load_weights(self, model: Module, model_config: ModelConfig) -> None:
        """Draw each parameter by its name and the seed."""
        config = model_config.hf_config
        width = config.head_dim
        values = config.num_key_value_heads * width
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1)
                    continue
                dice = torch.Generator(parameter.device)
                dice.manual_seed(crc32(f"{model_config.seed} {name}".encode()))
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=dice)
                if "qkv_proj" in name:
                    parameter[:-values].mul_(SHARP)
