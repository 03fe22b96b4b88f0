"""``python -m benchmarks.engines.blending_time``: first token of blended segments in a new order.

A Llama of 16 layers with random weights over an engine, a prompt of four segments and a question,
all through ``BlendingModel``. Weights do not matter for time, and hardly for how far answers are
off; `make quality` measures the loss of trained models. Four parts:

- *first token*: segments in the memory tier, against full computation;
- *overlap*: from files behind a throttle, what of the loading the computing hides;
- *regimes*: from files behind three throttles, what the measured rates decide, and whether that
  was the sooner way;
- *batch*: prompts of unequal lengths at once, against one after the other.

Writes ``results/blending_time.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from os import getloadavg
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks.engines.throttled import Throttle, behind
from benchmarks.rig.machine import describe, versions
from benchmarks.rig.measure import Comparison, Goal, Spread, Turn, compare, must
from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.blending.gate import BlendGate, divergences
from hexkv.adapters.hf.blending.model import BlendingModel
from hexkv.adapters.hf.blending.plan import BlendedPrefill, BlendPlan
from hexkv.adapters.hf.blending.record import BlendRecord, identity_of
from hexkv.adapters.hf.cache import window
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.blending.api import segments_of
from hexkv.blending.ports import BlendOutcome
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load as load_config
from hexkv.ports import Namespace, PrefixCache, frame_bytes

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "blending_time.json"
CHUNK = 256
SEGMENTS = 4
SEPARATOR = 511
QUESTION = 32
PLAN = BlendPlan(1, 0.15, "question")


class _Unlucky(Random):
    """Chooses no request to be compared."""

    def random(self) -> float:
        return 1.0


GOAL = 0.5
"""Of the time of full computation."""

SPEEDS = (8.0, 1.15, 0.3)
"""What throttled files bring, as a multiple of what the model computes: tokens per second."""

HIDDEN = 0.6
"""How long loading takes from throttled files, as a multiple of blending without the throttle."""


def subject(layers: int, kv_heads: int = 2) -> LlamaForCausalLM:
    """A model of a shape that is larger than those that come along."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=kv_heads,
            max_position_embeddings=8_192,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    model.train(False)
    return model


def record(namespace: Namespace, plan: BlendPlan) -> BlendRecord:
    """A record that lets *plan* through: with random weights there is nothing to calibrate."""
    return BlendRecord(
        model=namespace.model,
        revision=namespace.revision,
        identity=identity_of(namespace),
        selector=str(plan.selector),
        check_layer=plan.check_layer,
        ratio=plan.ratio,
        kl=0.0,
        kl_quantile=0.0,
        bound=100.0,
        agreement=1.0,
        share=1.0,
        prompts=1,
        tokens=1,
        sample="00" * 32,
        versions={"torch": torch.__version__},
    )


class Rig(NamedTuple):
    """A model over an engine that has its segments."""

    model: LlamaForCausalLM
    engine: PrefixCache
    blending: BlendingModel
    segments: list[list[int]]
    question: list[int]

    def tokens(self, order: Sequence[int] = range(SEGMENTS)) -> list[int]:
        """A prompt of segments in an order, and the question."""
        parts = [token for number in order for token in [*self.segments[number], SEPARATOR]]
        return [*parts, *self.question]


@contextmanager
def opened(
    model: LlamaForCausalLM,
    length: int,
    throttle: Throttle | None = None,
    *,
    plan: BlendPlan = PLAN,
    compute_rate: float | None = None,
) -> Iterator[Rig]:
    """Segments of *length* tokens, computed alone: in memory, or in files behind *throttle*."""
    generator = torch.Generator().manual_seed(1)
    segments = torch.randint(SEPARATOR, (SEGMENTS, length), generator=generator).tolist()
    question = torch.randint(SEPARATOR, (QUESTION,), generator=generator).tolist()
    namespace = namespace_of_model(model)
    size = 4 * SEGMENTS * length * namespace.layout.chunk_bytes(1)
    with TemporaryDirectory() as folder:
        settings: dict[str, object] = {
            "chunk": {"size": CHUNK},
            "segments": {"separator": [SEPARATOR]},
            "pool": {"bytes": 2 * size},
            "tiers": [{"store": "memory", "budget": size}],
            "deadlines": {"lookup": 60.0, "retrieve": 60.0, "store": 60.0},
        }
        if throttle is not None:
            settings["tiers"] = [{"store": "throttled", "settings": {"root": folder}}]
        if compute_rate is not None:
            settings["compute_rate"] = compute_rate
        engine = build(load_config(None, {}, settings), namespace, registry=behind(throttle))
        gate = BlendGate(record(namespace, plan), random=_Unlucky())
        with engine, BlendingModel(model, engine, gate) as blending:
            must(blending.precompute(segments) == SEGMENTS * length, "each segment is stored")
            yield Rig(model, engine, blending, segments, question)


