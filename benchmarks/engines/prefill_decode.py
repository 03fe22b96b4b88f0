"""``python -m benchmarks.engines.prefill_decode``: the cost of handing a prompt over in vLLM.

One engine computes a prompt and is asked for one token, another one is asked for the first token
then. What the second one takes is what handing over adds to the prefill's own time. Part of that is
vLLM's own, which takes a request in and computes its last token: as much as the same request takes
from the second engine's own prefix cache, with hexkv switched off for it, and after as long a rest
while the first engine computes another prompt. Beside it, in turns: a copy of that much KV out of
shared memory, which is the least that it takes, and what ``--beside`` names: the same through
vLLM's ExampleConnector, through its NixlConnector (``--nixl``: a folder with the packages ``nixl``
and ``nixl-cu12``), or through LMCache's connector and daemon (``--lmcache``, as for
``benchmarks.engines.vllm_ttft``), with which all engines are in several processes. Two engines for
each take 5 GiB. ``PYTHONPATH=tests/lib .venv/vllm/bin/python -m ...``.
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
from typing import NamedTuple

import torch

from benchmarks.engines.lmcache_daemon import Daemon
from benchmarks.engines.vllm_ttft import KV_BYTES, SETTINGS, through
from benchmarks.rig.machine import describe, load
from benchmarks.rig.rounds import against
from engines.vllm.vllm_engines import Engine, agree, connector, prompt
from nodes import NodeProcess
from processes import free_port

CHUNK = 256
COPIES = 3
"""Bare ones in each turn."""

TOKENS = 63 * 32 + 1
"""Of which a prefix cache has all but the last, in blocks of 32."""

MOST_COPIES, SPARE = 1.5, 0.010
"""Copies, and seconds beside them, that handing over may add."""

OWN = {"kv_transfer_params": {"hexkv": {"read": False, "write": False}}}

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "prefill_decode.json"


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


class Side(NamedTuple):
    """A connector that hands prompts over."""

    prefill: Mapping[str, object]
    decode: Mapping[str, object]
    """vLLM's ``kv_transfer_config`` of both."""

    env: Mapping[str, str] = {}
    gives: Mapping[str, object] = {}
    """What a router tells the engine that prefills; what that one answers, it passes on."""


def turn(
    prefill: Engine,
    decode: Engine,
    words: Sequence[int],
    *,
    gives: Mapping[str, object] | None = None,
    takes: Mapping[str, object] | None = None,
) -> dict[str, float]:
    """One prompt, handed over; *gives* and *takes* are a router's to the one and to the other.

    Without *takes*, what the one answers is for the other.
    """
    said = {"kv_transfer_params": gives} if gives else None
    [first] = prefill.generate(words, tokens=1, extra=said)
    params = first.params if takes is None else takes
    [answer] = decode.generate(
        words, tokens=1, extra={"kv_transfer_params": params} if params else None
    )
    assert agree([answer], [first])
    return {
        "prefill_seconds": first.first_token_seconds,
        "prefill_cpu_seconds": prefill.last["cpu_seconds"],
        "added_seconds": answer.first_token_seconds,
        "added_cpu_seconds": decode.last["cpu_seconds"],
        "computed_tokens": len(words) - answer.cached,
    }


def from_own_cache(
    prefill: Engine, decode: Engine, words: Sequence[int], others: Sequence[int]
) -> tuple[float, float]:
    """Time to the first token of *words* that *decode* has itself, and CPU seconds of that.

    As in :func:`turn`, *prefill* has computed a prompt before, which is not measured.
    """
    prefill.generate(others, tokens=1, extra=OWN)
    [answer] = decode.generate(words, tokens=1, extra=OWN)
    assert answer.cached == len(words) - 1
    return answer.first_token_seconds, decode.last["cpu_seconds"]


def median(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of the first and of the second numbers."""
    first, second = map(statistics.median, zip(*pairs, strict=True))
    return first, second


def summary(
    rows: dict[int, dict[str, float]],
    bare: dict[int, tuple[float, float]],
    own: dict[int, tuple[float, float]],
) -> dict[str, object]:
    """Medians; the time added beside bare copies, and beyond vLLM's *own* part, turn by turn."""
    names = next(iter(rows.values()))
    found: dict[str, object] = {
        name: statistics.median(row[name] for row in rows.values()) for name in names
    }
    for place, name in enumerate(("added_seconds", "added_cpu_seconds")):
        copies = {number: pair[place] for number, pair in bare.items()}
        added = {number: row[name] for number, row in rows.items()}
        beyond = {number: added[number] - own[number][place] for number in added}
        found[f"{name} / copy"] = against(added, copies)
        found[f"{name} beyond own"] = quartiles(list(beyond.values()))
        found[f"({name} beyond own) / copy"] = against(beyond, copies)
        if place:  # the bound is one of time
            continue
        for said, taken in ((name, added), (f"{name} beyond own", beyond)):
            within = sum(taken[n] <= MOST_COPIES * copies[n] + SPARE for n in taken)
            found[f"turns with {said} within 1.5 copies + 10 ms"] = f"{within} of {len(taken)}"
    return found


def quartiles(numbers: Sequence[float]) -> dict[str, float]:
    """Of at least two."""
    names = ("low", "median", "high")
    return dict(zip(names, (round(q, 5) for q in statistics.quantiles(numbers, n=4)), strict=True))


def example(folder: Path) -> Side:
    """vLLM's example of a connector, through files in *folder*."""
    both = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "example")},
    }
    return Side(both, both)


