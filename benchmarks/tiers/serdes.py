"""``python -m benchmarks.tiers.serdes``: what each serde makes of a chunk, and what that costs.

Seconds are the processor's of one thread: another process that runs beside changes them
little. GB are 10**9 bytes of KV, encoded or not. The KV is synthetic, channels of Gaussians
that differ as those of models do, or a model's, read from ``--model``: what a serde does to a
model's answers is for a table of quality to say, not for this one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.rig.machine import describe, versions
from benchmarks.rig.measure import must
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.lowbit import Float8, Int4, Int8
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.lossless.rans import Rans
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.kernels.coding import plain
from hexkv.kernels.coding.choosing import Choice, LowBitChoice
from hexkv.kernels.coding.floats import narrowed
from hexkv.plugins.support.payload import PlaneSerde
from hexkv.ports import DType, KVLayout, Plane, Serde

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "serdes.json"
TOKENS = 256
TEXT = Path(__file__).resolve().parents[2] / "LICENSE"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some KV, and where it comes from."""

    name: str
    layout: KVLayout
    raw: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One serde on one chunk."""

    kv: str
    serde: str
    bytes_per_token: float
    ratio: float
    encode: float
    """GB of KV per second of one core."""

    decode: float

    goal: str = ""
    """``reached`` or ``missed``, where there is one."""


GOALS = {"cachegen": (0.25, 0.4), "zstd": (0.0, 0.5), "rans": (0.0, 0.5)}
"""GB/s of bfloat16: encoding, decoding."""


def synthetic(name: str, layout: KVLayout) -> Chunk:
    """Gaussians: channels of K differ more than those of V, and every 64th is an outlier."""
    random = np.random.default_rng(0)
    planes = (plane for planes in layout.planes for plane in planes)
    return Chunk(name, layout, b"".join(_plane(plane, layout.dtype, random) for plane in planes))


def _plane(plane: Plane, dtype: DType, random: np.random.Generator) -> bytes:
    row, keys = plane.heads * plane.width, plane.name in ("k", "rope")
    widths = np.exp(random.normal(0, 0.5 if keys else 0.2, row))
    if keys:
        widths[random.permutation(row)[: row // 64]] *= 4
    means = random.normal(0, 0.3, row) * widths
    louder = np.exp(random.normal(0, 0.1, (TOKENS, 1)))
    values = random.normal(0, 1, (TOKENS, row)) * widths * louder + means
    return narrowed(values.astype(np.float32), dtype).tobytes()


def computed(folder: Path) -> Chunk:
    """What the causal language model in *folder* keeps of the licence's first bytes."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.train(False)
    ids = torch.tensor([list(TEXT.read_bytes()[:TOKENS])])
    with torch.no_grad():
        layers = model(ids, use_cache=True).past_key_values.layers
    heads, width = layers[0].keys.shape[1], layers[0].keys.shape[3]
    layout = KVLayout.attention(DType.BFLOAT16, layers=len(layers), heads=heads, key_width=width)
    tensors = (tensor for layer in layers for tensor in (layer.keys, layer.values))
    rows = (tensor[0].transpose(0, 1).contiguous().view(torch.uint8) for tensor in tensors)
    return Chunk(folder.name, layout, b"".join(row.numpy().tobytes() for row in rows))


def serdes() -> Iterator[tuple[str, Serde]]:
    """Every serde with more to do than copying, by the name of a configuration."""
    choice = Choice()
    must(choice.wait(120), "numba compiles")
    for level, name in zip(LEVELS, ("-fine", "", "-small", "-tiny"), strict=True):
        yield f"cachegen{name}", LossySerde(CacheGen(LEVELS[level], choice))
    yield "cachegen, by numpy", LossySerde(CacheGen(LEVELS["default"], Choice(lambda: plain)))
    numbers = LowBitChoice()
    must(numbers.wait(120), "numba compiles")
    yield "int8", LossySerde(Int8(numbers))
    yield "int4", LossySerde(Int4(numbers))
    yield "fp8", LossySerde(Float8(numbers))
    yield "zstd", ZstdSerde()
    yield "zstd, level 1", ZstdSerde(1)
    yield "rans", PlaneSerde(Rans(choice))
    yield "rans, by numpy", PlaneSerde(Rans(Choice(lambda: plain)))


def measure(chunk: Chunk, name: str, serde: Serde, runs: int) -> Row:
    """One row of the table."""
    raw, layout = memoryview(chunk.raw), chunk.layout
    into = memoryview(bytearray(serde.bound(len(raw))))
    back = memoryview(bytearray(len(raw)))
    payload = into[: serde.encode(raw, layout, TOKENS, into)]
    encode = seconds(partial(serde.encode, raw, layout, TOKENS, into), runs)
    decode = seconds(partial(serde.decode, payload, layout, TOKENS, back), runs)
    if serde.lossless:
        must(back == raw, f"{name} gives back what it was given")
    fast = len(raw) / encode / 1e9, len(raw) / decode / 1e9
    goal = ""
    if name in GOALS and layout.dtype is DType.BFLOAT16:
        enough = all(is_ >= wanted for is_, wanted in zip(fast, GOALS[name], strict=True))
        goal = "reached" if enough else "missed"
    return Row(
        chunk.name,
        name,
        round(len(payload) / TOKENS, 1),
        round(len(raw) / len(payload), 3),
        round(fast[0], 3),
        round(fast[1], 3),
        goal,
    )


def seconds(work: Callable[[], object], runs: int) -> float:
    """The median of *runs*, in processor time of this thread."""
    taken = []
    for _ in range(runs):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.tiers.serdes", description=__doc__)
    parser.add_argument("--model", type=Path, action="append", default=[], help="a model's folder")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    grouped = KVLayout.attention(DType.BFLOAT16, layers=8, heads=8, key_width=128)
    small = KVLayout.attention(DType.BFLOAT16, layers=8, heads=2, key_width=64)
    latent = KVLayout.latent(DType.BFLOAT16, layers=8, latent_width=512, rope_width=64)
    chunks = [synthetic("GQA, 8 heads of 128", grouped), synthetic("GQA, 2 heads of 64", small)]
    chunks.append(synthetic("MLA, 512 and 64", latent))
    chunks += [computed(folder) for folder in asked.model]
    rows = [measure(chunk, name, serde, asked.runs) for name, serde in serdes() for chunk in chunks]
    table = Table("KV", "serde", "bytes/token", "ratio", "encode GB/s", "decode GB/s", "goal")
    for row in sorted(rows, key=lambda row: row.kv):
        table.add_row(*map(str, asdict(row).values()))
    Console(width=110).print(table)
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": asked.runs,
        "tokens": TOKENS,
        "machine": describe(OUTPUT.parent),
        "versions": versions() | {"numba": version("numba")},
        "rows": [asdict(row) for row in rows],
    }
    asked.output.write_text(json.dumps(run, indent=2) + "\n")


if __name__ == "__main__":
    main()
