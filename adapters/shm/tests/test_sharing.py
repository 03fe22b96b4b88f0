"""What peers show of their memory is checked, lent for a time, and never read as another life's."""

import mmap
import os
import socket
from contextlib import ExitStack, closing, suppress
from fcntl import F_ADD_SEALS, fcntl
from tempfile import TemporaryDirectory
from threading import Thread

import pytest

from hexkv.adapters.net.errors import ConnectionBroken
from hexkv.adapters.net.messages import HEAD_BYTES
from hexkv.adapters.net.peers import direct_line
from hexkv.adapters.net.peers.wire import (
    ELSEWHERE,
    FRAMING,
    PARTS,
    REFS,
    Kind,
    Status,
    handshake,
)
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.net.unix import SEALS
from hexkv.adapters.shm.channel import ShmChannel
from hexkv.adapters.shm.memory import SharedMemory
from hexkv.contracts.channel._base import End, past, until
from hexkv.contracts.channel.blocks import Blocks, BlockSink, frame_of
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import PAGE, Corrupt, Deadline, Failed, Hit, Part, Peer, Stored, TimedOut

SIZE = 4 * PAGE
KEY, OTHER = chunk_key("a"), chunk_key("other")
CLOCK = SystemClock()


def soon():
    return Deadline.after(CLOCK, 60)


@pytest.fixture
def opened():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def end(opened):
    """Makes an end whose blocks lie in memory that peers map."""
    provider = discover().open("memory", "shared", {}, OpenContext(CLOCK))

    def end(*names, shared=True, blocks=8, **settings):
        channel = opened.enter_context(ShmChannel(CLOCK, **settings))
        region = opened.enter_context(closing(provider.allocate(blocks * SIZE)))
        if shared:
            channel.register(region)
        made = End(channel, Blocks(region.buffer, SIZE))
        for name in names:
            made.source.put(name)
        return made

    return end


def memory(size, *, sealed=True):
    """A file as a peer shows it."""
    descriptor = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, frame_of("a", SIZE) + frame_of("other", SIZE), 0)
    os.ftruncate(descriptor, size)
    if sealed:
        fcntl(descriptor, F_ADD_SEALS, SEALS)
    return descriptor


class Liar:
    """Speaks the protocol up to an introduction and the answer to a LEND, which it was given."""

    def __init__(self, told, shown, rows, *, ends=False, status=Status.DONE):
        self._told, self._shown, self._rows, self._ends = told, shown, rows, ends
        self._status = status
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")
        self._listener.listen()
        self.peer = Peer("@" + self._listener.getsockname()[1:].decode())
        self._thread = Thread(target=self._run)

    def _run(self):
        sock, _ = self._listener.accept()
        with sock, suppress(ConnectionBroken):  # whoever heard enough
            stream = Stream(sock)
            connection = Connection(stream, Limits(1 << 30), SystemClock())
            handshake(SharedMemory.magic).answer(connection, b"", 4096, 1 << 30, 1)
            introduction = FRAMING.message(Kind.INTRODUCTION, 0, self._told.to_bytes(8, "little"))
            if self._shown is None:
                stream.send([introduction], soon())
            else:
                stream.send_descriptor(introduction, self._shown, soon())
            _, mine = stream.take_descriptors(HEAD_BYTES + 8, soon())
            assert mine == []
            stream.take(HEAD_BYTES + PARTS.size, soon())
            body = b"".join(REFS.pack(*row) for row in self._rows)
            answer = FRAMING.message(Kind.LEND, len(self._rows), body, status=self._status)
            stream.send([answer], soon())
            if not self._ends:
                stream.take_some(1, soon())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(60)
        self._listener.close()
        if self._shown is not None:
            os.close(self._shown)


