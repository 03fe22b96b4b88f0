"""Peers that hold what a test says, served over TCP, and a directory that says what it likes."""

from contextlib import ExitStack

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.local import LocalDirectory
from hexkv.adapters.net.address import Address
from hexkv.adapters.peer.remotes import Patience
from hexkv.adapters.peer.store import PeerStore
from hexkv.adapters.tcp.channel import TcpChannel
from hexkv.contracts.channel.blocks import Blocks
from hexkv.contracts.channel.source import HeldFrames
from hexkv.contracts.doubles import ManualClock, chunk_key
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.peers.questions import BUSY, HAVE
from hexkv.plugins.clock import SystemClock
from hexkv.ports import KEY_BYTES, PAGE, Deadline, Member, PeerAccess, Report

SIZE = 4 * PAGE
QUICK = Patience(wait=2.0, pause=0.05, longest_pause=0.2)
"""For peers that are to be given up, beside others that answer on a busy machine."""

CALM = Patience(wait=60.0, pause=0.05, longest_pause=0.2)
"""For those that are not, however busy the machine is."""


class Source(HeldFrames):
    """Frames by key, and the questions of the tier."""

    def answer(self, question, who, deadline):
        kind, body = question[:4], question[4:]
        keys = [body[at : at + KEY_BYTES] for at in range(0, len(body), KEY_BYTES)]
        if kind == HAVE:
            return bytes(self.frame(key) is not None for key in keys)
        assert kind == BUSY
        return bytes(len(keys))


class Holder:
    """A peer, reached through a proxy."""

    def __init__(self, name, generation=7):
        self.blocks = Blocks.on_heap(64, SIZE)
        self.source = Source(self.blocks)
        self.channel = TcpChannel(Address("127.0.0.1", 0), SystemClock(), name=name)
        self.peer = self.channel.serve(self.source, generation)
        place = Address.parse(self.peer.address)
        self.proxy = FaultProxy((place.host, place.port))
        self.member = Member(name, generation, self.proxy.address)

    def reads(self):
        """How often something was read from it."""
        return len(self.source.asked)

    def lent(self):
        """Leases that are not its own."""
        return {who: n for who, n in self.blocks.ledger().items() if who != "source"}

    def close(self):
        self.proxy.close()
        self.channel.close()


class Holders:
    """Some of them, and a store that reads from them. A context manager."""

    def __init__(self, *names):
        self._opened = ExitStack()
        self.clock = SystemClock()
        self.by_name = {name: Holder(name) for name in names}
        for holder in self.by_name.values():
            self._opened.callback(holder.close)
        self.directory = LocalDirectory(Cell(ManualClock(), members=16))  # nobody is silent
        for holder in self.by_name.values():
            self.directory.join(holder.member, [], self.soon())
        self._reported = dict.fromkeys(names, 0)
        self.own = Member("reader", 1, "127.0.0.1:1")

    def soon(self, seconds=60.0):
        return Deadline.after(self.clock, seconds)

    def store(self, patience=CALM, directory=None, **options):
        """A store over all of them."""
        channel = TcpChannel(Address("127.0.0.1", 0), self.clock, name="reader")
        self._opened.callback(channel.close)
        directory = directory or self.directory
        store = PeerStore(
            PeerAccess(self.own, channel, directory),
            directory,
            self.clock,
            locate=60.0,
            patience=patience,
            **options,
        )
        self._opened.callback(store.close)
        return store

    def put(self, chunk, *names, **options):
        """Have the holders of these names hold a chunk, and say so. Its key."""
        for name in names:
            self.by_name[name].source.put(chunk, **options)
            self.say(name, chunk_key(chunk))
        return chunk_key(chunk)

    def say(self, name, key, *, held=True):
        """Have the directory know that a holder has a chunk, or has it no more."""
        self._reported[name] += 1
        added, removed = ([key], []) if held else ([], [key])
        report = Report(self._reported[name], added, removed)
        assert self.directory.report(self.by_name[name].member, report, self.soon())

    def __getitem__(self, name):
        return self.by_name[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._opened.close()