@torch.no_grad()
def full(model: LlamaForCausalLM, tokens: Sequence[int]) -> torch.Tensor:
    """Logits of the first new token, nothing reused."""
    made: torch.Tensor = model(
        input_ids=torch.tensor([tokens]),
        **with_cache(model, DynamicCache()),
        use_cache=True,
        logits_to_keep=1,
    ).logits[0, -1]
    return made


def seconds_of(run: Callable[[], object]) -> float:
    """How long *run* takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def first_token(model: LlamaForCausalLM, length: int, rounds: int) -> dict[str, object]:
    """From the memory tier, against full computation."""
    with opened(model, length, plan=BlendPlan(0, 0.999999, "first")) as rig:
        exact = rig.blending.prefill(rig.tokens())
        must(exact.report.reused == 0 < exact.report.recomputed, "everything is computed anew")
        must(
            torch.allclose(exact.logits, full(model, rig.tokens()), atol=1e-3),
            "all recomputed is full computation",
        )
    with opened(model, length) as rig:
        tokens = rig.tokens((2, 0, 3, 1))
        made = rig.blending.prefill(tokens)
        must(made.report.outcome is BlendOutcome.BLENDED, "it is blended")
        kl = float(divergences(full(model, tokens)[None], made.logits[None]))
        result = compare(
            Comparison(
                "blended, against full computation",
                "full computation",
                SEGMENTS * length * namespace_of_model(model).layout.chunk_bytes(1),
                Turn(lambda: rig.blending.prefill(tokens)),
                Turn(lambda: full(model, tokens)),
                Goal("cost", GOAL),
            ),
            rounds,
            turn=0.01,
        )
    cpu = result.path.cpu_seconds_per_gb / result.limit.cpu_seconds_per_gb
    print(
        f"first token, blended: {result.ratio.median:.2f} ({result.ratio.lower:.2f} to"
        f" {result.ratio.upper:.2f}) of full computation, CPU {cpu:.2f}; {made.share:.0%} of tokens"
        f" and layers computed, KL {kl:.2g} (random weights)"
    )
    return {
        "ratio": asdict(result.ratio),
        "reached": result.reached,
        "share_computed": made.share,
        "kl": kl,
        "seconds": asdict(result.path.seconds),
        "full_seconds": asdict(result.limit.seconds),
        "cpu_ratio": cpu,
    }


def overlap(model: LlamaForCausalLM, length: int, rounds: int) -> dict[str, object]:
    """What of loading from files the computing hides. The throttle sleeps: it takes no core.

    By a model with as much KV for each token as larger ones have: layers with less than 4 MB are
    read together, so that the first of few reads is a large part of all.
    """
    model = subject(model.config.num_hidden_layers, kv_heads=8)
    size = namespace_of_model(model).layout.chunk_bytes(1)
    throttle = Throttle(frame_bytes(CHUNK * size))
    with opened(model, length, throttle) as rig:
        tokens = rig.tokens((2, 0, 3, 1))
        blender = rig.blending.blender

        def load() -> None:
            room = blender.room(len(tokens))
            segments = segments_of(rig.engine)
            parts = segments.find(tokens)
            device = room.window(len(tokens))
            with segments.retrieve_layers(tokens, device, parts=parts) as layers:
                for layer in layers:
                    blender.rotation.rotate(layer, room.planes[layer], layers.parts.segments)
                must(layers.result().parts.reused == SEGMENTS * length, "every segment arrives")

        def blend() -> BlendedPrefill:
            made = rig.blending.prefill(tokens)
            must(made.report.outcome is BlendOutcome.BLENDED, "it is blended")
            return made

        quick = statistics.median(blend().seconds for _ in range(3))
        throttle.rate = SEGMENTS * length * size / (HIDDEN * quick)
        loads = [seconds_of(load) for _ in range(rounds)]
        made = [blend() for _ in range(rounds)]
    hidden = Spread.of([1 - one.wait_seconds / statistics.median(loads) for one in made])
    found = {
        "load_seconds": statistics.median(loads),
        "wait_seconds": statistics.median(one.wait_seconds for one in made),
        "seconds": statistics.median(one.seconds for one in made),
        "unthrottled_seconds": quick,
    }
    print(
        f"overlap: loading alone {found['load_seconds']:.2f} s; in {found['seconds']:.2f} s of"
        f" blending the model waits {found['wait_seconds']:.2f} s for it: {hidden.median:.0%}"
        f" ({hidden.lower:.0%} to {hidden.upper:.0%}) of loading hidden"
    )
    return {"hidden": asdict(hidden), **found}


def regimes(model: LlamaForCausalLM, length: int, rounds: int) -> list[dict[str, object]]:
    """The decisions where files bring more and fewer tokens than the model computes."""
    with opened(model, length) as rig:
        tokens = rig.tokens((0, 2, 3, 1))
    computing = statistics.median(seconds_of(lambda: full(model, tokens)) for _ in range(3))
    rate = len(tokens) / computing
    layout = namespace_of_model(model).layout

    def prefill(speed: float, given: float | None) -> tuple[str, int, float]:
        """The decision, the prefix that is loaded, and the seconds to the first token."""
        throttle = Throttle(frame_bytes(layout.chunk_bytes(CHUNK)))
        with opened(model, length, throttle, compute_rate=given) as rig:
            head = rig.segments[0]
            planes = rig.blending.blender.compute(head)
            rig.engine.store(head, window(layout, planes, length))
            throttle.rate = speed * rate * layout.chunk_bytes(1)
            rig.blending.prefill([*rig.tokens([1, 3])[:-QUESTION], 7])  # shows how fast files are
            began = time.perf_counter()
            report = rig.blending.prefill(tokens).report
            return report.outcome.value, report.prefix, time.perf_counter() - began

    found: list[dict[str, object]] = []
    for speed in SPEEDS:
        decided = [prefill(speed, rate) for _ in range(rounds)]
        forced = [prefill(speed, None) for _ in range(rounds)]
        must({outcome for outcome, *_ in forced} == {"blended"}, "without a rate it is blended")
        outcomes = sorted({(outcome, prefix) for outcome, prefix, _ in decided})
        row = {
            "speed": speed,
            "decided": outcomes,
            "seconds": statistics.median(seconds for *_, seconds in decided),
            "always_blended_seconds": statistics.median(seconds for *_, seconds in forced),
            "computed_seconds": computing,
        }
        print(
            f"files bring {speed:g} of what the model computes: {outcomes}; first token"
            f" {row['seconds']:.2f} s, always blended {row['always_blended_seconds']:.2f} s,"
            f" computed {computing:.2f} s"
        )
        found.append(row)
    return found


def batch(model: LlamaForCausalLM, length: int, rounds: int) -> list[dict[str, object]]:
    """Prompts at once against one after the other: of equal and of unequal lengths."""
    found: list[dict[str, object]] = []
    orders: dict[str, Sequence[Sequence[int]]] = {
        "equal": ((2, 0, 3, 1), (1, 3, 0, 2), (3, 2, 1, 0), (0, 1, 2, 3)),
        "unequal": ((2, 0, 3, 1), (1, 3, 0), (3, 2), (1,)),
    }
    with opened(model, length) as rig:
        for name, rows in orders.items():
            prompts = [rig.tokens(order) for order in rows]
            together = rig.blending.prefill_batch(prompts)
            must(
                all(report.outcome is BlendOutcome.BLENDED for report in together.reports),
                "all are blended",
            )
            ratios = []
            for _ in range(rounds):
                once = seconds_of(partial(rig.blending.prefill_batch, prompts))
                each = seconds_of(lambda: [*map(rig.blending.prefill, prompts)])  # noqa: B023
                ratios.append(once / each)
            ratio = Spread.of(ratios)
            print(
                f"four prompts of {name} lengths at once: {ratio.median:.2f} ({ratio.lower:.2f} to"
                f" {ratio.upper:.2f}) of one after the other"
            )
            found.append({"lengths": [*map(len, prompts)], "ratio": asdict(ratio)})
    return found


PARTS: dict[str, Callable[[LlamaForCausalLM, int, int], object]] = {
    "first_token": first_token,
    "overlap": overlap,
    "regimes": regimes,
    "batch": batch,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.blending_time", description=__doc__
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512, help="of each of four segments")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=PARTS, help="one part; the others keep their figures")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = subject(asked.layers)
    before: dict[str, object] = {}
    if asked.only and asked.output.exists():
        before = json.loads(asked.output.read_text()).get("parts", {})
    parts = dict(before)
    for name in [asked.only] if asked.only else PARTS:
        parts[name] = {
            "load_average": getloadavg()[0],
            "rounds": asked.rounds,
            "found": PARTS[name](model, asked.tokens, asked.rounds),
        }
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(OUTPUT.parent),
        "versions": versions(),
        "layers": asked.layers,
        "segments": [asked.tokens] * SEGMENTS,
        "plan": asdict(PLAN),
        "parts": parts,
    }
    asked.output.write_text(json.dumps(report, indent=2) + "\n")
    told = parts.get("first_token")
    found = told["found"] if isinstance(told, dict) else None
    return 0 if isinstance(found, dict) and found["reached"] else 3


if __name__ == "__main__":
    sys.exit(main())