RIGHT = [(KEY, SIZE, 0)]
LIES = {
    "the truth": (2 * SIZE, 2 * SIZE, True, RIGHT, Hit),
    "no descriptor": (2 * SIZE, None, True, RIGHT, Failed),
    "a shorter file": (2 * SIZE, SIZE, True, RIGHT, Failed),
    "one that can be cut": (2 * SIZE, 2 * SIZE, False, RIGHT, Failed),
    "another key": (2 * SIZE, 2 * SIZE, True, [(OTHER, SIZE, 0)], Failed),
    "another chunk's frame": (2 * SIZE, 2 * SIZE, True, [(KEY, SIZE, SIZE)], Corrupt),
    "a place behind the end": (2 * SIZE, 2 * SIZE, True, [(KEY, SIZE, SIZE + 1)], Failed),
    "a place far away": (2 * SIZE, 2 * SIZE, True, [(KEY, SIZE, ELSEWHERE - SIZE)], Failed),
    "half a page": (2 * SIZE, 2 * SIZE, True, [(KEY, PAGE // 2, 0)], Failed),
    "no place": (2 * SIZE, 2 * SIZE, True, [], Failed),
    "two places": (2 * SIZE, 2 * SIZE, True, RIGHT * 2, Failed),
}


@each("told, shown, sealed, rows, outcome", LIES.values(), ids=LIES)
def test_memory_that_cannot_be_is_not_read(told, shown, sealed, rows, outcome):
    blocks = Blocks.on_heap(1, SIZE)
    sink = BlockSink(blocks)
    file = None if shown is None else memory(shown, sealed=sealed)
    with Liar(told, file, rows) as liar, ShmChannel(CLOCK) as channel:
        (found,) = channel.read(liar.peer, [Part(KEY)], sink, soon())
    assert isinstance(found, outcome)
    sink.release()
    assert blocks.ledger() == {}


@each("rows", [[], RIGHT])
def test_more_is_not_waited_for_where_nothing_can_follow(rows):
    """Nothing said, and more announced; all said, and more announced."""
    blocks = Blocks.on_heap(1, SIZE)
    sink = BlockSink(blocks)
    liar = Liar(2 * SIZE, memory(2 * SIZE), rows, status=Status.MORE)
    with liar, ShmChannel(CLOCK) as channel:
        (found,) = channel.read(liar.peer, [Part(KEY)], sink, soon())
    assert isinstance(found, Failed)
    sink.release()
    assert blocks.ledger() == {}


NAMES = [f"c{i}" for i in range(10)]


def read_all(near, far, during):
    """Read all of NAMES; *during* is called before each is copied."""
    blocks = Blocks.on_heap(len(NAMES), SIZE)
    sink = BlockSink(blocks, during=during)
    parts = [Part(chunk_key(name)) for name in NAMES]
    outcomes = near.channel.read(far.peer, parts, sink, soon())
    return list(outcomes), [sink.data(i) for i in range(len(NAMES))]


def whole():
    return [Hit(SIZE)] * len(NAMES), [frame_of(name, SIZE) for name in NAMES]


def test_the_next_frames_are_leased_while_the_reader_copies(end):
    near, far = end(), end(*NAMES, blocks=2 * len(NAMES))
    far.serve()

    def leased():
        """Copies nothing before all are leased, which it has not asked for again."""
        until(lambda: far.held().get("lent") == len(NAMES), "nothing is leased ahead")

    assert read_all(near, far, leased) == whole()
    far.settle()


def test_what_was_leased_ahead_is_given_back_when_the_reader_gives_up(end):
    near, far = end(), end(*NAMES, blocks=2 * len(NAMES))
    far.serve()

    stopped = []

    def stop():
        if not stopped:  # afterwards they are given back, sooner or later
            until(lambda: far.held().get("lent") == len(NAMES), "nothing is leased ahead")
            near.channel.close()
            stopped.append(True)

    outcomes, _ = read_all(near, far, stop)
    assert not any(isinstance(it, Hit) for it in outcomes)
    far.settle()


def test_a_connection_has_leased_no_more_than_it_may(end):
    """In bytes; what is left out is asked for again."""
    near, far = end(), end(*NAMES, blocks=2 * len(NAMES), limits=Limits(3 * SIZE))
    far.serve()
    most = []
    assert read_all(near, far, lambda: most.append(far.held().get("lent", 0))) == whole()
    assert max(most) <= 3
    far.settle()


def test_a_connection_has_leased_no_more_frames_than_it_may(end, monkeypatch):
    """Whatever a reader asks for at a time."""
    names = [f"n{i}" for i in range(260)]
    monkeypatch.setattr(direct_line, "_ASKED", len(names))
    near, far = end(), end(*names, blocks=len(names))
    far.serve()
    most = []

    def full():
        if not most:
            until(lambda: far.held().get("lent") == 256, "so many are not leased")
        most.append(far.held().get("lent", 0))

    sink = BlockSink(Blocks.on_heap(len(names), SIZE), during=full)
    outcomes = near.channel.read(far.peer, [Part(chunk_key(it)) for it in names], sink, soon())
    assert list(outcomes) == [Hit(SIZE)] * len(names)
    assert max(most) == 256
    far.settle()


def test_what_is_not_lent_beside_others_is_asked_for_again(end):
    """By a source that lends two at a time, and waits for no third one."""
    near, far = end(), end(*NAMES, blocks=2 * len(NAMES))
    lend, waited = far.source.lend, []

    def few(keys, who, deadline):
        left = max(0, 2 - far.held().get("lent", 0))
        if not left and not deadline.expired:
            waited.append(keys)
        return [*lend(keys[:left], who, deadline), *[None] * len(keys[left:])]

    far.source.lend = few
    far.serve()
    assert read_all(near, far, lambda: None) == whole()
    assert waited == []


def test_what_was_copied_from_a_peer_that_left_meanwhile_is_nothing():
    blocks = Blocks.on_heap(1, SIZE)
    with Liar(2 * SIZE, memory(2 * SIZE), RIGHT, ends=True) as liar, ShmChannel(CLOCK) as channel:
        sink = BlockSink(blocks, during=lambda: liar._thread.join(60))
        (found,) = channel.read(liar.peer, [Part(KEY)], sink, soon())
    assert isinstance(found, Failed)


def test_a_reader_that_keeps_what_it_was_lent_loses_its_connection_first(end):
    far, near = end("a", limits=Limits(8 * SIZE, patience=0.2)), end()
    far.serve()
    held = []

    def stay():
        """Copy nothing until the lease is gone."""
        until(lambda: "lent" in far.held() or "channel" in far.held(), "nothing is lent")
        far.settle()
        held.append(far.held())

    sink = BlockSink(near.blocks, during=stay)
    (outcome,) = near.channel.read(far.peer, [Part(KEY)], sink, soon())
    assert held == [{}]
    assert isinstance(outcome, Failed)
    sink.release()
    assert near.read(far.peer, [KEY]) == ([Hit(SIZE)], [frame_of("a", SIZE)])


def test_a_mapping_of_a_former_life_is_never_read_as_the_present_one(end, opened):
    folder = opened.enter_context(TemporaryDirectory(prefix="hexkv"))
    place = f"{folder}/peer"
    near = end()
    peers = []
    for name in ("a", "b"):
        far = end(name, listen=place)
        far.serve()
        peers.append(far.peer)
        mine, other = chunk_key(name), chunk_key("b" if name == "a" else "a")
        outcomes, data = near.read(far.peer, [mine, other])
        assert isinstance(outcomes[0], Hit)
        assert data[0] == frame_of(name, SIZE)
        assert not isinstance(outcomes[1], Hit)
        if peers[0] != far.peer:
            (outcome,), _ = near.read(peers[0], [KEY])
            assert isinstance(outcome, Failed)
        far.channel.close()
    assert not os.path.exists(place)


def test_processes_of_other_users_get_nothing_on_either_side(end):
    far, near = end("a"), end()
    far.serve()
    for checks, name in (
        (far.channel._server._admission._check, "_users"),
        (near.channel, "_allowed"),
    ):
        allowed = getattr(checks, name)
        setattr(checks, name, frozenset())
        (outcome,), _ = near.read(far.peer, [KEY])
        assert isinstance(outcome, Failed)
        setattr(checks, name, allowed)
    assert far.source.asked == []
    assert near.read(far.peer, [KEY])[0] == [Hit(SIZE)]


def test_chunks_outside_of_shared_memory_go_over_the_socket(end):
    """Whichever end has plain memory: reading, parts of frames, and offers."""
    for near_shares, far_shares in ((True, False), (False, True), (False, False)):
        near, far = end("mine", shared=near_shares), end("a", shared=far_shares)
        far.serve()
        outcomes, data = near.read(far.peer, [KEY, Part(KEY, PAGE, 10), OTHER])
        assert outcomes[:2] == [Hit(SIZE), Hit(10)]
        assert data[:2] == [frame_of("a", SIZE), frame_of("a", SIZE)[PAGE : PAGE + 10]]
        assert near.offer(far.peer, [chunk_key("mine")]) == [Stored(SIZE)]
        assert far.source.frame(chunk_key("mine")) == frame_of("mine", SIZE)
        assert near.offer(far.peer, [chunk_key("mine")], past()) == [TimedOut()]
        near.settle()
        far.settle()


def test_peers_cannot_write_into_the_memory_that_they_are_shown(end):
    shown = end("a").channel._memory._shown
    mmap.mmap(shown.descriptor, SIZE, prot=mmap.PROT_READ).close()
    with pytest.raises(PermissionError):
        mmap.mmap(shown.descriptor, SIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
