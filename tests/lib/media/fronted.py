"""The tier of peers as a store that can be filled: what is written goes to a peer that holds it.

Stores take bytes of any length, channels frames that name their key: here each is put into a frame
of its own on its way in, and taken out on its way out.
"""

from contextlib import ExitStack
from struct import Struct
from threading import Lock

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.local import LocalDirectory
from hexkv.adapters.net.address import Address
from hexkv.adapters.peer.remotes import Patience
from hexkv.adapters.peer.store import PeerStore
from hexkv.adapters.tcp.channel import TcpChannel
from hexkv.contracts.doubles import ManualClock
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    KEY_AT,
    KEY_BYTES,
    MAGIC,
    PAGE,
    Deadline,
    Hit,
    Member,
    Miss,
    PeerAccess,
    Reason,
    Report,
    Stored,
    TimedOut,
)

_LENGTH = Struct("<Q")
_LENGTH_AT = KEY_AT + KEY_BYTES


def framed(key, content):
    """A frame that names *key* and has *content*."""
    head = bytearray(PAGE)
    head[: len(MAGIC)] = MAGIC
    head[KEY_AT : KEY_AT + KEY_BYTES] = key
    _LENGTH.pack_into(head, _LENGTH_AT, len(content))
    return bytes(head) + bytes(content) + bytes(-len(content) % PAGE)


class HeapLease:
    """A lease on bytes that nobody changes."""

    spec = None
    owner = "holder"

    def __init__(self, frame):
        self.frame = memoryview(frame)

    def share(self, owner):
        return self

    def release(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Holding:
    """A peer that holds frames; and its entries in a directory."""

    def __init__(self):
        self.frames = {}
        self.channel = TcpChannel(Address("127.0.0.1", 0), SystemClock(), name="holder")
        self.peer = self.channel.serve(self, 1)
        self.cell = Cell(ManualClock(), members=1)
        self._local = LocalDirectory(self.cell)
        self._lock = Lock()
        self._reports = 0
        self.member = None

    def join(self, address):
        """Be known as one that serves at *address*."""
        self.member = Member("holder", 1, address)
        self._local.join(self.member, [], soon())

    def directory(self):
        """For one who asks."""
        return LocalDirectory(self.cell)

    def put(self, key, content):
        with self._lock:
            self.frames[key] = framed(key, content)
            self._report([key], [])

    def get(self, key):
        found = self.frames.get(key)
        return None if found is None else content_of(memoryview(found))

    def keys(self):
        return set(self.frames)

    def drop(self, key):
        with self._lock:
            there = self.frames.pop(key, None) is not None
            self._report([], [key])
            return there

    def lend(self, keys, who, deadline):
        found = [self.frames.get(key) for key in keys]
        return [None if frame is None else HeapLease(frame) for frame in found]

    def room(self, wanted, who, deadline):
        return [Reason.NO_ROOM] * len(wanted)

    def keep(self, arrived, who, deadline):
        return [False] * len(arrived)

    def answer(self, question, who, deadline):
        return bytes((len(question) - 4) // KEY_BYTES)  # nothing is busy

    def close(self):
        self.channel.close()

    def _report(self, added, removed):
        self._reports += 1
        report = Report(self._reports, added, removed)
        assert self._local.report(self.member, report, soon())


class _Unframing:
    """A sink for frames, by one for what is in them."""

    def __init__(self, count):
        self.frames = [None] * count

    def room(self, index, size):
        self.frames[index] = memoryview(bytearray(size))
        return self.frames[index]

    def filled(self, index, upto):
        pass


class FrontedPeers:
    """A :class:`PeerStore` over a *holding*."""

    def __init__(self, holding, make=PeerStore):
        self._holding = holding
        self._opened = ExitStack()
        channel = TcpChannel(Address("127.0.0.1", 0), SystemClock(), name="reader")
        self._opened.callback(channel.close)
        directory = holding.directory()
        access = PeerAccess(Member("reader", 1, "127.0.0.1:1"), channel, directory)
        self.peers = make(
            access,
            directory,
            SystemClock(),
            locate=60.0,
            patience=Patience(wait=60.0, pause=0.01, longest_pause=0.05),
            lacking=0.0,
        )
        self._opened.callback(self.peers.close)

    def contains(self, keys, deadline):
        return self.peers.contains(keys, deadline)

    def read(self, keys, sink, deadline):
        into = _Unframing(len(keys))
        outcomes = list(self.peers.read(keys, into, deadline))
        for i, outcome in enumerate(outcomes):
            if isinstance(outcome, Hit):
                content = content_of(into.frames[i])
                room = None if deadline.expired else sink.room(i, len(content))
                if room is None:
                    outcomes[i] = TimedOut() if deadline.expired else Miss(Reason.REFUSED)
                else:
                    room[:] = content
                    outcomes[i] = Hit(len(content))
        return outcomes

    def write(self, items, deadline):
        found = []
        for item in items:
            if deadline.expired:
                found.append(TimedOut())
                continue
            self.peers.contains([], deadline)  # which says that it is closed
            self._holding.put(item.key, item.frame)
            found.append(Stored(len(item.frame)))
        return found

    def delete(self, keys, deadline):
        self.peers.contains([], deadline)
        return [self._holding.drop(key) for key in keys]

    def close(self):
        self._opened.close()


def content_of(frame):
    (length,) = _LENGTH.unpack_from(frame, _LENGTH_AT)
    return bytes(frame[PAGE : PAGE + length])


def soon():
    return Deadline.after(SystemClock(), 60.0)
