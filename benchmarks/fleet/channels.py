"""``python -m benchmarks.fleet.channels``: channels of peers beside the bare way of the same bytes.

The other end has a process of its own, and one connection. The bare side of TCP is a loop of
``sendall`` and ``recv_into`` that asks with one byte, that of shared memory a loop of ``memmove``.
A call of one frame asks the peer first, which no bare loop does: rows with a request each have
beside them a loop that sends a message, waits until the other process sends it back, and copies;
by NIXL and Mooncake's engine it asks afterwards, too, whether what it read was leased until then.
Of these two the huge pages of both other processes are noted: the system gives them where it has
some left, and a copy out of small pages takes up to 1.7 times as long. CPU seconds are those of
both ends.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.rig.beside import Rows, options, run
from benchmarks.rig.engines import buffers
from benchmarks.rig.measure import Comparison, Goal, Turn, WrongResult, must
from benchmarks.tiers.lmserver import process, receive
from hexkv.adapters.mooncake.channel import EngineMemory
from hexkv.adapters.nixl.memory import made
from hexkv.contracts.channel.apart import PeerApart, Recipe, opened
from hexkv.contracts.channel.blocks import BlockLease, Blocks
from hexkv.contracts.doubles import chunk_key
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    PAGE,
    Deadline,
    Destination,
    Hit,
    MemoryProvider,
    Part,
    Peer,
    TransferChannel,
)

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "channels.json"
SECRET = "of all peers in here"
SIZES = {"4 MiB": ((4 << 20) + PAGE, 16), "256 KiB": ((256 << 10) + PAGE, 64)}
"""Frames as a large model's chunks are, and as a small one's; and how many a call reads."""

SPEED, CPU = 0.9, 1.15

_ASK = 76
"""Bytes of a question about one frame, and of the answer."""


def far_end(count: int, size: int) -> None:
    """The bare side's other process: sends as many of its buffers as each byte asks for."""
    with buffers(count, size) as slots, socket.create_server(("127.0.0.1", 0)) as listener:
        for slot in slots:
            slot[:] = os.urandom(size)
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        given = 0
        while asked := peer.recv(1):
            for _ in range(asked[0]):
                peer.sendall(slots[given % count])
                given += 1


def far_echo(family: int, size: int) -> None:
    """Another process of a bare side: sends messages of *size* bytes back, over TCP or Unix."""
    address = ("127.0.0.1", 0) if family == socket.AF_INET else f"\0hexkv-echo-{os.getpid()}"
    with socket.socket(socket.AddressFamily(family)) as listener:
        listener.bind(address)
        listener.listen()
        said = listener.getsockname()
        print(said[1] if family == socket.AF_INET else said[1:].decode(), flush=True)
        peer, _ = listener.accept()
        without_delay(peer)
        message = bytearray(size)
        while peer.recv_into(message, 0, socket.MSG_WAITALL):
            peer.sendall(message)


def without_delay(sock: socket.socket) -> None:
    """Have a TCP socket send at once."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def round_trips(family: socket.AddressFamily, ends: ExitStack) -> tuple[Callable[[], None], int]:
    """What makes one round trip of small messages to another process, and that process."""
    line, far = ends.enter_context(
        process(__spec__.name, "--far-echo", str(int(family)), str(_ASK))
    )
    mine = ends.enter_context(socket.socket(family))
    unix = family == socket.AF_UNIX
    mine.connect(f"\0{line.strip()}" if unix else ("127.0.0.1", int(line)))
    without_delay(mine)
    message = bytearray(_ASK)

    def ask() -> None:
        mine.sendall(message)
        mine.recv_into(message, 0, socket.MSG_WAITALL)

    return ask, far


class Landing:
    """A sink over leases that were used before."""

    def __init__(self, leases: Sequence[BlockLease]) -> None:
        self.leases = leases

    def room(self, index: int, size: int) -> Destination | None:
        """Always the same block for a part."""
        must(size == len(self.leases[index].frame), "a frame of another size")
        return Destination(self.leases[index], self.leases[index].frame)

    def filled(self, index: int, upto: int) -> None:
        """No reader looks at it before it is there."""


@contextmanager
def leased(blocks: Blocks, count: int) -> Iterator[list[BlockLease]]:
    """Leases on *count* blocks."""
    leases = [lease for _ in range(count) if (lease := blocks.lease("mine")) is not None]
    must(len(leases) == count, "too few blocks")
    try:
        yield leases
    finally:
        for lease in leases:
            lease.release()


def reading(
    channel: TransferChannel, peer: Peer, sink: Landing, names: Sequence[str], size: int, each: int
) -> Turn:
    """Read all of *names*, *each* in one call."""
    clock = SystemClock()
    parts = [Part(chunk_key(name)) for name in names]

    def read() -> None:
        for start in range(0, len(parts), each):
            some = parts[start : start + each]
            outcomes = channel.read(peer, some, sink, Deadline.after(clock, 60))
            if list(outcomes) != [Hit(size)] * len(some):  # its text takes 2 us a frame
                raise WrongResult(f"not read: {outcomes}")

    return Turn(read)


def huge(pid: int) -> float:
    """MiB of huge pages that a process has of its own."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("AnonHugePages:")) / 1024


