"""``python -m benchmarks.engines.vllm_peers``: first token of a prompt that another vLLM computed.

Two real vLLM engines with memory and a tier of peers each, a directory, and no shared store. In
every round the second one is asked for a prompt that no node has (*computed*), for one that the
first one has just computed (*peer*), and for that once more (*memory*), in turns of order. A
third engine without a connector computes, too (*plain*). Run it with vLLM's environment:
``PYTHONPATH=tests/lib .venv/vllm/bin/python -m benchmarks.engines.vllm_peers``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.engines.vllm_ttft import CHUNK, KV_BYTES, SETTINGS, ask, summary
from benchmarks.rig.machine import describe, load
from benchmarks.rig.rounds import against
from engines.vllm.vllm_engines import E2E, PATIENT, ROOT, Engine, agree, connector, prompt
from servers.directory_servers import SECRET, DirectoryProcess

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "vllm_peers.json"


def with_peers(directory: DirectoryProcess, secret: Path) -> dict[str, object]:
    """vLLM's ``kv_transfer_config`` for an engine that serves peers, and reads from them."""
    known = {"secret_file": str(secret)}
    own: dict[str, object] = {
        "pool": {"bytes": "1GiB"},
        "tiers": [{"store": "memory"}, {"store": "peers", "settings": {"locate": 30.0}}],
        "directory": {
            "adapter": "embedded",
            "settings": known | {"address": str(directory.address)},
        },
        "peers": {"channel": "tcp", "settings": known},
    }
    return dict(connector(PATIENT | own))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write it down. The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines.vllm_peers", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--chunks", type=int, default=8, help=f"of {CHUNK} tokens in a prompt")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    model = ROOT / "build" / "tiny-llama"
    subprocess.run([sys.executable, str(E2E / "tiny_llama.py"), str(model)], check=True)
    machine = describe(ROOT)
    length = asked.chunks * CHUNK + 4
    rows: dict[str, dict[int, dict[str, float]]] = {
        side: {} for side in ("plain", "computed", "peer", "memory")
    }
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        directory = opened.enter_context(DirectoryProcess("--secret-file", str(secret)))
        transfer = with_peers(directory, secret)
        first, second = (
            opened.enter_context(Engine(model, folder / name, transfer=transfer, **SETTINGS))
            for name in ("first", "second")
        )
        plain = opened.enter_context(Engine(model, folder / "plain", **SETTINGS))
        for number in range(asked.rounds + 1):
            shared = prompt(f"shared {number}", length)
            _, answer = ask(first, shared)
            first.flush()
            time.sleep(0.2)  # until it is reported: each 50 ms at most
            turns = [
                ("plain", plain, shared),
                ("computed", second, prompt(f"new {number}", length)),
                ("peer", second, shared),
            ]
            for side, engine, words in turns[number % 3 :] + turns[: number % 3]:
                took, got = ask(engine, words)
                if words is shared:
                    assert agree([got], [answer]), side
                rows[side][number] = took
                engine.rest()
                if side == "peer":
                    rows["memory"][number], got = ask(second, shared)
                    assert agree([got], [answer]), "memory"
                    second.rest()
    for row in rows.values():
        del row[0]  # it warms up
    want = {"plain": 0, "computed": 0, "peer": asked.chunks * CHUNK, "memory": asked.chunks * CHUNK}
    for side, row in rows.items():
        assert {took["cached_tokens"] for took in row.values()} == {want[side]}, side
    times = {
        side: {number: took["ttft_seconds"] for number, took in row.items()}
        for side, row in rows.items()
    }
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_after": load()},
        "prompt_tokens": length,
        "kv_bytes": asked.chunks * CHUNK * KV_BYTES,
        "sides": {side: summary([*row.values()]) for side, row in rows.items()},
        "compared": {
            "peer / memory": against(times["peer"], times["memory"]),
            "peer / computed": against(times["peer"], times["computed"]),
            "computed / plain": against(times["computed"], times["plain"]),
        },
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["compared"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
