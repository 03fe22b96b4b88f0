"""``python -m benchmarks.engines.vllm_ttft``: time to the first token in a real vLLM, by connector.

Engines of all connectors that are asked for run side by side and take turns: the same model, the
same prompts, and while one answers the others wait. A prompt is new to an engine once (a miss) and
is then asked for again (hits). One process is some percent faster than another one of the same
program for as long as it runs: ``--starts`` starts all of them again, ``control`` is a second
engine without a connector, and the time inside a connector's own hooks is taken, too. With
``--misses`` each prompt is asked for once, and engines' cores are processes of their own, as ``vllm
serve`` has them: KV is saved beside the steps, and ``cpu_seconds_until_rest`` counts the saves.
``make bench-vllm`` sets everything up.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.engines.lmcache_daemon import Daemon
from benchmarks.rig.machine import describe, forget, load
from benchmarks.rig.nodes import served
from benchmarks.rig.rounds import against
from engines.vllm.vllm_engines import E2E, ROOT, Engine, agree, connector, prompt

CHUNK = 256
KV_BYTES = 16 << 10
"""Of one token of the tiny model."""

SPARE = 0.01
"""Seconds that a hit may take beside the prefix cache's and the copies, however short it is."""

SETTINGS: dict[str, object] = {
    "max_model_len": 8192,
    "block_size": 32,
}
POOL = "2GiB"
OUTPUT = Path(__file__).resolve().parents[1] / "results" / "vllm_ttft.json"


TIERS = ("memory", "disk", "cold", "memory and disk")

Turn: TypeAlias = tuple[int, int]
"""The number of a prompt, and how often everybody was asked for it before."""


@dataclass
class Side:
    """A connector, its engine, and the measurements with it."""

    name: str
    begin: Callable[[Path], Engine]
    where: Path
    missing: str = ""
    """Why it cannot be measured here."""
    miss: dict[Turn, dict[str, float]] = field(default_factory=dict)
    hit: dict[Turn, dict[str, float]] = field(default_factory=dict)


def column(rows: Mapping[Turn, Mapping[str, float]], name: str) -> dict[Turn, float]:
    """One number of each turn."""
    return {turn: row[name] for turn, row in rows.items()}


def tiers_of(tier: str, folder: Path) -> list[dict[str, object]]:
    """What hexkv keeps chunks on."""
    if tier == "memory":
        return [{"store": "memory"}]
    if tier == "memory and disk":
        return [*tiers_of("memory", folder), *tiers_of("disk", folder)]
    # Left to itself it passes the system's page cache by, which the others count on.
    direct = "off" if tier == "disk" else "auto"
    return [{"store": "disk", "settings": {"root": str(folder / "disk"), "direct": direct}}]


def transfer(name: str, tier: str, folder: Path) -> dict[str, object] | None:
    """vLLM's ``kv_transfer_config`` of a connector; ``None`` where there is none."""
    both: dict[str, object] = {"kv_role": "kv_both"}
    if name == "hexkv":
        return dict(connector({"pool": {"bytes": POOL}, "tiers": tiers_of(tier, folder)}))
    if name == "node":
        return dict(connector({"node": str(folder / "node" / "node.sock")}))
    if name == "example":
        extra = {"shared_storage_path": str(folder / "example")}
        return both | {"kv_connector": "ExampleConnector", "kv_connector_extra_config": extra}
    if name == "offloading":
        bytes_to_use = {"cpu_bytes_to_use": 2 << 30}
        return both | {
            "kv_connector": "OffloadingConnector",
            "kv_connector_extra_config": bytes_to_use,
        }
    return None


def through(daemon: Daemon) -> dict[str, object]:
    """The same for LMCache, whose daemon outlives engines."""
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": daemon.port()}
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


def side(
    name: str, tier: str, model: Path, folder: Path, daemon: Daemon, several: bool, batch: int
) -> Side:
    """A connector that can be begun, and begun again, on the same *folder*.

    Its steps compute *batch* tokens at most.
    """

    def begin(log: Path) -> Engine:
        lmcache = name == "lmcache"
        env = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(several))}
        return Engine(
            model,
            log,
            transfer=through(daemon) if lmcache else transfer(name, tier, folder),
            env=env | daemon.environment if lmcache else env,
            enable_prefix_caching=name == "prefix",
            **SETTINGS | {"max_num_batched_tokens": batch},
        )

    return Side(name, begin, folder)


