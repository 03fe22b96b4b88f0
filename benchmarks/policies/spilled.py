"""``python -m benchmarks.policies.spilled [TRACE]``: chunks that wait for a disk, no think time.

A trace in Mooncake's format is served by one engine over memory and a disk that takes the chunks
which memory evicts, one request right after the other: each retrieves its prompt and stores it. A
block of the trace is a chunk of 16 tokens. Three times: all writes end between two requests; stores
wait for room in the disk's queue, as they do by default; they do not (``wait=False``). Beside it
the replay of ``hexkv plan``, with writes at once, and at the pace that the last run had. Hits
without think time depend on how fast the disk is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.policies import LRU
from hexkv.plan.stacked import Below, Writing, replay_stacked
from hexkv.plan.trace import TracedPrompt, read_mooncake
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.observing.telemetry import Totals
from hexkv.ports import CounterName, DType, KVLayout, Namespace, frame_bytes

EXCERPT = Path(__file__).resolve().parents[2] / "tests" / "data" / "conversation.jsonl"
CHUNK = 16
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=32)
FRAME = frame_bytes(LAYOUT.chunk_bytes(CHUNK))


def prompt_of(request: TracedPrompt) -> list[int]:
    """Tokens of a prompt whose chunks are those of *request*."""
    digests = [key[16:48] for key in request.keys]
    return [
        int.from_bytes(each[at : at + 2], "little") for each in digests for at in range(0, 32, 2)
    ]


def serve(
    requests: Sequence[TracedPrompt], sizes: Sequence[int], *, think: bool, wait: bool
) -> dict[str, float]:
    """Return what one engine finds and drops, and the seconds of its retrieves and stores."""
    memory, disk, pool = (size * FRAME for size in sizes)
    telemetry = Totals()
    hit = tokens = 0
    retrieves: list[float] = []
    stores = 0.0
    with tempfile.TemporaryDirectory() as folder:
        below = {"store": "disk", "write": "evicted", "budget": disk, "settings": {"root": folder}}
        settings = {
            "chunk": {"size": CHUNK},
            "pool": {"bytes": pool},
            "tiers": [{"store": "memory", "budget": memory}, below],
        }
        space = Namespace("spilled", LAYOUT, revision="1")
        with build(load(None, {}, settings), space, telemetry=telemetry) as engine:
            engine.flush(60)
            for prompt in filter(None, map(prompt_of, requests)):
                window = HeapKV(LAYOUT, len(prompt))
                start = time.perf_counter()
                hit += engine.retrieve(prompt, window).hit_tokens
                retrieves.append(time.perf_counter() - start)
                start = time.perf_counter()
                engine.store(prompt, window, wait=wait)
                stores += time.perf_counter() - start
                tokens += len(prompt)
                if think:
                    engine.flush(60)
            written = telemetry.total(CounterName.STORED, tier="disk")
            engine.flush(60)
    return {
        "hit_rate": round(hit / tokens, 5),
        "evicted": telemetry.total(CounterName.EVICTED, tier="memory"),
        "dropped": telemetry.total(CounterName.DROPPED, tier="disk"),
        "pace": round(written / max(1, (tokens - hit) / CHUNK), 3),
        "retrieve_ms": round(1e3 * median(retrieves), 2),
        "store_seconds": round(stores, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies.spilled", description=__doc__
    )
    parser.add_argument("trace", nargs="?", type=Path, default=EXCERPT)
    parser.add_argument("--requests", type=int, default=250)
    parser.add_argument("--memory", type=int, default=1000, help="chunks")
    parser.add_argument("--disk", type=int, default=4000, help="chunks")
    parser.add_argument("--pool", type=int, default=1500, help="chunks")
    asked = parser.parse_args(arguments)
    with asked.trace.open("rb") as lines:
        requests = list(islice(read_mooncake(lines), asked.requests))
    full = [TracedPrompt(CHUNK * len(request.keys), request.keys) for request in requests]
    sizes = asked.memory, asked.disk, asked.pool
    found = {"plan, writes at once": _planned(full, asked.memory, Below(asked.disk))}
    for name, think, wait in (
        ("with think time", True, True),
        ("without", False, True),
        ("without, stores do not wait", False, False),
    ):
        found[name] = serve(requests, sizes, think=think, wait=wait)
    writing = Writing(asked.pool // 4, found[name]["pace"])
    found["plan, at that pace"] = _planned(full, asked.memory, Below(asked.disk, writing=writing))
    for name, row in found.items():
        print(f"{name}: {json.dumps(row)}")
    return 0


def _planned(requests: Sequence[TracedPrompt], memory: int, below: Below) -> dict[str, float]:
    done = replay_stacked(requests, LRU, memory, below, chunk_tokens=CHUNK)
    return {"hit_rate": round(done.hit_rate, 5), "dropped": done.dropped, "written": done.written}


if __name__ == "__main__":
    sys.exit(main())
