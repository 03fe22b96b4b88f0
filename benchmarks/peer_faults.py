"""``python -m benchmarks.peer_faults``: what a broken peer costs who reads from it.

A holder in a process of its own behind a proxy, one that has nothing, a directory in another one,
and an engine here that reads a prompt from it again and again, and one that nobody has, with a
deadline of one second. The holder and the directory are broken, or lie, in one way after the other.
Written down are the longest retrieve, what it took beyond its deadline, the longest that a thread
which sleeps meanwhile was late, and the seconds until all of the prompt comes again. Each row says
whether it kept the bounds; the exit code is 1 if one did not. Wrong bytes, and leases that are
left, end it at once. Run it with the tests' helpers:
``PYTHONPATH=tests/lib python -m benchmarks.peer_faults``.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Self

from benchmarks.beside import keep
from benchmarks.machine import describe
from benchmarks.measure import must
from configured import LAYOUT, computed, prompt
from directory_servers import SECRET, LyingDirectory
from hexkv.adapters.net.address import Address
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.heap_kv import HeapKV
from hexkv.ports import PrefixCache
from liars import PEERS
from peer_process import PeerProcess
from peering import configuration, directory_at, leases, serving
from processes import freeze

OUTPUT = Path(__file__).resolve().parent / "results" / "peer_faults.json"
DEADLINE = 1.0
OVERRUN = 0.05
"""Seconds beyond its deadline that a call may take, beside the machine's own noise."""

BACK = 30.0
"""Seconds after which all comes again."""

NAP = 0.01
NUMBER = 4
"""Of the prompt: five chunks and more."""

NOBODYS = 9
"""Of a prompt that nobody has, with another beginning."""

FAULTS = [
    "killed",
    "stopped",
    "a byte a second",
    "silent",
    "cut off",
    *(f"lies: {about}" for about in PEERS),
    "directory killed",
    "directory stopped",
    "directory says that all have all",
]


class Noise:
    """How late a thread that only sleeps wakes up here. A context manager."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = Event()
        self._thread = Thread(target=self._nap)

    def _nap(self) -> None:
        while True:
            start = time.monotonic()
            if self._over.wait(NAP):
                return
            self.seconds = max(self.seconds, time.monotonic() - start - NAP)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def read(engine: PrefixCache, number: int = NUMBER) -> tuple[int, float]:
    """Tokens that came, all right, and seconds."""
    tokens = prompt(number)
    target = HeapKV(LAYOUT, len(tokens))
    start = time.monotonic()
    got = engine.retrieve(tokens, target).hit_tokens
    seconds = time.monotonic() - start
    must(target.agrees(computed(tokens), got), "wrong KV")
    return got, seconds


class Fleet:
    """A directory, a holder behind a proxy, one that has nothing, and an engine that reads."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="peers-")))
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        self.directory = opened.enter_context(LyingDirectory("--secret-file", str(secret)))
        self._section = directory_at(self.directory)
        self.start()
        empty = configuration(slots=8) | {"directory": self._section | {"name": "empty"}}
        opened.enter_context(PeerProcess(empty))
        self.reader: PrefixCache = opened.enter_context(
            serving(
                tiers=[{"store": "memory", "promote": False}, {"store": "peers"}],
                directory=self._section | {"name": "reader"},
                deadlines={"lookup": 1.0, "retrieve": DEADLINE, "store": 60.0, "close": 60.0},
            )
        )

    def start(self) -> None:
        """Begin the holder, known by the address of the proxy in front of it."""
        with PeerProcess(configuration(slots=64)) as probe:
            place = Address.parse(probe.address)
        self.proxy = self._opened.enter_context(FaultProxy((place.host, place.port)))
        known = self._section | {"name": "holder", "address": self.proxy.address}
        listen = {"channel": "tcp", "settings": {"listen": str(place)}}
        own = configuration(slots=64) | {"directory": known, "peers": listen}
        self.holder = self._opened.enter_context(PeerProcess(own))
        self.holder.store(NUMBER)

    def faults(self) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
        """How each fault begins, and how it ends."""
        holder, proxy, directory = self.holder, self.proxy, self.directory
        found: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "killed": (holder.kill, self.start),
            "stopped": (lambda: freeze(holder.process), lambda: thaw(holder.process)),
            "a byte a second": (lambda: proxy.bandwidth(1.0), proxy.mend),
            "silent": (proxy.stall, proxy.mend),
            "cut off": (proxy.cut, proxy.mend),
            "directory killed": (directory.kill, directory.start),
            "directory stopped": (
                lambda: freeze(directory.process),
                lambda: thaw(directory.process),
            ),
            "directory says that all have all": (
                lambda: directory.lie(lying=True),
                lambda: directory.lie(lying=False),
            ),
        }
        for about in PEERS:
            found[f"lies: {about}"] = (partial(holder.lie, about), holder.lie)
        return found


def thaw(process: subprocess.Popen[str]) -> None:
    """Have a process go on that was stopped."""
    process.send_signal(signal.SIGCONT)


def case(name: str, seconds: float) -> dict[str, object]:
    """One way to break the holder, or the directory."""
    whole = len(prompt(NUMBER))
    with ExitStack() as opened:
        fleet = Fleet(opened)
        reader = fleet.reader
        _until(lambda: read(reader)[0] == whole)
        begin, end_of = fleet.faults()[name]
        begin()
        took: list[float] = []
        tokens = 0
        end = time.monotonic() + seconds
        with Noise() as noise:
            while time.monotonic() < end:
                # Whoever is asked for what nobody has, has it by a directory that lies.
                for number in (NUMBER, NOBODYS):
                    got, one = read(reader, number)
                    took.append(one)
                    tokens += got
        end_of()
        mended = time.monotonic()
        _until(lambda: read(reader)[0] == whole)
        back = time.monotonic() - mended
        _until(lambda: not leases(reader))
    overrun = max(0.0, max(took) - DEADLINE)
    return {
        "fault": name,
        "retrieves": len(took),
        "tokens": tokens,
        "longest_seconds": round(max(took), 4),
        "overrun_ms": round(overrun * 1000, 2),
        "noise_ms": round(noise.seconds * 1000, 2),
        "longer_than_100_ms": sum(one > 0.1 for one in took),
        "back_seconds": round(back, 2),
        "kept": overrun <= OVERRUN + noise.seconds and back <= BACK,
    }


def _until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not reached():
        must(time.monotonic() < end, "it does not come back")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="that each fault lasts")
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    machine = describe(asked.output.parent)
    rows = []
    for name in asked.fault:
        rows.append(case(name, asked.seconds))
        print(json.dumps(rows[-1]), flush=True)
    said = {
        "deadline_seconds": DEADLINE,
        "bounds": {"overrun_seconds_beside_noise": OVERRUN, "back_seconds": BACK},
        "machine": machine,
    }
    keep(asked.output, said, rows, "fault")
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
