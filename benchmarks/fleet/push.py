"""``python -m benchmarks.fleet.push``: how much of a transfer between two nodes a prefill hides.

Two nodes in processes of their own, and a client of each here. The one at the prefiller's node
"computes" a prompt in steps, as an accelerator would: it waits, and then publishes the step's
chunks. The other one takes them: once all of them are at its node, it copies them out. What counts
is the time from the prefill's end until then, which is what handing over adds to the first token.

*pushed*: the prefiller names the decoder's node, which is pushed each step's chunks. *asked for*:
the decoder's node asks for all of them once the prefill has ended. *bare*: as many bytes over the
same kind of link by a socket, into memory, in the same round. The link has a rate, at which a proxy
passes bytes on; a row without one is the loopback device alone. A step takes ``--slower`` times as
long as its bytes on the link. With ``--layers`` a chunk is in parts of its layers, each published
as soon as it is computed. Run it with the tests' helpers:
``PYTHONPATH=tests/lib python -m benchmarks.fleet.push``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from benchmarks.rig.machine import describe, load
from benchmarks.rig.measure import WrongResult, must
from benchmarks.rig.rounds import against
from hexkv.adapters.net.address import Address
from hexkv.adapters.node.client.client import NodeClient
from hexkv.contracts.chunk_cache._base import soon
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.ports import ChunkSpec, DType, KVLayout, frame_bytes
from nodes import NodeProcess
from peers.pushing import DECODE, PREFILL, sections
from processes import held_port

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "push.json"
TOKENS = 256
LAYERS = 8
LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=LAYERS, heads=2, key_width=64)
CHUNK = LAYOUT.chunk_bytes(TOKENS)
FRAME = frame_bytes(CHUNK)
TICK = os.sysconf("SC_CLK_TCK")


class BareLink:
    """A socket over a link of some rate, and memory at its end."""

    def __init__(self, size: int, rate: float | None, opened: ExitStack) -> None:
        self._size = size
        self._into = memoryview(bytearray(size))
        self._from = memoryview(bytes(bytearray(os.urandom(1)) * size))
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        place = listener.getsockname()[:2]
        if rate is not None:
            proxy = opened.enter_context(FaultProxy(place))
            proxy.bandwidth(rate)
            place = proxy.host, proxy.port
        self._near = opened.enter_context(socket.create_connection(place))
        self._far = opened.enter_context(listener.accept()[0])

    def seconds(self) -> float:
        """How long all bytes take."""
        start = time.perf_counter()
        sender = Thread(target=self._near.sendall, args=(self._from,))
        sender.start()
        at = 0
        while at < self._size:
            at += self._far.recv_into(self._into[at:])
        sender.join()
        return time.perf_counter() - start


def cpu(node: NodeProcess) -> float:
    """CPU seconds that a node took so far."""
    stat = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICK


def between(
    rate: float | None, opened: ExitStack, *, slots: int, frame: int = FRAME, **more: object
) -> list[NodeProcess]:
    """The prefiller's node and the decoder's, and a link of that *rate* between them."""
    folder = Path(opened.enter_context(TemporaryDirectory()))
    here, there = (f"127.0.0.1:{held_port()}" for _ in range(2))
    known = there
    if rate is not None:
        place = Address.parse(there)
        proxy = opened.enter_context(FaultProxy((place.host, place.port)))
        proxy.bandwidth(rate)
        known = proxy.address
    wanted = {
        PREFILL: sections(PREFILL, here, known, frame=frame, memory=slots),
        DECODE: sections(DECODE, there, here, frame=frame, memory=slots),
    }
    wanted[DECODE]["directory"]["address"] = known
    # Whatever a slow link takes is no reason to give up.
    wanted[DECODE]["peers"]["serve"] = {"bytes": slots * frame // 2}
    nodes = []
    for name, own in wanted.items():
        (folder / name).mkdir()
        node = NodeProcess(folder / name, slots=slots, memory=slots, frame=frame, **own | more)
        nodes.append(opened.enter_context(node))
    return nodes


class Pair:
    """Two nodes with a link between them, and a client of each."""

    def __init__(self, rate: float | None, slots: int, opened: ExitStack) -> None:
        self.nodes = between(rate, opened, slots=slots)
        self.clients: list[NodeClient] = [
            opened.enter_context(closing(node.client())) for node in self.nodes
        ]

    def turn(
        self, name: str, chunks: int, steps: int, pause: float, *, layers: int, pushed: bool
    ) -> float:
        """Hand over one prompt; seconds from the end of the prefill."""
        prefill, decode = self.clients
        layout = part_of_layers(layers)
        identity = json.dumps({"model": "benchmark", "layout": layout.describe()})
        # Step by step, and in each part by part: those computed at the same time.
        chunks, steps = chunks * layers, steps * layers
        pause /= layers
        specs = [
            ChunkSpec(chunk_key(f"{name} {i}"), identity, layout, TOKENS) for i in range(chunks)
        ]
        keys = [spec.key for spec in specs]
        prefill.announce(name, "prefill", keys, 600.0, soon())
        prefill.push_to(DECODE if pushed else "", keys if pushed else (), "", 0.0, soon())
        each = chunks // steps
        for first in range(0, chunks, each):
            time.sleep(pause)
            some = specs[first : first + each]
            leases = prefill.allocate(some, "prefill", soon())
            must(len(leases) == each, "there is no memory")
            for index, lease in enumerate(leases, start=first):
                lease.payload[:8] = index.to_bytes(8)
            end = time.perf_counter()
            prefill.publish(leases, keys[first - 1] if first else None, soon()).wait(soon())
            for lease in leases:
                lease.release()
        prefill.withdraw(name, soon())
        decode.seek(keys, "decode", PREFILL, soon())
        left: Sequence[bool] = [True]
        while any(left):
            left = decode.expect(keys, "decode", soon())
            keys = [key for key, still in zip(keys, left, strict=True) if still]
        into = bytearray(layout.chunk_bytes(TOKENS))
        with decode.hold(specs, "decode", soon()) as hold:
            hold.wait(soon())
            for index, got in enumerate(hold.leases):
                if got is None:
                    raise WrongResult(f"chunk {index} of {chunks} did not come")
                into[:] = got.payload
                must(int.from_bytes(into[:8]) == index, "another chunk")
        took = time.perf_counter() - end
        for client in self.clients:
            client.forget([spec.key for spec in specs], soon())
        return took


def part_of_layers(parts: int) -> KVLayout:
    """The layout of one of some parts of a chunk."""
    count = LAYERS // parts
    return KVLayout.attention(DType.BFLOAT16, layers=count, heads=2, key_width=64)


def measure(
    rate: float | None, steps: int, layers: int, said: argparse.Namespace
) -> dict[str, object]:
    """One row: a link and a number of steps."""
    size = said.chunks * FRAME
    with ExitStack() as opened:
        pair = Pair(rate, 4 * said.chunks * layers, opened)
        bare = BareLink(size, rate, opened)
        bare.seconds()
        seconds = statistics.median(bare.seconds() for _ in range(3))
        pause = said.slower * seconds / steps
        rows: dict[str, dict[int, float]] = {"bare": {}, "pushed": {}, "asked for": {}}
        spent = dict.fromkeys(("pushed", "asked for"), 0.0)
        for number in range(-1, said.rounds):
            sides = list(rows) if number % 2 else list(rows)[::-1]
            for side in sides:
                before = sum(map(cpu, pair.nodes))
                if side == "bare":
                    rows[side][number] = bare.seconds()
                    continue
                name = f"{side} {number}"
                rows[side][number] = pair.turn(
                    name,
                    said.chunks,
                    steps,
                    pause,
                    layers=layers,
                    pushed=side == "pushed",
                )
                spent[side] += sum(map(cpu, pair.nodes)) - before
        for row in rows.values():
            del row[-1]  # it warms up
    within = [rows["pushed"][n] <= 1.5 * rows["bare"][n] + 0.010 for n in range(said.rounds)]
    hidden = [1 - rows["pushed"][n] / rows["bare"][n] for n in range(said.rounds)]
    return {
        "link_bytes_per_second": rate,
        "steps": steps,
        "parts of the layers": layers,
        "bytes": size,
        "step_seconds": round(pause, 4),
        **{
            f"{side}_seconds": [round(q, 4) for q in statistics.quantiles(row.values(), n=4)]
            for side, row in rows.items()
        },
        "hidden share of the bare transfer": [
            round(q, 3) for q in statistics.quantiles(hidden, n=4)
        ],
        "pushed / bare": against(rows["pushed"], rows["bare"]),
        "asked for / bare": against(rows["asked for"], rows["bare"]),
        "within 1.5 bare + 10 ms": f"{sum(within)} of {len(within)}",
        "nodes' CPU seconds per GB": {
            side: round(took / (size * (said.rounds + 1)) * 1e9, 3) for side, took in spent.items()
        },
    }


def main() -> None:
    """Measure, print, and write JSON."""
    parse = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--chunks", type=int, default=32, help=f"of {CHUNK:,} bytes")
    parse.add_argument("--rounds", type=int, default=7)
    parse.add_argument("--slower", type=float, default=1.5, help="than the link")
    parse.add_argument("--rates", type=float, nargs="*", default=[64e6, 0], help="0: no limit")
    parse.add_argument("--steps", type=int, nargs="*", default=[1, 8, 16])
    parse.add_argument("--layers", type=int, nargs="*", default=[1], help=f"parts of {LAYERS}")
    parse.add_argument("--output", type=Path, default=OUTPUT)
    said = parse.parse_args()
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(Path()),
        "slower": said.slower,
        "rows": [
            measure(rate or None, steps, layers, said)
            for rate in said.rates
            for steps in said.steps
            for layers in said.layers
        ],
        "load": load(),
    }
    text = json.dumps(result, indent=1)
    said.output.parent.mkdir(exist_ok=True)
    said.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
