"""Small models of many families, and prompts of segments for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from hexkv.adapters.hf.blending.blender import BlendedTogether, Blender
from hexkv.adapters.hf.blending.plan import BlendPlan, KnownPrompt, Run
from hexkv.adapters.hf.blending.record import BlendRecord, identity_of
from hexkv.adapters.hf.cache import RequestKV
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.ports import Namespace

VOCABULARY = 97
SEPARATOR = 1
COMMON: Mapping[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    # Spreads attention, so that wrong KV shows in the logits.
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
PADDED: Mapping[str, object] = {**COMMON, "pad_token_id": 0}


def scaled(**scaling: object) -> LlamaForCausalLM:
    """A Llama whose RoPE is scaled."""
    rope = {"rope_theta": 10_000.0, **scaling}
    return LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters=rope))


def deepseek() -> DeepseekV3ForCausalLM:
    """Latent attention: what is rotated is a plane of its own."""
    sizes = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    more = {"v_head_dim": 8, "moe_intermediate_size": 16, "first_k_dense_replace": 4}
    config = {**COMMON, "num_key_value_heads": 4, **sizes, **experts, **more}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**config))


FAMILIES: Mapping[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON)),
    "llama, eager": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, attn_implementation="eager")),
    "llama 3, scaled": lambda: scaled(
        rope_type="llama3",
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "linear": lambda: scaled(rope_type="linear", factor=2.0),
    "yarn": lambda: scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    "qwen 2": lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON)),
    "qwen 3": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**COMMON, sliding_window=16)),
    "gemma 3, two RoPEs": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **COMMON,
            head_dim=16,
            sliding_window=12,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )
    ),
    "phi, partial": lambda: PhiForCausalLM(PhiConfig(**COMMON, partial_rotary_factor=0.5)),
    "glm, partial and interleaved": lambda: GlmForCausalLM(
        GlmConfig(**PADDED, head_dim=16, partial_rotary_factor=0.5)
    ),
    "cohere, interleaved": lambda: CohereForCausalLM(CohereConfig(**PADDED)),
    "smollm 3, layers without": lambda: SmolLM3ForCausalLM(
        SmolLM3Config(**PADDED, no_rope_layers=[1, 0, 1, 0])
    ),
    "deepseek, latent": deepseek,
}


def new(name: str = "llama") -> PreTrainedModel:
    """A model of a family, always the same one."""
    torch.manual_seed(1)
    return FAMILIES[name]().eval()


def text(tokens: int, seed: int = 0) -> list[int]:
    """Tokens without separators."""
    return random.Random(f"{tokens}/{seed}").choices(range(2, VOCABULARY), k=tokens)


def full(model: PreTrainedModel, tokens: Sequence[int], keep: int = 1) -> torch.Tensor:
    """``[keep, vocabulary]``: what the model itself expects."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0, -keep:]
    return logits


def off(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest difference; infinite where one is no number."""
    return float((first - second).abs().nan_to_num(float("inf")).max())


def empty(blender: Blender, tokens: int) -> RequestKV:
    """A room in which whatever is looked at and was not put there shows."""
    room = blender.room(tokens)
    for planes in room.planes:
        for plane in planes:
            plane.fill_(float("nan"))
    return room


def laid_out(
    blender: Blender, prefix: int, pieces: Sequence[tuple[int, bool]], tail: int, seed: int = 0
) -> tuple[list[int], list[Run], RequestKV]:
    """A prompt of an exact prefix, pieces that are known or not, and a tail; its KV in a room."""
    tokens = text(prefix, 100 * seed + 1)
    where = []
    for number, (size, known) in enumerate(pieces):
        where.append((len(tokens), text(size, 100 * seed + number + 2), known))
        tokens += where[-1][1]
    tokens += text(tail, 100 * seed + 99)
    room = empty(blender, len(tokens) + 4)
    if prefix:
        room.fill(blender.compute(tokens[:prefix]))
    runs = [blender.place(room, at, blender.compute(piece)) for at, piece, known in where if known]
    return tokens, runs, room


SEGMENTS = [text(size, 70 + size) for size in (19, 8, 30)]
PROMPT = [token for n in (2, 0, 1) for token in [*SEGMENTS[n], SEPARATOR]] + text(5, 12)


def record(namespace: Namespace, **changes: object) -> BlendRecord:
    """A record that lets blend."""
    given: dict[str, object] = {
        "model": namespace.model,
        "revision": namespace.revision,
        "identity": identity_of(namespace),
        "selector": "value-deviation",
        "check_layer": 1,
        "ratio": 0.15,
        "kl": 0.0,
        "kl_quantile": 0.001,
        "bound": 10.0,
        "agreement": 0.99,
        "share": 0.5,
        "prompts": 8,
        "tokens": 64,
        "sample": "00" * 32,
        "versions": {"torch": torch.__version__},
    }
    return BlendRecord(**{**given, **changes})  # type: ignore[arg-type]


def configured(folder: Path, *, memory: bool = True) -> EngineSettings:
    """An engine that cuts prompts at the separator, over memory and a folder."""
    tiers: list[dict[str, object]] = [{"store": "disk", "settings": {"root": str(folder)}}]
    return EngineSettings.model_validate(
        {
            "chunk": {"size": 8},
            "segments": {"separator": [SEPARATOR], "minimum": 2},
            "pool": {"bytes": 2**23, "settings": {"huge_pages": False}},
            "tiers": ({"store": "memory"}, *tiers) if memory else tuple(tiers),
            "deadlines": {"lookup": 60.0, "retrieve": 60.0, "store": 60.0},
            "compute_rate": 1e-3,  # a toy computes sooner than a busy disk brings anything
        }
    )


def together(
    blender: Blender,
    shapes: Sequence[tuple[int, Sequence[tuple[int, bool]], int]],
    plan: BlendPlan,
    keep: int = 1,
) -> tuple[list[tuple[list[int], list[Run], RequestKV]], RequestKV, BlendedTogether]:
    """Prompts of *shapes* in one room, blended together; the prompts, and what was made."""
    laid = [laid_out(blender, *shape, seed=number) for number, shape in enumerate(shapes)]
    width = max(len(tokens) for tokens, _, _ in laid)
    room = blender.room(width + 2, len(laid))
    for planes in room.planes:
        for plane in planes:
            plane.fill_(float("nan"))
    known = []
    for number, ((tokens, runs, own), (prefix, *_)) in enumerate(zip(laid, shapes, strict=True)):
        its = room.of_sequence(number, width - len(tokens))
        its.fill([[plane[:, :, : len(tokens)] for plane in planes] for planes in own.planes])
        known.append(KnownPrompt(tokens, prefix, runs))
    made = blender.blend_together(known, room, plan=plan, keep=keep)
    return laid, room, made
