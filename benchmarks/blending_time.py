"""``python -m benchmarks.blending_time``: the first token of segments in a new order, blended.

A Llama of 16 layers with random weights, a prompt of four segments and a question. The segments'
KV is in the memory tier, each computed alone; the first one is an exact prefix. In turns the prompt
is computed in full, and blended: loaded through the engine, rotated, compared at the check layer,
the chosen tokens computed. Weights do not matter for time; `make quality` says what answers lose.
Writes ``results/blending_time.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks.machine import describe, versions
from benchmarks.measure import Comparison, Goal, Turn, compare, must
from hexkv.adapters.hf.blending.blender import Blender
from hexkv.adapters.hf.blending.plan import Blended, BlendPlan, Run
from hexkv.adapters.hf.cache import window
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.plugins.compose import build
from hexkv.plugins.config import load as load_config
from hexkv.ports import DeviceKV, PrefixCache

OUTPUT = Path(__file__).resolve().parent / "results" / "blending_time.json"
CHUNK = 256
SEGMENTS = 4
PLAN = 1, 0.15, "question"
"""Check layer, ratio and selector."""

GOAL = 0.5
"""Of the time of full computation."""


def subject(layers: int) -> LlamaForCausalLM:
    """A model of a shape that is larger than those that come along."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=8_192,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    model.train(False)
    return model


class Prompt:
    """Segments whose KV an engine has, and a question behind them."""

    def __init__(
        self, model: LlamaForCausalLM, blender: Blender, engine: PrefixCache, length: int
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self._model, self._blender, self._engine = model, blender, engine
        self.segments = [
            torch.randint(512, (length,), generator=generator).tolist() for _ in range(SEGMENTS)
        ]
        question = torch.randint(512, (32,), generator=generator).tolist()
        self.tokens = [token for segment in self.segments for token in segment] + question
        for segment in self.segments:
            stored = engine.store(
                segment, window(blender.shape.layout, blender.compute(segment), length)
            )
            must(stored.stored_tokens == length, "each segment is stored")

    @torch.no_grad()
    def full(self) -> torch.Tensor:
        """Logits of the first new token, nothing reused but the exact prefix."""
        room = self._blender.room(len(self.tokens))
        prefix = self._load(room.window(len(self.segments[0])), self.segments[0])
        made: torch.Tensor = self._model(
            input_ids=torch.tensor([self.tokens[prefix:]]),
            past_key_values=room.cache(prefix, len(self.tokens)),
            use_cache=True,
            logits_to_keep=1,
        ).logits[0]
        return made

    @torch.no_grad()
    def nothing_reused(self) -> torch.Tensor:
        """The same without the prefix."""
        made: torch.Tensor = self._model(
            input_ids=torch.tensor([self.tokens]),
            past_key_values=DynamicCache(),
            use_cache=True,
            logits_to_keep=1,
        ).logits[0]
        return made

    def blended(self, plan: BlendPlan) -> Blended:
        """The same from all segments."""
        room = self._blender.room(len(self.tokens))
        prefix = self._load(room.window(len(self.segments[0])), self.segments[0])
        runs: list[Run] = []
        for number, segment in enumerate(self.segments[1:], 1):
            alone = self._blender.room(len(segment))
            self._load(alone.window(len(segment)), segment)
            runs.append(self._blender.place(room, number * len(segment), alone.planes))
        return self._blender.blend(self.tokens, room, prefix=prefix, reused=runs, plan=plan)

    def _load(self, device: DeviceKV, segment: Sequence[int]) -> int:
        got = self._engine.retrieve(segment, device)
        must(got.hit_tokens == len(segment), "each segment is in memory")
        return got.hit_tokens


def run(layers: int, length: int, rounds: int) -> dict[str, object]:
    """Ratios of the blended prompt to full computation."""
    with ExitStack() as stack:
        model = subject(layers)
        blender = stack.enter_context(Blender(model))
        size = 4 * SEGMENTS * length * blender.shape.layout.chunk_bytes(1)
        settings: Mapping[str, object] = {
            "chunk": {"size": CHUNK},
            "pool": {"bytes": size},
            "tiers": [{"store": "memory", "budget": size // 2}],
        }
        engine = stack.enter_context(
            build(load_config(None, {}, settings), namespace_of_model(model))
        )
        prompt = Prompt(model, blender, engine, length)
        found: dict[str, object] = {}
        exact = prompt.blended(BlendPlan(0, 1.0, "first")).logits
        must(torch.allclose(exact, prompt.full(), atol=1e-3), "all recomputed is full computation")
        plan = BlendPlan(*PLAN)
        counts = prompt.blended(plan).counts
        for name, limit in (("no reuse", prompt.nothing_reused), ("exact prefix", prompt.full)):
            reused = SEGMENTS * length * blender.shape.layout.chunk_bytes(1)
            result = compare(
                Comparison(
                    f"blended, against {name}",
                    name,
                    reused,
                    Turn(lambda: prompt.blended(plan)),
                    Turn(limit),
                    Goal("cost", GOAL if limit == prompt.nothing_reused else None),
                ),
                rounds,
                turn=0.01,
            )
            found[name] = {
                "ratio": asdict(result.ratio),
                "reached": result.reached,
                "share_computed": counts.share,
                "seconds": asdict(result.path.seconds),
                "full_seconds": asdict(result.limit.seconds),
                "cpu_seconds_per_gb": result.path.cpu_seconds_per_gb,
                "full_cpu_seconds_per_gb": result.limit.cpu_seconds_per_gb,
            }
            print(
                f"first token, blended, against {name}: {result.ratio.median:.2f}"
                f" ({result.ratio.lower:.2f} to {result.ratio.upper:.2f}) of full computation,"
                f" {counts.share:.0%} of tokens and layers computed; CPU"
                f" {result.path.cpu_seconds_per_gb / result.limit.cpu_seconds_per_gb:.2f}"
            )
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blending_time", description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512, help="of each of four segments")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = run(asked.layers, asked.tokens, asked.rounds)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(OUTPUT.parent),
        "versions": versions(),
        "layers": asked.layers,
        "segments": [asked.tokens] * SEGMENTS,
        "plan": dict(zip(("check_layer", "ratio", "selector"), PLAN, strict=True)),
        "against": found,
    }
    asked.output.write_text(json.dumps(report, indent=2) + "\n")
    goal = found["no reuse"]
    return 0 if isinstance(goal, dict) and goal["reached"] else 3


if __name__ == "__main__":
    sys.exit(main())
