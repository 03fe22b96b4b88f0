"""``python -m benchmarks.engines.vllm_push``: what vLLM hides of a transfer between two nodes.

Two nodes with a link of some rate between them, at which a proxy passes bytes on. One vLLM computes
a prompt in one step at the first, another one is asked for its first token at the second then.
Asked once more, with all of it at its own node, it takes what loading costs there: what it took
longer before is the part of the transfer that the prefill did not hide.

*asked for*: the decoder's node asks for the chunks once the prefill has ended. *step*: they are
pushed when the step ends. *layerwise*: the step's layers are pushed in parts while the later ones
are computed (``storing``). *bare*: as many bytes over the same kind of link by a socket, in the
same round. ``PYTHONPATH=tests/lib .venv/vllm/bin/python -m benchmarks.engines.vllm_push MODEL``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engines.prefill_decode import turn
from benchmarks.engines.vllm_ttft import CHUNK, KV_BYTES, SETTINGS
from benchmarks.fleet.push import BareLink, between
from benchmarks.rig.machine import describe, load
from engines.vllm.vllm_engines import PATIENT, Engine, connector, prompt
from peers.pushing import DECODE, PREFILL

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "vllm_push.json"
SIDES = ("asked for", "step", "layerwise")
TAKES = {"do_remote_prefill": True, "hexkv": {"prefill_node": PREFILL}}


def gives(side: str) -> dict[str, object]:
    """What a router tells the engine that prefills."""
    given: dict[str, object] = {"do_remote_decode": True, "do_remote_prefill": False}
    if side != "asked for":
        given["hexkv"] = {"decode_node": DECODE}
    return given


def quartiles(numbers: list[float]) -> list[float]:
    """Of at least two."""
    return [round(q, 3) for q in statistics.quantiles(numbers, n=4)]


def main() -> None:
    """Measure, print, and write JSON."""
    parse = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parse.add_argument("model", type=Path)
    parse.add_argument("--tokens", type=int, default=2048)
    parse.add_argument("--parts", type=int, default=8, help="of the layers")
    parse.add_argument("--turns", type=int, default=5)
    parse.add_argument("--rate", type=float, default=32e6, help="bytes a second of the link")
    parse.add_argument("--output", type=Path, default=OUTPUT)
    said = parse.parse_args()
    size = said.tokens * KV_BYTES
    frame = CHUNK * KV_BYTES // said.parts
    with ExitStack() as opened:
        slots = 9 * said.parts * (said.tokens // CHUNK + 2)  # three rounds
        nodes = between(said.rate, opened, slots=slots, frame=frame + 4096, disk=False)
        folder = Path(opened.enter_context(TemporaryDirectory()))
        shards = {"shards": {"layers": said.parts}, "chunk": {"size": CHUNK}} | PATIENT
        waits = {"wait_seconds": 60.0, "hold_seconds": 20.0}

        def begin(name: str) -> Engine:
            node = nodes[1] if name == "decode" else nodes[0]
            storing = {"storing": "layerwise"} if name == "layerwise" else {}
            transfer = connector({"node": str(node.path)} | shards, **waits, **storing)
            return Engine(said.model, folder / f"{name}.log", transfer=transfer, **SETTINGS)

        names = ("step", "layerwise", "decode")
        with ThreadPoolExecutor(len(names)) as threads:
            engines = dict(zip(names, threads.map(begin, names), strict=True))
        for engine in engines.values():
            opened.callback(engine.kill)
        bare = BareLink(size, said.rate, opened)
        rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for number in range(-1, said.turns):
            link = bare.seconds()
            for side in SIDES if number % 2 else SIDES[::-1]:
                words = prompt(f"{side} {number}", said.tokens)
                prefill = engines["layerwise" if side == "layerwise" else "step"]
                row = turn(prefill, engines["decode"], words, gives=gives(side), takes=TAKES)
                [again] = engines["decode"].generate(
                    words, tokens=1, extra={"kv_transfer_params": TAKES}
                )
                row["again_seconds"] = again.first_token_seconds
                row["bare_seconds"] = link
                shown = row["added_seconds"] - row["again_seconds"]
                row["hidden_share"] = 1 - shown / link
                if number >= 0:  # the first one warms up
                    rows[side].append(row)
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(Path()),
        "load": load(),
        "tokens": said.tokens,
        "bytes": size,
        "link_bytes_per_second": said.rate,
        "parts of the layers": said.parts,
        **{
            side: {name: quartiles([row[name] for row in some]) for name in some[0]}
            for side, some in rows.items()
        },
    }
    text = json.dumps(result, indent=1)
    said.output.parent.mkdir(exist_ok=True)
    said.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