def nixl(installed: Path | None) -> Side:
    """vLLM's connector over NIXL, which is in a folder of its own or in the environment."""
    both: dict[str, object] = {
        "kv_connector": "NixlConnector",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
    }
    roles = {"prefill": "kv_producer", "decode": "kv_consumer"}
    prefill, decode = (both | {"kv_role": role, "engine_id": n} for n, role in roles.items())
    env = {} if installed is None else {"PYTHONPATH": str(installed.resolve())}
    gives = {"do_remote_decode": True, "do_remote_prefill": False}
    return Side(prefill, decode, env | {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}, gives)


def main() -> None:
    """Measure, print, and write JSON."""
    parse = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parse.add_argument("model", type=Path)
    parse.add_argument("--tokens", type=int, default=TOKENS)
    parse.add_argument("--turns", type=int, default=9)
    others = ["example", "nixl", "lmcache"]
    parse.add_argument("--beside", nargs="*", default=others[:1], choices=others)
    parse.add_argument("--nixl", type=Path, help="a folder with NIXL in it")
    parse.add_argument("--lmcache", type=Path, help="a folder with LMCache in it")
    parse.add_argument("--output", type=Path, default=OUTPUT)
    said = parse.parse_args()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory()))
        pool = {"bytes": "2GiB"}
        node = NodeProcess(folder, pool=pool, disk=False, memory=400_000)
        opened.enter_context(node)
        ours = {"node": str(node.path), "chunk": {"size": CHUNK}}
        both = connector(ours, hands_over=True), connector(ours, takes_over=True)
        sides = {"hexkv": Side(*both)}
        if "example" in said.beside:
            sides["example"] = example(folder)
        if "nixl" in said.beside:
            sides["nixl"] = nixl(said.nixl)
        if "lmcache" in said.beside:
            daemon = opened.enter_context(Daemon(said.lmcache, folder / "daemon.log"))
            sides["lmcache"] = Side(through(daemon), through(daemon), daemon.environment)
        # In one process with LMCache's libraries vLLM does not start; alike is compared with alike.
        several = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int("lmcache" in sides))}

        def begin(name: str, role: str) -> Engine:
            side, port = sides[name], {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            transfer = side.prefill if role == "prefill" else side.decode
            env, log = {**side.env, **port, **several}, folder / f"{name} {role}.log"
            # Others' decoders are not asked a second time.
            own = {"enable_prefix_caching": (name, role) == ("hexkv", "decode")}
            return Engine(said.model, log, transfer=transfer, env=env, **SETTINGS | own)

        names = [(name, role) for name in sides for role in ("prefill", "decode")]
        with ThreadPoolExecutor(2) as threads:
            engines = dict(zip(names, threads.map(begin, *zip(*names, strict=True)), strict=True))
        for engine in engines.values():
            opened.callback(engine.kill)
            engine.pause()  # NIXL's threads take a core each whether there is anything to do or not
        bare = Shared(said.tokens * KV_BYTES)
        rows: dict[str, dict[int, dict[str, float]]] = {name: {} for name in sides}
        copies: dict[int, tuple[float, float]] = {}
        own: dict[int, tuple[float, float]] = {}
        for number in range(-1, said.turns):
            for name in list(rows) if number % 2 else list(rows)[::-1]:
                words = prompt(f"handed over {name} {number}", said.tokens)
                prefill, decode = (engines[name, role] for role in ("prefill", "decode"))
                with prefill.awake(), decode.awake():
                    row = turn(prefill, decode, words, gives=sides[name].gives)
                    if name == "hexkv":
                        others = prompt(f"meanwhile {number}", said.tokens)
                        own[number] = from_own_cache(prefill, decode, words, others)
                if number >= 0:  # the first one warms up
                    rows[name][number] = row
            copies[number] = median([bare.seconds() for _ in range(COPIES)])
        del copies[-1], own[-1]
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(Path()),
        "load": load(),
        "tokens": said.tokens,
        "bytes": said.tokens * KV_BYTES,
        "engines": "in several processes" if "lmcache" in sides else "in one process each",
        "copy": dict(zip(("seconds", "cpu_seconds"), median([*copies.values()]), strict=True)),
        "own": dict(zip(("seconds", "cpu_seconds"), median([*own.values()]), strict=True)),
        **{name: summary(found, copies, own) for name, found in rows.items()},
    }
    text = json.dumps(result, indent=1)
    said.output.parent.mkdir(exist_ok=True)
    said.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