def ask(engine: Engine, words: Sequence[int]) -> tuple[dict[str, float], object]:
    """One prompt: what it took, and its answer."""
    [answer] = engine.generate(words, tokens=4)
    return {
        "ttft_seconds": answer.first_token_seconds,
        "cpu_seconds": engine.last["cpu_seconds"],
        "hook_seconds": engine.last["hook_seconds"],
        "steps": engine.last["steps"],
        "cached_tokens": answer.cached,
        "kv_bytes": answer.cached * KV_BYTES,
    }, answer


def measure(
    sides: Sequence[Side],
    copy: Copy,
    length: int,
    numbers: range,
    hits: int,
    tier: str,
    start: int,
) -> None:
    """Take turns: a miss each, then hits each; from the disk in fresh engines.

    Args:
        sides: whose engines to start.
        copy: beside each hit.
        length: of each prompt, tokens.
        numbers: of the prompts; the first one only warms up.
        hits: of each prompt, from memory.
        tier: where the hits come from.
        start: how many times engines were started before.
    """
    answers: dict[int, object] = {}
    rested: dict[str, float] = {}

    def turn(one: Side, engine: Engine, number: int) -> dict[str, float]:
        before = rested.get(one.name) or engine.rest()
        took, answer = ask(engine, prompt(f"ttft {number}", length))
        assert agree([answer], [answers.setdefault(number, answer)]), one.name
        rested[one.name] = engine.rest()
        return took | {"cpu_seconds_until_rest": rested[one.name] - before}

    with ExitStack() as stack:
        engines = open_all(sides, stack, f"first-{start}")
        for number in numbers:
            for one, engine in turns(engines, number):
                one.miss[number, 0] = turn(one, engine, number)
            if tier == "memory" or not hits:
                for again in range(hits):
                    for one, engine in turns(engines, number + again):
                        one.hit[number, again] = turn(one, engine, number)
                    copy.turn(number, again)
    if tier != "memory" and hits:
        rested.clear()
        with ExitStack() as stack:
            engines = open_all(sides, stack, f"second-{start}")
            for number in numbers:
                for one, engine in turns(engines, number):
                    if tier == "cold":
                        forget(one.where)
                    one.hit[number, 0] = turn(one, engine, number)
                copy.turn(number, 0)
    measured: list[dict[Turn, Any]] = [rows for one in sides for rows in (one.miss, one.hit)]
    for rows in (copy.seconds, *measured):
        for first in [turn for turn in rows if turn[0] == numbers.start]:
            del rows[first]


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
            said = re.findall(r"\w*(?:Error|Exception): .+", str(error))
            one.missing = said[-1].strip() if said else "the engine did not start"
        else:
            engines.append((one, stack.enter_context(engine)))
            engine.watch()
    return engines


