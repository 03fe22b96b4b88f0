"""``python -m benchmarks.vllm_ttft``: time to the first token in a real vLLM, by connector.

Engines of all connectors that are asked for run side by side and take turns: the same model, the
same prompts, and while one answers the others wait. A prompt is new to an engine once (a miss) and
is then asked for again (hits). ``make bench-vllm`` sets everything up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.machine import describe, load
from vllm_engines import E2E, ROOT, Engine, agree, connector, prompt

CHUNK = 256
TOKENS = 16 * CHUNK + 4
"""Of a prompt. All but the last four can be hit, whatever a connector's granularity."""

KV_BYTES = 16 << 10
"""Of one token of the tiny model."""

SETTINGS: dict[str, object] = {
    "max_model_len": 8192,
    "max_num_batched_tokens": 8192,
    "block_size": 32,
}
OUTPUT = Path(__file__).resolve().parent / "results" / "vllm_ttft.json"


@dataclass
class Side:
    """A connector, its engine, and what was measured with it."""

    name: str
    begin: Callable[[Path], Engine]
    where: Path
    missing: str = ""
    """Why it cannot be measured here."""
    miss: list[dict[str, float]] = field(default_factory=list)
    hit: list[dict[str, float]] = field(default_factory=list)


def transfer(name: str, tier: str, folder: Path) -> dict[str, object] | None:
    """vLLM's ``kv_transfer_config`` of a connector; ``None`` where there is none."""
    both = {"kv_role": "kv_both"}
    if name == "hexkv":
        tiers = [{"store": "memory"}]
        if tier == "disk":
            tiers = [{"store": "disk", "settings": {"root": str(folder / "disk")}}]
        return dict(connector({"pool": {"bytes": "2GiB"}, "tiers": tiers}))
    if name == "example":
        extra = {"shared_storage_path": str(folder / "example")}
        return both | {"kv_connector": "ExampleConnector", "kv_connector_extra_config": extra}
    if name == "offloading":
        extra = {"cpu_bytes_to_use": 2 << 30}
        return both | {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    if name == "lmcache":
        return both | {"kv_connector": "LMCacheMPConnector"}
    return None


def side(name: str, tier: str, model: Path, folder: Path, python: str) -> Side:
    """A connector that can be begun, and begun again, on the same *folder*."""

    def begin(log: Path) -> Engine:
        return Engine(
            model,
            log,
            transfer=transfer(name, tier, folder),
            python=python if name == "lmcache" else sys.executable,
            enable_prefix_caching=name == "prefix",
            **SETTINGS,
        )

    return Side(name, begin, folder)


def ask(engine: Engine, words: Sequence[int]) -> tuple[dict[str, float], object]:
    """One prompt: what it took, and its answer."""
    [answer] = engine.generate(words, tokens=4)
    return {
        "ttft_seconds": answer.first_token_seconds,
        "cpu_seconds": engine.last["cpu_seconds"],
        "steps": engine.last["steps"],
        "cached_tokens": answer.cached,
        "kv_bytes": answer.cached * KV_BYTES,
    }, answer


def measure(sides: Sequence[Side], rounds: int, hits: int, tier: str) -> None:
    """Take turns: a miss each, then hits each, *rounds* times; from the disk in fresh engines."""
    prompts = [prompt(f"ttft {number}", TOKENS) for number in range(rounds + 1)]
    answers: dict[int, object] = {}

    def turn(one: Side, engine: Engine, number: int, into: list[dict[str, float]]) -> None:
        took, answer = ask(engine, prompts[number])
        assert agree([answer], [answers.setdefault(number, answer)]), one.name
        if number:  # the first prompt only warms up
            into.append(took)

    with ExitStack() as stack:
        engines = open_all(sides, stack, "first")
        for number in range(len(prompts)):
            for one, engine in turns(engines, number):
                turn(one, engine, number, one.miss)
                engine.rest()
            if tier == "memory":
                for again in range(hits):
                    for one, engine in turns(engines, number + again):
                        turn(one, engine, number, one.hit)
                        engine.rest()
    if tier == "disk":
        with ExitStack() as stack:
            engines = open_all(sides, stack, "second")
            for number in range(len(prompts)):
                for one, engine in turns(engines, number):
                    turn(one, engine, number, one.hit)
                    engine.rest()


def turns(engines: list[tuple[Side, Engine]], number: int) -> list[tuple[Side, Engine]]:
    """Everybody is first once in a while."""
    first = number % len(engines)
    return engines[first:] + engines[:first]


def open_all(sides: Sequence[Side], stack: ExitStack, log: str) -> list[tuple[Side, Engine]]:
    """The engines that start. Of the others is kept why they do not."""
    engines = []
    for one in sides:
        try:
            engine = one.begin(one.where / f"{log}.log")
        except AssertionError as error:
            said = [line for line in str(error).splitlines() if "Error" in line]
            one.missing = said[-1].strip() if said else "the engine did not start"
        else:
            engines.append((one, stack.enter_context(engine)))
    return engines


def bare_copy(tokens: int) -> dict[str, float]:
    """Seconds that one thread needs to copy the KV of *tokens* between used memory."""
    torch.set_num_threads(1)
    source = torch.ones(tokens * KV_BYTES // 4)
    target = torch.zeros_like(source)
    took = []
    for _ in range(15):
        began = time.perf_counter()
        target.copy_(source)
        took.append(time.perf_counter() - began)
    return {"min": min(took), "median": statistics.median(took)}


def summary(rows: Sequence[dict[str, float]]) -> dict[str, object]:
    """Minimum and median of each number, and every time to the first token."""
    if not rows:
        return {}
    found: dict[str, object] = {
        name: {"min": min(column), "median": statistics.median(column)}
        for name in rows[0]
        for column in [[row[name] for row in rows]]
    }
    return found | {"all_ttft_seconds": [round(row["ttft_seconds"], 4) for row in rows]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what *arguments* ask for. The exit code."""
    asked = _parse(arguments)
    now = datetime.now(UTC)
    model = ROOT / "build" / "tiny-llama"
    subprocess.run([sys.executable, str(E2E / "tiny_llama.py"), str(model)], check=True)
    with tempfile.TemporaryDirectory(prefix="ttft-", dir=ROOT / "build") as scratch:
        machine = describe(Path(scratch))
        sides = []
        for name in asked.connector:
            folder = Path(scratch) / name
            folder.mkdir()
            sides.append(side(name, asked.tier, model, folder, asked.lmcache_python))
        measure(sides, asked.rounds, asked.hits, asked.tier)
    result = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine | {"load_after": load()},
        "prompt_tokens": TOKENS,
        "hits_from": asked.tier,
        "bare_copy_seconds": bare_copy(TOKENS // CHUNK * CHUNK),
        "connectors": {
            one.name: {"not_available": one.missing}
            if one.missing
            else {"miss": summary(one.miss), "hit": summary(one.hit)}
            for one in sides
        },
    }
    text = json.dumps(result, indent=1)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = ["hexkv", "none", "prefix", "offloading", "example", "lmcache"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_ttft", description=__doc__)
    parser.add_argument("--connector", nargs="+", choices=names, default=["none", "hexkv"])
    parser.add_argument("--tier", choices=["memory", "disk"], default="memory")
    parser.add_argument("--rounds", type=int, default=6, help="prompts")
    parser.add_argument("--hits", type=int, default=3, help="of each prompt, from memory")
    parser.add_argument("--output", type=Path, help="a file for the JSON that is printed")
    parser.add_argument(
        "--lmcache-python",
        default=sys.executable,
        help="an interpreter that has vLLM and LMCache, whose daemon runs at its default port",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
