"""Small calls in the published `lmcache` package, from memory, in a process of its own.

The same prompt, KV in one tensor of the same shape, the same clock as the small calls of
:mod:`benchmarks.calls.fixed`, which runs this in turns with its own. LMCache has a connector that
copies with torch, for its own ones need a GPU; it has the tensor from the start, while hexkv gets a
new window with each hit. Names differ, too: Python's ``hash`` of each chunk there, SHA-256 here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.rig.engines import TURNS, in_turn, prompt
from benchmarks.rig.measure import cost, must

HERE = Path(__file__).resolve().parents[1]
PLACE = Path(sys.prefix) / "lmcache"
"""Where ``make bench`` installs it: its dependencies are not for this environment."""

LAYERS, HEADS, WIDTH = 4, 2, 64
POOL_GIB = 0.25

PATIENCE = 300.0
"""Seconds after which its process hangs."""


def peers_turn(tokens: int, chunks: Sequence[int]) -> dict[str, float] | None:
    """What each call took there, in microseconds of CPU; None where the package is not installed.

    Raises:
        SubprocessError: it is installed, and its process failed, or hangs.
    """
    if not (PLACE / "lmcache").is_dir():
        return None
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls.lmcache_calls", str(tokens), *map(str, chunks)],
        cwd=HERE.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PLACE), os.environ.get("PYTHONPATH", "")]),
            "DO_NOT_TRACK": "1",
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_LOG_LEVEL": "ERROR",
        },
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=PATIENCE,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(asked: int, chunk: int) -> Iterator[tuple[str, float]]:
    """Every call once: its name and the microseconds it took."""
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata

    config = LMCacheEngineConfig.from_defaults(
        chunk_size=chunk, local_cpu=True, max_local_cpu_size=POOL_GIB
    )
    shape = (LAYERS, 2, chunk, HEADS, WIDTH)
    metadata = LMCacheMetadata("benchmark", 1, 1, 0, 0, torch.bfloat16, shape, chunk_size=chunk)
    kv = torch.rand(LAYERS, 2, asked, HEADS * WIDTH).bfloat16()
    there = LMCacheEngineBuilder.get_or_create(
        "benchmark",
        config,
        metadata,
        _connector(kv),
        lambda tensor, _: tensor,
        lambda thing, _: thing,
    )
    there.post_init()
    named = asked // chunk * chunk
    tokens, others = prompt(asked).tolist(), prompt(2 * asked)[asked:].tolist()
    try:
        there.store(tokens)
        before = kv.clone()
        kv.zero_()
        must(int(there.retrieve(tokens).sum()) == named, "not all was loaded")
        must(torch.equal(kv[:, :, :named], before[:, :, :named]), "other KV was loaded")
        must(there.lookup(tokens) == named, "not all was found")
        must(there.lookup(others) == 0, "something was found")

        name = f"{asked} tokens in chunks of {chunk}"
        new = cost(lambda: there.store(tokens), before=there.clear)
        yield f"{name}: new store, us", new * 1e6
        yield f"{name}: lookup of a hit, us", cost(lambda: there.lookup(tokens)) * 1e6
        yield f"{name}: lookup of a miss, us", cost(lambda: there.lookup(others)) * 1e6
        yield f"{name}: hit in a new window, us", cost(lambda: there.retrieve(tokens)) * 1e6
        yield f"{name}: retrieve of a miss, us", cost(lambda: there.retrieve(others)) * 1e6
        stored, strange = in_turn(asked, 2), in_turn(asked, 2 + TURNS)
        name = f"{name}, another prompt each time"
        new = cost(lambda: there.store(next(stored)), before=there.clear)
        yield f"{name}: new store, us", new * 1e6
        there.clear()
        for _ in range(TURNS):
            there.store(next(stored))
        must(there.lookup(next(stored)) == named, "not all was found")
        must(there.lookup(next(strange)) == 0, "something was found")
        yield f"{name}: lookup of a hit, us", cost(lambda: there.lookup(next(stored))) * 1e6
        yield f"{name}: lookup of a miss, us", cost(lambda: there.lookup(next(strange))) * 1e6
    finally:
        LMCacheEngineBuilder.destroy("benchmark")


def _connector(kv: torch.Tensor) -> Any:
    """LMCache's interface of a device, over KV ``(layers, 2, tokens, width)``: one copy a chunk."""
    from lmcache.v1.gpu_connector import GPUConnectorInterface

    class Copies(GPUConnectorInterface):  # type: ignore[misc]
        def from_gpu(self, memory_obj: Any, start: int, end: int, **_: object) -> None:
            memory_obj.tensor.copy_(kv[:, :, start:end].transpose(0, 1))

        def to_gpu(self, memory_obj: Any, start: int, end: int, **_: object) -> None:
            kv[:, :, start:end].transpose(0, 1).copy_(memory_obj.tensor)

        def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: object) -> None:
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                self.from_gpu(memory_obj, start, end)

        def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: object) -> None:
            for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
                self.to_gpu(memory_obj, start, end)

        def get_shape(self, num_tokens: int) -> torch.Size:
            return torch.Size([2, LAYERS, num_tokens, HEADS * WIDTH])

    return Copies()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked, *chunks = map(int, sys.argv[1:])
    print(json.dumps({name: value for chunk in chunks for name, value in rows(asked, chunk)}))