class Copy:
    """The bare copy of a prompt's KV, which takes its turn like everybody.

    On one thread, between memory that was used before. So it comes upon the caches as another
    engine left them, as every load of KV does.
    """

    def __init__(self, tokens: int) -> None:
        torch.set_num_threads(1)
        self._source = torch.ones(tokens * KV_BYTES // 4)
        self._target = torch.zeros_like(self._source)
        self.seconds: dict[Turn, float] = {}

    def turn(self, number: int, again: int) -> None:
        """Copy once."""
        began = time.perf_counter()
        self._target.copy_(self._source)
        self.seconds[number, again] = time.perf_counter() - began

    def summary(self) -> dict[str, float]:
        """The least and the median, seconds."""
        times = self.seconds.values()
        return {"min": min(times), "median": statistics.median(times)}


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


def compared(sides: Sequence[Side], copy: Copy) -> dict[str, dict[str, dict[str, float]]]:
    """Each connector beside its limits.

    A miss, and the part of it that the connector's hooks take, beside no connector; a hit beside
    vLLM's own prefix cache and one and a half bare copies; one over a node also beside the same
    in one process.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    known = {one.name: one for one in sides if not one.missing}
    first = "ttft_seconds"
    for one in known.values():
        ratios = found.setdefault(one.name, {})
        if "none" in known and one.name != "none":
            plain = column(known["none"].miss, first)
            ratios["miss / none"] = against(column(one.miss, first), plain)
            cpu = "cpu_seconds_until_rest"
            busy = column(known["none"].miss, cpu)
            ratios["CPU of a miss / none"] = against(column(one.miss, cpu), busy)
            hooks = column(one.miss, "hook_seconds")
            if any(hooks.values()):
                ratios["hooks of a miss / none"] = against(hooks, plain)
        if "prefix" in known and one.hit and one.name not in ("prefix", "none", "control"):
            native = column(known["prefix"].hit, first)
            limit = {turn: native[turn] + 1.5 * copy.seconds[turn] for turn in native}
            ratios["hit / (prefix + 1.5 copies)"] = against(column(one.hit, first), limit)
            spared = {turn: seconds + SPARE for turn, seconds in limit.items()}
            ratios["hit / (prefix + 1.5 copies + 10 ms)"] = against(column(one.hit, first), spared)
    if {"node", "hexkv"} <= known.keys():
        for rows in ("miss", "hit") if known["node"].hit else ("miss",):
            over, own = (column(getattr(known[name], rows), first) for name in ("node", "hexkv"))
            found["node"][f"{rows} / in one process"] = against(over, own)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what *arguments* ask for. The exit code."""
    asked = _parse(arguments)
    now = datetime.now(UTC)
    model = asked.model or ROOT / "build" / "tiny-llama"
    if asked.model is None:
        subprocess.run([sys.executable, str(E2E / "tiny_llama.py"), str(model)], check=True)
    with tempfile.TemporaryDirectory(prefix="ttft-", dir=ROOT / "build") as scratch:
        machine = describe(Path(scratch))
        # In one process with LMCache's libraries vLLM does not start; alike is compared with alike.
        several = "lmcache" in asked.connector or asked.misses
        hits = 0 if asked.misses else asked.hits
        daemon = Daemon(asked.lmcache, Path(scratch) / "daemon.log")
        # Of whole chunks any connector has all but the last four tokens.
        length = asked.tokens or asked.chunks * CHUNK + 4
        copy = Copy(length)
        sides = []
        with daemon, ExitStack() as nodes:
            for name in asked.connector:
                folder = Path(scratch) / name
                folder.mkdir()
                if name == "node":
                    tiers = tiers_of(asked.tier, folder)
                    nodes.enter_context(served(folder / "node", POOL, tiers))
                more = daemon, several, asked.batch
                sides.append(side(name, asked.tier, model, folder, *more))
            for start in range(asked.starts):
                began = start * (asked.rounds + 1)
                numbers = range(began, began + asked.rounds + 1)
                measure(sides, copy, length, numbers, hits, asked.tier, start)
    hot = Copy(length)
    for again in range(15):
        hot.turn(0, again)
    result = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine | {"load_after": load()},
        "prompt_tokens": length,
        "hits_from": asked.tier,
        "starts": asked.starts,
        "engines": "in several processes" if several else "in one process each",
        "bare_copy_seconds": {
            "in_turns": copy.summary() if copy.seconds else None,
            "one_after_the_other": hot.summary(),
        },
        "connectors": {
            one.name: {"not_available": one.missing}
            if one.missing
            else {"miss": summary([*one.miss.values()]), "hit": summary([*one.hit.values()])}
            for one in sides
        },
        "compared": compared(sides, copy),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if asked.output:
        asked.output.write_text(text + "\n")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = ["hexkv", "node", "none", "control", "prefix", "offloading", "example", "lmcache"]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.vllm_ttft", description=__doc__
    )
    parser.add_argument("--connector", nargs="+", choices=names, default=["none", "hexkv"])
    parser.add_argument("--tier", choices=TIERS, default="memory")
    parser.add_argument("--misses", action="store_true", help="only, saved beside the steps")
    parser.add_argument("--batch", type=int, default=8192, help="most tokens of a step")
    parser.add_argument("--model", type=Path, help="a folder; by default a tiny Llama")
    parser.add_argument("--chunks", type=int, default=16, help=f"of {CHUNK} tokens in a prompt")
    parser.add_argument("--tokens", type=int, help="of a prompt that ends within a chunk")
    parser.add_argument("--starts", type=int, default=1, help="of every engine")
    parser.add_argument("--rounds", type=int, default=6, help="prompts after each start")
    parser.add_argument("--hits", type=int, default=3, help="of each prompt, from memory")
    parser.add_argument("--output", type=Path, help="a file for the JSON that is printed")
    parser.add_argument(
        "--lmcache", type=Path, help="a folder with LMCache in it, where the environment has none"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
