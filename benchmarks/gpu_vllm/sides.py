"""The engines that are compared: one model, and what each keeps KV on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.vllm.vllm_engines import Engine, connector

LARGE: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128_256,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""The shape of Llama 3.2 3B."""

SMALL: Mapping[str, Any] = {
    **LARGE,
    "torch_dtype": "float32",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
"""For a processor, to see whether everything runs."""

SPARE = 5 << 29
"""Bytes of a GPU that an engine takes beside weights and KV: its context and activations."""

PATIENT = {"deadlines": {"lookup": 20.0, "retrieve": 60.0, "store": 60.0}}
"""A busy machine loads late; it does not lose hits."""

QUIET = {
    # Compiled with nvcc where they are first used, which few machines have.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_HOST_IP": "127.0.0.1",
}

BESIDE = {
    # As users have it: the engine's core is a process of its own, whose steps saves run behind.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    # The core is sent functions, which flush and forget.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}

THREADS = {"cuda": "4", "cpu": "1"}
"""Of a model's work on the processor: where they are more than cores, they wait for each other."""


@dataclass(frozen=True)
class Model:
    """A model by its configuration, for prompts up to a length."""

    config: Mapping[str, Any]
    longest: int

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        one = self.config
        size = 2 if one["torch_dtype"] == "bfloat16" else 4
        width: int = one["num_key_value_heads"] * one["head_dim"]
        return 2 * int(one["num_hidden_layers"]) * width * size

    @property
    def prompt_bytes(self) -> int:
        """KV of the longest prompt."""
        return self.longest * self.kv_bytes

    @property
    def pool(self) -> int:
        """Bytes of host memory of a cache: three prompts, with room for what is on its way."""
        return 4 * self.prompt_bytes + (256 << 20)

    @property
    def device_bytes(self) -> int:
        """What an engine takes of a GPU."""
        one = self.config
        hidden, width = one["hidden_size"], one["head_dim"]
        heads, kv = one["num_attention_heads"], one["num_key_value_heads"]
        layer = hidden * (2 * heads + 2 * kv) * width + 3 * hidden * one["intermediate_size"]
        weights = one["vocab_size"] * hidden + one["num_hidden_layers"] * layer
        return 2 * int(weights) + self.page_bytes + SPARE

    @property
    def page_bytes(self) -> int:
        """Of the engine's pages: the longest prompt, what it generates, and a short one."""
        return (self.longest + 1024) * self.kv_bytes * 5 // 4

    def written(self, folder: Path) -> Path:
        """Write what vLLM needs of a model into *folder*."""
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def settings(self, device: str) -> dict[str, object]:
        """Arguments of ``vllm.LLM`` that all sides have in common."""
        return {
            "dtype": self.config["torch_dtype"],
            "load_format": "drawn",
            "skip_tokenizer_init": True,
            "block_size": 16 if device == "cuda" else 32,
            "max_model_len": self.longest + 64,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 8,
            "kv_cache_memory_bytes": self.page_bytes,
            # vLLM refuses to start where less is free, however little it takes.
            "gpu_memory_utilization": 0.05,
            "enable_prefix_caching": True,
            "seed": 0,
        }


@dataclass
class Side:
    """One of them."""

    name: str
    transfer: dict[str, object] | None = None
    places: tuple[str, ...] = ()
    """Where hits come from, one after the other."""

    missing: str = ""
    """Why it does not run here."""

    engine: Engine = field(default=None, repr=False)
    """Once it has started."""

    def end(self) -> None:
        """End its engine, if there is one: once, for its number may be another process's then."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.kill()

    @property
    def ours(self) -> bool:
        """True if hexkv serves it."""
        return self.name in ("hexkv", "disk", "node")


def side(name: str, model: Model, folder: Path, pinned: str) -> Side:
    """The side *name*; *pinned* provides the memory of pools."""
    size = {"bytes": model.pool, "provider": pinned}
    common: dict[str, object] = {"pool": size, "model": {"weights": "drawn"}, **PATIENT}
    disk: dict[str, object] = {
        "store": "disk",
        "budget": model.pool,
        "queue": model.prompt_bytes * 5 // 4 + (64 << 20),
        "settings": {"root": str(folder / f"{name}-chunks")},
    }
    match name:
        case "hexkv":
            # As users have it: what computing would bring sooner is not loaded.
            tree = common | {"tiers": [{"store": "memory"}, disk], "compute_rate": None}
            return Side(name, connector(tree), ("memory", "disk"))
        case "disk":
            tree = common | {"tiers": [disk], "compute_rate": 1e-3}
            return Side(name, connector(tree), ("disk",))
        case "node":
            tree = {"node": str(folder / "node" / "node.sock"), "model": common["model"]}
            return Side(name, connector(tree | PATIENT), ("node",))
        case "offloading":
            extra = {"cpu_bytes_to_use": model.pool}
            chosen = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
            return Side(name, chosen | {"kv_connector_extra_config": extra}, ("memory",))
    return Side(name)


def start(
    one: Side, model: Path, log: Path, patience: float, device: str, settings: dict[str, object]
) -> None:
    """Start its engine; if it does not start, keep the reason and all that it printed."""
    env = QUIET | BESIDE | {"OMP_NUM_THREADS": THREADS[device]}
    try:
        one.engine = Engine(
            model, log, transfer=one.transfer, env=env, patience=patience, **settings
        )
    except AssertionError:
        one.missing = log.read_text(errors="replace")
