"""``python -m benchmarks.prefill_decode``: what it takes to hand a prompt over in a real vLLM.

One engine computes a prompt and is asked for one token, another one is asked for the first token
then. What the second one takes is what handing over adds to the prefill's own time. One step of it
is vLLM's own, for the last token: as long as a later step of the same request takes. Beside it, in
turns: the same through vLLM's ExampleConnector, and a copy of that much KV out of shared memory,
which is the least that it takes. ``PYTHONPATH=tests/lib .venv/vllm/bin/python -m ...``.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.machine import describe, load
from benchmarks.rounds import against
from benchmarks.vllm_ttft import KV_BYTES, SETTINGS
from nodes import NodeProcess
from vllm_engines import Engine, agree, connector, prompt

CHUNK = 256
STEPS = 8
"""Of the decoder, of which one tells how long vLLM's own part takes."""

OUTPUT = Path(__file__).resolve().parent / "results" / "prefill_decode.json"


class Shared:
    """As much memory as a prompt's KV, which another process could have written."""

    def __init__(self, size: int) -> None:
        descriptor = os.memfd_create("kv")
        os.ftruncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self._source = torch.frombuffer(self._memory, dtype=torch.uint8).fill_(1)
        self._target = torch.zeros(size, dtype=torch.uint8)

    def seconds(self) -> tuple[float, float]:
        """Time and CPU seconds of a copy."""
        began, busy = time.perf_counter(), time.process_time()
        self._target.copy_(self._source)
        return time.perf_counter() - began, time.process_time() - busy


def turn(
    prefill: Engine,
    decode: Engine,
    words: Sequence[int],
    *,
    params: Sequence[Mapping[str, object]] = ({}, {}),
) -> dict[str, float]:
    """One prompt, handed over; *params* are a router's to the one and to the other."""
    gives, takes = ({"kv_transfer_params": said} if said else None for said in params)
    [first] = prefill.generate(words, tokens=1, extra=gives)
    computed = prefill.last["cpu_seconds"]
    [answer] = decode.generate(words, tokens=1, extra=takes)
    assert agree([answer], [first])
    busy = decode.last["cpu_seconds"]
    [longer] = decode.generate(words, tokens=1 + STEPS, extra=takes)
    step = (decode.last["seconds"] - longer.first_token_seconds) / STEPS
    return {
        "prefill_seconds": first.first_token_seconds,
        "prefill_cpu_seconds": computed,
        "added_seconds": answer.first_token_seconds,
        "step_seconds": step,
        "handing_seconds": answer.first_token_seconds - step,
        "again_seconds": longer.first_token_seconds,
        "added_cpu_seconds": busy,
        "computed_tokens": len(words) - answer.cached,
    }


def summary(
    rows: dict[int, dict[str, float]], bare: dict[int, tuple[float, float]]
) -> dict[str, object]:
    """Medians, and what was added as multiples of the bare copies of the same turns."""
    names = next(iter(rows.values()))
    found: dict[str, object] = {
        name: statistics.median(row[name] for row in rows.values()) for name in names
    }
    for place, name in ((0, "added_seconds"), (0, "handing_seconds"), (1, "added_cpu_seconds")):
        mine = {number: row[name] for number, row in rows.items()}
        found[f"{name} / copy"] = against(mine, {n: both[place] for n, both in bare.items()})
    for name in ("added_seconds", "handing_seconds"):
        within = [row[name] <= 1.5 * bare[number][0] + 0.010 for number, row in rows.items()]
        found[f"turns with {name} within 1.5 copies + 10 ms"] = f"{sum(within)} of {len(within)}"
    return found


def main() -> None:
    """Measure, print, and write JSON."""
    parse = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parse.add_argument("model", type=Path)
    parse.add_argument("--tokens", type=int, default=3000)
    parse.add_argument("--turns", type=int, default=9)
    parse.add_argument("--output", type=Path, default=OUTPUT)
    said = parse.parse_args()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory()))
        pool = {"bytes": "2GiB"}
        node = NodeProcess(folder, pool=pool, disk=False, memory=400_000)
        opened.enter_context(node)
        ours = {"node": str(node.path), "chunk": {"size": CHUNK}}
        path = str(folder / "example")
        other = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": path},
        }
        transfers = {
            "hexkv prefill": connector(ours, hands_over=True),
            "hexkv decode": connector(ours, takes_over=True),
            "example prefill": other,
            "example decode": other,
        }

        def begin(name: str) -> Engine:
            return Engine(said.model, folder / f"{name}.log", transfer=transfers[name], **SETTINGS)

        with ThreadPoolExecutor(len(transfers)) as threads:
            engines = dict(zip(transfers, threads.map(begin, transfers), strict=True))
        for engine in engines.values():
            opened.callback(engine.kill)
        bare = Shared(said.tokens * KV_BYTES)
        rows: dict[str, dict[int, dict[str, float]]] = {"hexkv": {}, "example": {}}
        copies: dict[int, tuple[float, float]] = {}
        for number in range(-1, said.turns):
            sides = list(rows) if number % 2 else list(rows)[::-1]
            for name in sides:
                words = prompt(f"handed over {name} {number}", said.tokens)
                row = turn(engines[f"{name} prefill"], engines[f"{name} decode"], words)
                if number >= 0:  # the first one warms up
                    rows[name][number] = row
            copies[number] = bare.seconds()
        del copies[-1]
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(Path()),
        "load": load(),
        "tokens": said.tokens,
        "bytes": said.tokens * KV_BYTES,
        "copy": dict(
            zip(
                ("seconds", "cpu_seconds"),
                map(statistics.median, zip(*copies.values(), strict=False)),
                strict=True,
            )
        ),
        **{name: summary(found, copies) for name, found in rows.items()},
    }
    text = json.dumps(result, indent=1)
    said.output.parent.mkdir(exist_ok=True)
    said.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
