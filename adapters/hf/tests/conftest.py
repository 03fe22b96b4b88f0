"""Small models with random weights, and engines over memory and disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from depth import thorough
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.schema import EngineSettings

CHUNK = 16

# These models are too small to share out, and on busy cores threads wait for each other.
torch.set_num_threads(1)

_COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    # Spreads attention, so that wrong KV shows in the logits.
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def new_llama(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**_COMMON, **changes})).eval()


def mistral() -> MistralForCausalLM:
    torch.manual_seed(0)
    config = MistralConfig(**_COMMON, num_key_value_heads=2, sliding_window=24)
    return MistralForCausalLM(config).eval()


def deepseek() -> DeepseekV3ForCausalLM:
    torch.manual_seed(0)
    config = DeepseekV3Config(
        **_COMMON,
        num_key_value_heads=4,
        kv_lora_rank=32,
        q_lora_rank=48,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=24,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=32,
    )
    return DeepseekV3ForCausalLM(config).eval()


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama-mha": new_llama,
    "llama-gqa": lambda: new_llama(num_key_value_heads=2),
    "llama-eager": lambda: new_llama(num_key_value_heads=2, attn_implementation="eager"),
    "mistral-sliding": mistral,
    "deepseek-mla": deepseek,
}


def new_prompt(length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 128, (1, length), generator=generator)


@pytest.fixture(scope="session")
def llama() -> Callable[..., PreTrainedModel]:
    """Builds a model of its own, with changes to the configuration."""
    return new_llama


@pytest.fixture(scope="session")
def models() -> dict[str, Callable[[], PreTrainedModel]]:
    """Builders of all kinds of models, by name."""
    return MODELS


@pytest.fixture(scope="session")
def prompt() -> Callable[..., torch.Tensor]:
    """Makes ``[1, length]`` random tokens."""
    return new_prompt


# The others are variants of the first; every class of transformers has a test of its own.
OFTEN = ("llama-gqa", "deepseek-mla")


@pytest.fixture(
    scope="session",
    params=[name if name in OFTEN else thorough(name)[0] for name in MODELS],
)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return MODELS[request.param]()


@pytest.fixture(scope="session")
def gqa() -> PreTrainedModel:
    return new_llama(num_key_value_heads=2)


def open_engine(
    model: PreTrainedModel, root: Path, *, memory: bool = True, rate: float | None = 1e-3
):
    tiers: list[dict[str, object]] = [{"store": "disk", "settings": {"root": str(root)}}]
    if memory:
        tiers.insert(0, {"store": "memory"})
    settings = EngineSettings.model_validate(
        {
            "chunk": {"size": CHUNK},
            "pool": {"bytes": 2**23, "settings": {"huge_pages": False}},
            "tiers": tuple(tiers),
            "deadlines": {"lookup": 60.0, "retrieve": 60.0, "store": 60.0},
            "compute_rate": rate,  # a toy computes sooner than a busy disk brings anything
        }
    )
    return build(settings, namespace_of_model(model))


@pytest.fixture(scope="module")
def module_engine(tmp_path_factory: pytest.TempPathFactory):
    """Opens engines that stay open for a module's tests, each on a directory of its own."""
    with ExitStack() as opened:
        yield lambda model: opened.enter_context(
            open_engine(model, tmp_path_factory.mktemp("engine"))
        )


@pytest.fixture
def engine_for(tmp_path: Path):
    """Opens engines, each the only one at a time on the test's directory."""
    opened = []

    def open_one(model: PreTrainedModel, **how: object):
        for engine in opened:
            engine.close()
        opened.append(open_engine(model, tmp_path, **how))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.close()
        assert not engine.health().leases, "a lease outlived its engine"
