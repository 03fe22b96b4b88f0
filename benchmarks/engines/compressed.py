"""``python -m benchmarks.engines.compressed``: second tiers under a real model of transformers.

The trained text model of ``make demo`` in bfloat16 answers the same prompts with one engine after
the other, in turns. *Compressed*: as much memory plain, or a half of it kept encoded: hits for each
GB, seconds to the first token, what decoding brings. *Write back*: a disk behind memory with and
without ``min_reuse``: bytes written to it, and hits. Prompts are documents by Zipf's law, some in
the second part asked for once only. Writes ``results/compressed.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.policies.families import zipf
from benchmarks.rig.machine import describe, load, versions
from benchmarks.rig.measure import must
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.trained import trained
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load as load_config
from hexkv.plugins.observing.telemetry import Totals
from hexkv.ports import CounterName, PrefixCache, frame_bytes

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "compressed.json"
CHUNK = 128
LENGTH = 4 * CHUNK
"""Tokens of a document."""

DOCUMENTS = 24
TEXT = sorted((Path(__file__).resolve().parents[2] / "core").rglob("*.py"))
SERDES = ("zstd", "rans", "int8", "cachegen")


@dataclass
class Case:
    """One engine, and what came of it."""

    name: str
    engine: PrefixCache
    telemetry: Totals
    model: CachedModel
    hits: int = 0
    tokens: int = 0
    cpu: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ask(self, prompt: Sequence[int]) -> int:
        """Answer *prompt*; the first token."""
        busy = time.process_time()
        began = time.perf_counter()
        answer = self.model.prefill(prompt)
        first = int(answer.logits.argmax())
        waited = time.perf_counter() - began - answer.store_seconds
        must(self.engine.flush(60), "writes end")  # so that the next one begins as in a quiet hour
        self.cpu += time.process_time() - busy
        self.hits += answer.hit_tokens
        self.tokens += len(prompt)
        whole = answer.hit_tokens >= LENGTH
        tiers = sorted(answer.tiers)
        where = "+".join(tiers) if whole else "computed" if not tiers else "in part"
        self.seconds.setdefault(where, []).append(waited)
        return first

    def result(self, memory: int) -> dict[str, object]:
        tiers = {}
        for tier in self.engine.health().tiers:
            tiers[tier.name] = {
                "chunks": tier.chunks,
                "bytes": tier.used_bytes,
                "written_bytes": int(
                    self.telemetry.total(CounterName.WRITTEN_BYTES, tier=tier.name)
                ),
            }
        return {
            "case": self.name,
            "hit_rate": round(self.hits / self.tokens, 4),
            "hit_tokens_per_gb": round(self.hits / (memory / 1e9)),
            "tiers": tiers,
            "cpu_seconds": round(self.cpu, 2),
            "first_token": {
                where: {"times": len(each), "median": round(statistics.median(each), 4)}
                for where, each in sorted(self.seconds.items())
            },
        }


def documents(seed: int, count: int) -> list[list[int]]:
    """Different places of this project's own text, in bytes, which are the model's tokens."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in TEXT).encode()
    starts = random.Random(seed).sample(range(0, len(text) - LENGTH, CHUNK), count)
    return [list(text[start : start + LENGTH]) for start in starts]


def prompts(seed: int, count: int, once: float) -> list[list[int]]:
    """Documents and a question behind each: by Zipf 0.9, and with *once* some that are new."""
    dice = random.Random(seed)
    places = documents(seed, DOCUMENTS + count)
    popular, new = places[:DOCUMENTS], iter(places[DOCUMENTS:])
    weights = zipf(0.9, DOCUMENTS)
    return [
        (next(new) if dice.random() < once else dice.choices(popular, cum_weights=weights)[0])
        + [dice.randrange(32, 127) for _ in range(10)]
        for _ in range(count)
    ]


def opened(stack: ExitStack, name: str, tiers: Sequence[dict[str, object]], pool: int) -> Case:
    """A case over *tiers*."""
    model = trained("text").to(torch.bfloat16)  # type: ignore[arg-type]
    telemetry = Totals()
    settings = {"chunk": {"size": CHUNK}, "pool": {"bytes": pool}, "tiers": tiers}
    loaded = load_config(None, {}, settings)
    engine = stack.enter_context(build(loaded, namespace_of_model(model), telemetry=telemetry))
    return Case(name, engine, telemetry, CachedModel(model, engine))


def in_turns(cases: Sequence[Case], asked: Sequence[Sequence[int]]) -> int:
    """Every case answers every prompt. How many first tokens were not those of the first case."""
    other = 0
    for number, prompt in enumerate(asked):
        turn = number % len(cases)
        first = {case.name: case.ask(prompt) for case in [*cases[turn:], *cases[:turn]]}
        other += sum(token != first[cases[0].name] for token in first.values())
    return other


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.compressed", description=__doc__
    )
    parser.add_argument("--requests", type=int, default=80, help="of the compressed cases")
    parser.add_argument("--writes", type=int, default=240, help="requests of the write-back cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    layout = namespace_of_model(trained("text").to(torch.bfloat16)).layout  # type: ignore[arg-type]
    frame = frame_bytes(layout.chunk_bytes(CHUNK))
    report: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(OUTPUT.parent),
        "versions": versions(),
        "seed": asked.seed,
        "chunk_bytes": layout.chunk_bytes(CHUNK),
    }
    memory = 24 * frame  # six documents of 24
    with ExitStack() as stack:
        room = 64 * frame
        plain: list[dict[str, object]] = [{"store": "memory", "budget": memory}]
        cases = [opened(stack, "plain", plain, memory + room)]
        for serde in SERDES:
            half: list[dict[str, object]] = [
                {"store": "memory", "budget": memory // 2},
                {"store": "heap", "budget": memory // 2, "serde": serde, "write": "evicted"},
            ]
            cases.append(opened(stack, serde, half, memory // 2 + room))
        other = in_turns(cases, prompts(asked.seed, asked.requests, 0.0))
        report["compressed"] = {
            "memory_bytes": memory,
            "requests": asked.requests,
            "other_first_tokens": other,
            "cases": [case.result(memory) for case in cases],
        }
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="hexkv-bench-") as folder:
        cases = []
        for least in (0.0, 0.1, 0.3):
            tiers: list[dict[str, object]] = [
                {"store": "memory", "budget": 16 * frame},
                {
                    "store": "disk",
                    "budget": 64 * frame,
                    "write": "evicted",
                    "min_reuse": least,
                    "settings": {"root": f"{folder}/{least}"},
                },
            ]
            cases.append(opened(stack, f"min_reuse {least:g}", tiers, 80 * frame))
        other = in_turns(cases, prompts(asked.seed + 1, asked.writes, 0.4))
        report["write_back"] = {
            "requests": asked.writes,
            "other_first_tokens": other,
            "cases": [case.result(16 * frame) for case in cases],
        }
    report["load_after"] = load()
    asked.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
