"""``python -m benchmarks.fleet.peer_faults``: what a broken peer costs who reads from it.

A holder in a process of its own behind a proxy, one that has nothing, a directory in another one,
and an engine here that reads a prompt from it again and again, and one that no node has, with a
deadline of one second. The holder and the directory are broken, or lie, in one way after the other.
Written down are the longest retrieve, what it took beyond its deadline, the longest that a process
which only sleeps was late, and the seconds until all of the prompt comes again. Each row
shows whether it kept the bounds; the exit code is 1 if one did not. Wrong bytes, and leases that
are left, end it at once. Run it with the tests' helpers:
``PYTHONPATH=tests/lib python -m benchmarks.fleet.peer_faults``; ``--channel`` chooses channels.

The proxy is a network's, so over shared memory there are no rows of a network that fails. Over
NIXL and Mooncake's engine it carries questions and answers, and not the frames: those go by
the libraries' own connections, which ``tests/peers/test_peer_network.py`` cuts.
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
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.rig.beside import keep
from benchmarks.rig.machine import describe
from benchmarks.rig.measure import must
from configured import FRAME, LAYOUT, computed, prompt
from hexkv.adapters.net.address import Address
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.ports import PrefixCache
from peers.liars import PEERS
from peers.peer_process import PeerProcess
from peers.peering import configuration, directory_at, leases, serving
from processes import freeze
from servers.directory_servers import SECRET, LyingDirectory

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "peer_faults.json"
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

OF_THE_NETWORK = ["a byte a second", "silent", "cut off"]
OF_PEERS = ["killed", "stopped", *OF_THE_NETWORK, *(f"lies: {about}" for about in PEERS)]
OF_DIRECTORIES = ["directory killed", "directory stopped", "directory says that all have all"]
"""The channel has no part in these."""

FAULTS = {
    "tcp": [*OF_PEERS, *OF_DIRECTORIES],
    "shm": [name for name in OF_PEERS if name not in OF_THE_NETWORK],
    "nixl": OF_PEERS,
    "mooncake": OF_PEERS,
}

SLEEPER = f"""
import select, sys, time
latest = 0.0
while True:
    start = time.monotonic()
    if select.select([sys.stdin], [], [], {NAP})[0]:
        break
    latest = max(latest, time.monotonic() - start - {NAP})
print(latest)
"""


class Noise:
    """How late a process that only sleeps wakes up here. A context manager.

    In a process of its own: a call that keeps the interpreter from everybody is no noise.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SLEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        said, _nothing = self._process.communicate("over\n")
        self.seconds = float(said)


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
    """A directory, a holder behind a proxy, one that has nothing, and an engine that reads.

    Over shared memory there is no proxy.
    """

    def __init__(self, opened: ExitStack, channel: str) -> None:
        self._opened = opened
        self._channel = channel
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="peers-")))
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        self.directory = opened.enter_context(LyingDirectory("--secret-file", str(secret)))
        self._section = directory_at(self.directory)
        self.start()
        opened.enter_context(PeerProcess(self._process("empty", self._anywhere(), slots=8)))
        self.reader: PrefixCache = opened.enter_context(
            serving(
                tiers=[{"store": "memory", "promote": False}, {"store": "peers"}],
                directory=self._section | {"name": "reader"},
                pool=self._pool(64),
                peers=self._peers(self._anywhere()),
                deadlines={"lookup": 1.0, "retrieve": DEADLINE, "store": 60.0, "close": 60.0},
            )
        )

    def start(self) -> None:
        """Begin the holder, known by the address of the proxy in front of it."""
        place = known = self._anywhere()
        if self._channel != "shm":
            with PeerProcess(configuration(slots=64)) as probe:
                place = probe.address
            free = Address.parse(place)
            self.proxy = self._opened.enter_context(FaultProxy((free.host, free.port)))
            known = self.proxy.address
        own = self._process("holder", place, slots=64, address=known)
        self.holder = self._opened.enter_context(PeerProcess(own))
        self.holder.store(NUMBER)

    def _anywhere(self) -> str:
        return f"@hexkv-{token_hex(8)}" if self._channel == "shm" else "127.0.0.1:0"

    def _pool(self, slots: int) -> dict[str, object]:
        shared = {"provider": "shared"} if self._channel == "shm" else {}
        return {"bytes": slots * FRAME, **shared}

    def _peers(self, listen: str) -> dict[str, object]:
        return {"channel": self._channel, "settings": {"listen": listen}}

    def _process(self, name: str, listen: str, *, slots: int, **known: str) -> dict[str, object]:
        """The configuration of one of the others."""
        own: dict[str, object] = configuration() | {
            "pool": self._pool(slots),
            "directory": self._section | {"name": name, **known},
            "peers": self._peers(listen),
        }
        return own

    def faults(self) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
        """How each fault begins, and how it ends."""
        holder, directory = self.holder, self.directory
        found: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "killed": (holder.kill, self.start),
            "stopped": (lambda: freeze(holder.process), lambda: thaw(holder.process)),
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
        if self._channel != "shm":
            proxy = self.proxy
            found |= {
                "a byte a second": (lambda: proxy.bandwidth(1.0), proxy.mend),
                "silent": (proxy.stall, proxy.mend),
                "cut off": (proxy.cut, proxy.mend),
            }
        for about in PEERS:
            found[f"lies: {about}"] = (partial(holder.lie, about), holder.lie)
        return found


def thaw(process: subprocess.Popen[str]) -> None:
    """Have a process go on that was stopped."""
    process.send_signal(signal.SIGCONT)


def case(channel: str, name: str, seconds: float) -> dict[str, object]:
    """One way to break the holder, or the directory."""
    whole = len(prompt(NUMBER))
    with ExitStack() as opened:
        fleet = Fleet(opened, channel)
        reader = fleet.reader
        _until(lambda: read(reader)[0] == whole)
        begin, end_of = fleet.faults()[name]
        begin()
        took: list[float] = []
        tokens = 0
        end = time.monotonic() + seconds
        with Noise() as noise:
            while time.monotonic() < end:
                # A directory that lies names a holder for chunks that no node has.
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
        "channel": channel,
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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.peer_faults", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="that each fault lasts")
    parser.add_argument("--channel", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--fault", nargs="+", choices=FAULTS["tcp"], default=FAULTS["tcp"])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    machine = describe(asked.output.parent)
    rows = []
    for channel in asked.channel:
        for name in (one for one in FAULTS[channel] if one in asked.fault):
            rows.append(case(channel, name, asked.seconds))
            print(json.dumps(rows[-1]), flush=True)
    said = {
        "deadline_seconds": DEADLINE,
        "bounds": {"overrun_seconds_beside_noise": OVERRUN, "back_seconds": BACK},
        "machine": machine,
    }
    keep(asked.output, said, rows, "channel", "fault")
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