class Rig:
    """A channel, the peer that it reads from, and leases of its own for what it reads."""

    def __init__(self, recipe: Recipe, label: str, ends: ExitStack) -> None:
        self.size, self.count = SIZES[label]
        self.names = [f"c{i}" for i in range(self.count)]
        self.label = label
        self.apart = ends.enter_context(PeerApart(recipe, self.size, *self.names))
        self.channel, self.blocks = ends.enter_context(opened(recipe, self.size, self.count))
        self.mine = ends.enter_context(leased(self.blocks, self.count))
        self.name = recipe.channel

    def rows(
        self,
        limit: str,
        bare: Callable[[], object],
        *goals: Goal,
        one_by_one: Callable[[], object] | None = None,
        far: int | None = None,
    ) -> list[Comparison]:
        """All frames in one call, and one after the other, beside *bare*.

        With *one_by_one* the latter beside that, too: *bare* makes fewer round trips. *far* is the
        process whose memory *bare* reads, if it reads any.
        """

        def note() -> dict[str, float]:
            return {} if far is None else {"huge": huge(self.apart.pid), "bare huge": huge(far)}

        def row(each: int, goal: Goal, beside: Callable[[], object], suffix: str) -> Comparison:
            name = f"{self.name}, {self.count} frames of {self.label}, {each} to a call{suffix}"
            sink = Landing(self.mine)
            turn = reading(self.channel, self.apart.peer, sink, self.names, self.size, each)
            by = f"{limit}{suffix}"
            return Comparison(name, by, self.size * self.count, turn, Turn(beside), goal, note)

        found = [row(each, goal, bare, "") for each in (self.count, 1) for goal in goals]
        if one_by_one is not None:
            found += [row(1, goal, one_by_one, ", a request each") for goal in goals]
        return found


def over_tcp(label: str, ends: ExitStack) -> Rows:
    """The channel over TCP beside raw sockets."""
    rig = Rig(Recipe("tcp", {"secret": SECRET}, memory="mmap"), label, ends)
    command = (__spec__.name, "--far-end", str(rig.count), str(rig.size))
    line, far = ends.enter_context(process(*command))
    raw = ends.enter_context(socket.create_connection(("127.0.0.1", int(line))))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def bare() -> None:
        raw.sendall(bytes([rig.count]))
        for lease in rig.mine:
            receive(raw, lease.frame)

    def one_by_one() -> None:
        for lease in rig.mine:
            raw.sendall(bytes([1]))
            receive(raw, lease.frame)

    goals = (Goal("speed", SPEED), Goal("cpu", CPU))
    rows = rig.rows("recv_into and sendall", bare, *goals, one_by_one=one_by_one)
    return rows, [rig.apart.pid, far]


def over_shm(label: str, ends: ExitStack) -> Rows:
    """The channel over shared memory beside copies between mappings of this process."""
    rig = Rig(Recipe("shm", {"secret": SECRET}, memory="shared"), label, ends)
    provider: MemoryProvider = discover().open("memory", "shared", {}, OpenContext(SystemClock()))
    region = ends.enter_context(closing(provider.allocate(rig.size * rig.count)))
    region.buffer[:] = os.urandom(rig.size) * rig.count
    to = [ctypes.addressof(ctypes.c_char.from_buffer(lease.frame)) for lease in rig.mine]

    ask, far = round_trips(socket.AF_UNIX, ends)

    def bare() -> None:
        for place, address in enumerate(to):
            ctypes.memmove(address, region.address + place * rig.size, rig.size)

    def one_by_one() -> None:
        for place, address in enumerate(to):
            ask()
            ctypes.memmove(address, region.address + place * rig.size, rig.size)

    rows = rig.rows("memmove", bare, Goal("speed", SPEED), one_by_one=one_by_one)
    return rows, [rig.apart.pid, far]


def far_nixl(count: int, size: int) -> None:
    """The bare side's other process with NIXL: lets its memory be read until it is ended."""
    provider: MemoryProvider = discover().open("memory", "mmap", {}, OpenContext(SystemClock()))
    with closing(provider.allocate(count * size)) as region:
        region.buffer[:] = os.urandom(size) * count
        agent = made(f"far-{os.getpid()}")
        agent.register_memory([(region.address, count * size, 0, "")], "DRAM")
        print(region.address, agent.get_agent_metadata().hex(), flush=True)
        while True:
            agent.get_new_notifs()
            time.sleep(50e-6)


