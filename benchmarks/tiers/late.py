"""Servers that miss a call's deadline: what the call gives then, and after how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Protocol

from benchmarks.rig.engines import Buffers
from benchmarks.rig.measure import Spread, must
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    KEY_BYTES,
    ChunkKey,
    Deadline,
    Hit,
    Item,
    ReadOutcome,
    Sink,
    Stored,
    WriteOutcome,
)

LATE = 0.25
"""Seconds of a deadline that the server misses."""

_PATIENCE = 60.0
_SIZE = 32 << 10
_CHUNKS = 4
_TRICKLE = 16 << 10
"""Bytes per second that come from a server that answers a little at a time."""

_ROUNDS = 3


class Server(Protocol):
    """A process that can be stopped where it is."""

    port: int

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


class Closing(Protocol):
    """The measurements of a store, and the end of its connections."""

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]: ...

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]: ...

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]: ...

    def close(self) -> None: ...


def late_reads(
    stores: Mapping[str, Callable[[str], Closing]], server: Server
) -> Iterator[dict[str, object]]:
    """Reads of a batch by each of *stores*, with a deadline of ``LATE`` seconds.

    Args:
        stores: opens one at ``host:port``.
        server: theirs.
    """
    clock = SystemClock()
    keys = [ChunkKey(bytes([254]) + i.to_bytes(KEY_BYTES - 1, "big")) for i in range(_CHUNKS)]
    frames = [memoryview(bytearray(_SIZE)) for _ in keys]

    def read(store: Closing, seconds: float) -> list[object]:
        return list(store.read(keys, Buffers(frames), Deadline.after(clock, seconds)))

    def write(store: Closing) -> None:
        items = [Item(key, frame) for key, frame in zip(keys, frames, strict=True)]
        outcomes = store.write(items, Deadline.after(clock, _PATIENCE))
        must(list(outcomes) == [Stored(_SIZE)] * _CHUNKS, "not stored")

    def stopped(store: Closing, opened: ExitStack) -> None:
        must(read(store, _PATIENCE) == [Hit(_SIZE)] * _CHUNKS, "not read")
        stopped_before(store, opened)

    def stopped_before(_: Closing, opened: ExitStack) -> None:
        server.freeze()
        opened.callback(server.thaw)

    def trickles(store: Closing, opened: ExitStack) -> None:
        proxy.bandwidth(_TRICKLE)
        opened.callback(proxy.mend)
        # The proxy waits for the next bytes already, and takes them as they come.
        store.contains(keys[:1], Deadline.after(clock, _PATIENCE))

    with FaultProxy(("127.0.0.1", server.port)) as proxy:
        for opening in stores.values():
            with closing(opening(proxy.address)) as store:
                write(store)
        for trouble, begin in {
            "stopped": stopped,
            "stopped before there was a connection": stopped_before,
            "answers a little at a time": trickles,
        }.items():
            for name, opening in stores.items():
                taken, outcomes = [], []
                for _ in range(_ROUNDS):
                    with closing(opening(proxy.address)) as store, ExitStack() as opened:
                        begin(store, opened)
                        start = time.perf_counter()
                        outcomes = read(store, LATE)
                        taken.append(time.perf_counter() - start)
                yield {
                    "server": trouble,
                    "client": name,
                    "chunks": _CHUNKS,
                    "size": _SIZE,
                    "deadline": LATE,
                    "seconds": asdict(Spread.of(taken)),
                    "outcomes": [type(outcome).__name__ for outcome in outcomes],
                }
