"""``python -m benchmarks.fleet.peers``: chunks read from a peer through whole engines.

Two processes with an engine each. This one has a tier of peers, and a memory tier that keeps none
of their chunks: each retrieve reads all of a prompt from the other one, verifies it, and copies it
to tensors. Beside it the same bytes through raw sockets (one connection, ``sendall`` and
``recv_into``), with the same copy: unverified, and with the checksum that hexkv verifies. CPU
seconds are those of both ends.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from typing import cast

import torch
import xxhash

from benchmarks.rig.beside import Rows, options, run
from benchmarks.rig.engines import prompt
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.tiers.lmserver import process, receive
from hexkv.core.engine.engine import CacheEngine
from hexkv.core.tiers.local import LocalChunks
from hexkv.kernels import ContiguousKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load as configured
from hexkv.ports import DType, KVLayout, Namespace, frame_bytes

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "peers.json"
CHUNK = 256
CASES = {"4 MiB": (8, 16), "256 KiB": (1, 64)}
"""Layers, for chunks as a large model's are and as a small one's; and chunks of a prompt."""

POOL = 256 << 20
"""Bytes of a pool at least: of one that has room for two prompts a call gets a quarter."""

SPEED = 0.9


def heads_of(layers: int) -> int:
    """Heads of 128 in each layer: fewer in a small model."""
    return 4 if layers > 1 else 2


def layout_of(layers: int) -> KVLayout:
    """The layout of some layers."""
    return KVLayout.attention(DType.BFLOAT16, layers=layers, heads=heads_of(layers), key_width=128)


def engine_of(label: str, peers: Sequence[str], name: str) -> CacheEngine:
    """An engine that serves its memory, and reads from *peers*."""
    layers, count = CASES[label]
    layout = layout_of(layers)
    frame = frame_bytes(layout.chunk_bytes(CHUNK))
    wanted = {
        "pool": {"bytes": max((2 * count + 4) * frame, POOL)},
        "tiers": [{"store": "memory", "promote": False}, *([{"store": "peers"}] if peers else [])],
        "directory": {
            "adapter": "static",
            "name": name,
            "settings": {"over_channel": True, "peers": list(peers)},
        },
        "peers": {"channel": "tcp", "serve": {"bytes": (count + 1) * frame}},
    }
    return build(configured(None, {}, wanted), Namespace("bench", layout))


def window(label: str, tensors: list[list[torch.Tensor]]) -> ContiguousKV:
    """A window on *tensors*."""
    return ContiguousKV(layout_of(CASES[label][0]), tensors)


def tensors_of(label: str) -> list[list[torch.Tensor]]:
    """Noise, in the shape of a prompt's KV."""
    layers, count = CASES[label]
    shape = 1, heads_of(layers), count * CHUNK, 128
    return [[torch.rand(shape).to(torch.bfloat16) for _ in "kv"] for _ in range(layers)]


def other_end(label: str) -> None:
    """The peer: stores a prompt, and serves it until it is ended."""
    tokens = prompt(CASES[label][1] * CHUNK)
    with engine_of(label, [], "holder") as engine:
        stored = engine.store(tokens, window(label, tensors_of(label)))
        must(stored.stored_tokens == len(tokens), f"not stored: {stored}")
        chunks = engine._chunks
        must(isinstance(chunks, LocalChunks), "tiers of its own")
        peers = cast("LocalChunks", chunks).stack.runtime.peers
        must(peers is not None, "it serves nobody")
        print(peers.member.address if peers else "", flush=True)
        Event().wait()


def rows(label: str, ends: ExitStack) -> Rows:
    """An engine that reads from another one, beside raw sockets and the copy."""
    layers, count = CASES[label]
    layout = layout_of(layers)
    payload = layout.chunk_bytes(CHUNK)
    size = frame_bytes(payload)
    tokens = prompt(count * CHUNK)
    address, peer = ends.enter_context(process(__spec__.name, "--other-end", label))
    reader = ends.enter_context(engine_of(label, [address.strip()], "reader"))
    target = tensors_of(label)
    into = window(label, target)

    def retrieve() -> None:
        got = reader.retrieve(tokens, into)
        must(got.hit_tokens == len(tokens), f"not read: {got}")

    line, far = ends.enter_context(
        process("benchmarks.fleet.channels", "--far-end", str(count), str(size))
    )
    raw = ends.enter_context(socket.create_connection(("127.0.0.1", int(line))))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frames = [memoryview(bytearray(os.urandom(size))) for _ in range(count)]
    source = [torch.rand(plane.shape).to(plane.dtype) for layer in target for plane in layer]
    planes = [plane for layer in target for plane in layer]

    def bare(*, verify: bool) -> None:
        raw.sendall(bytes([count]))
        for frame in frames:
            receive(raw, frame)
            if verify:
                xxhash.xxh3_128_digest(frame)
        for one, other in zip(planes, source, strict=True):
            one.copy_(other)

    name = f"a retrieve of {count} chunks of {label}"
    verified = f"{name}, the checksum in both"
    sides = {
        name: ("recv_into, sendall and the copy", False, SPEED),
        verified: ("recv_into, sendall, XXH3 and the copy", True, None),
    }
    found = [
        Comparison(
            name,
            limit,
            payload * count,
            Turn(retrieve),
            Turn(partial(bare, verify=verify)),
            goal,
        )
        for name, (limit, verify, speed) in sides.items()
        for goal in (Goal("speed", speed), Goal("cpu"))
    ]
    return found, [peer, far]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, or be another end. The exit code: 3 if a goal was missed."""
    parser = options("benchmarks.fleet.peers", __doc__, OUTPUT)
    parser.add_argument("--other-end", help=argparse.SUPPRESS)
    parser.add_argument("--chunk", nargs="+", choices=CASES, default=list(CASES))
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if asked.other_end:
        other_end(asked.other_end)
        return 0
    return run(asked, (partial(rows, label) for label in asked.chunk))


if __name__ == "__main__":
    sys.exit(main())