def by_nixl(label: str, ends: ExitStack) -> Rows:
    """The channel by NIXL beside a loop of the library's own calls, over the same transports."""
    rig = Rig(Recipe("nixl", {"secret": SECRET}, memory="mmap"), label, ends)
    command = (__spec__.name, "--far-nixl", str(rig.count), str(rig.size))
    line, far = ends.enter_context(process(*command))
    there, metadata = line.split()
    agent = made(f"near-{os.getpid()}")
    to = [ctypes.addressof(ctypes.c_char.from_buffer(lease.frame)) for lease in rig.mine]
    agent.register_memory([(min(to), rig.size * rig.count, 0, "")], "DRAM")
    peer = agent.add_remote_agent(bytes.fromhex(metadata))
    far_spans = [(int(there) + place * rig.size, rig.size, 0) for place in range(rig.count)]

    ask, echo = round_trips(socket.AF_INET, ends)

    def move(some: slice) -> None:
        mine = agent.get_xfer_descs([(address, rig.size, 0) for address in to[some]], "DRAM")
        theirs = agent.get_xfer_descs(far_spans[some], "DRAM")
        handle = agent.initialize_xfer("READ", mine, theirs, peer, b"")
        state = agent.transfer(handle)
        while state == "PROC":
            time.sleep(50e-6)
            state = agent.check_xfer_state(handle)
        must(state == "DONE", f"NIXL says {state}")
        agent.release_xfer_handle(handle)

    def one_by_one() -> None:
        for place in range(rig.count):
            ask()
            move(slice(place, place + 1))
            ask()

    bare = partial(move, slice(None))
    rows = rig.rows("NIXL by itself", bare, Goal("speed", SPEED), one_by_one=one_by_one, far=far)
    return rows, [rig.apart.pid, far, echo]


def far_engine(count: int, size: int) -> None:
    """The bare side's other process with Mooncake's engine: lets its memory be read."""
    provider: MemoryProvider = discover().open("memory", "mmap", {}, OpenContext(SystemClock()))
    with closing(provider.allocate(count * size)) as region:
        region.buffer[:] = os.urandom(size) * count
        memory = EngineMemory("127.0.0.1", "tcp", "")
        memory.register(region)
        print(region.address, memory.engine.get_rpc_port(), flush=True)
        signal.pause()


def by_mooncake(label: str, ends: ExitStack) -> Rows:
    """The channel by Mooncake's engine beside a loop of the engine's own calls."""
    rig = Rig(Recipe("mooncake", {"secret": SECRET}, memory="mmap"), label, ends)
    command = (__spec__.name, "--far-engine", str(rig.count), str(rig.size))
    line, far = ends.enter_context(process(*command))
    start, port = map(int, line.split())
    to = [ctypes.addressof(ctypes.c_char.from_buffer(lease.frame)) for lease in rig.mine]
    at = [start + place * rig.size for place in range(rig.count)]
    engine = EngineMemory("127.0.0.1", "tcp", "").engine
    engine.register_memory(min(to), rig.size * rig.count)
    sizes = [rig.size] * rig.count

    ask, echo = round_trips(socket.AF_INET, ends)

    def move(some: slice) -> None:
        place = f"127.0.0.1:{port}"
        code = engine.batch_transfer_sync_read(place, to[some], at[some], sizes[some])
        must(code == 0, f"Mooncake says {code}")

    def one_by_one() -> None:
        for place in range(rig.count):
            ask()
            move(slice(place, place + 1))
            ask()

    bare, name = partial(move, slice(None)), "Mooncake's engine by itself"
    rows = rig.rows(name, bare, Goal("speed", SPEED), one_by_one=one_by_one, far=far)
    return rows, [rig.apart.pid, far, echo]


CHANNELS = {"tcp": over_tcp, "shm": over_shm, "nixl": by_nixl, "mooncake": by_mooncake}
FAR = {
    "far_end": far_end,
    "far_echo": far_echo,
    "far_nixl": far_nixl,
    "far_engine": far_engine,
}
"""What the other process of a bare side does, by its option."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, or be the other end of the bare side. The exit code: 3 if a goal was missed."""
    parser = options("benchmarks.fleet.channels", __doc__, OUTPUT)
    for name in FAR:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--channel", nargs="+", choices=CHANNELS, default=list(CHANNELS))
    parser.add_argument("--frames", nargs="+", choices=SIZES, default=list(SIZES))
    asked = parser.parse_args(arguments)
    for name, far in FAR.items():
        if count_and_size := getattr(asked, name):
            far(*count_and_size)
            return 0
    cases = product(asked.channel, asked.frames)
    return run(asked, (partial(CHANNELS[channel], label) for channel, label in cases))


if __name__ == "__main__":
    sys.exit(main())
