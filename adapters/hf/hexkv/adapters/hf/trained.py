"""The three small models that come with the package, so that KV means something.

Random weights show nothing about damaged KV: their attention looks everywhere alike. These
were trained for it, see ``models/README.md``; nothing is downloaded.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Literal

import torch
from transformers import LlamaForCausalLM

Name = Literal["text", "recall", "alias"]


def trained(name: Name) -> LlamaForCausalLM:
    """A trained model in float32, on the CPU, ready to answer.

    Args:
        name: ``text`` reads and continues bytes; ``recall`` answers with facts of its prompt;
            ``alias`` does so, too, and the KV of its facts depends on facts before them.
    """
    with as_file(files("hexkv.adapters.hf") / "models" / name) as folder:
        model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    # Not the folder, which differs between hosts that may share their KV.
    model.config.name_or_path = f"hexkv-{name}"
    return model
