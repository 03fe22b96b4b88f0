"""A peer that lies on the wire costs its connection, and memory that nobody claimed."""

import socket
from contextlib import ExitStack
from threading import Thread

import pytest
import trustme

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.messages import HEAD_BYTES
from hexkv.adapters.net.peers.wire import (
    FRAMING,
    PARTS,
    Kind,
    handshake,
    pack_group,
)
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.tcp.channel import TcpChannel
from hexkv.contracts.channel.blocks import Blocks, BlockSink, frame_of
from hexkv.contracts.channel.source import HeldFrames
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import PAGE, ConfigError, Corrupt, Deadline, Failed, Hit, Part, Peer

KEY = chunk_key("a")
SIZE = 4 * PAGE
FRAME = frame_of("a", SIZE)
OTHER = chunk_key("other")


def soon():
    return Deadline.after(SystemClock(), 60)


class Liar:
    """Speaks the protocol up to the answer to a READ, which is the one that it was given."""

    def __init__(self, answer, *, largest=1 << 30):
        self._answer, self._largest = answer, largest
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.peer = Peer(str(Address(*self._listener.getsockname())))
        self._thread = Thread(target=self._run)

    def _run(self):
        sock, _ = self._listener.accept()
        with sock:
            stream = Stream(sock)
            connection = Connection(stream, Limits(self._largest), SystemClock())
            handshake().answer(connection, b"", 4096, self._largest, 1)
            stream.take(HEAD_BYTES + PARTS.size, soon())
            stream.send([self._answer], soon())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(60)
        self._listener.close()


def answer(key, size, data, count=1, kind=Kind.READ):
    return FRAMING.message(kind, count, b"") + pack_group([(key, size)]) + data


LIES = {
    "another key": (answer(OTHER, SIZE, FRAME), Failed),
    "another chunk's frame": (answer(KEY, SIZE, frame_of("other", SIZE)), Corrupt),
    "half a page": (answer(KEY, SIZE - 1, FRAME[1:]), Failed),
    "nothing": (answer(KEY, 0, b""), Failed),
    "all memory": (answer(KEY, 1 << 62, FRAME), Failed),
    "two answers": (answer(KEY, SIZE, FRAME, count=2), Failed),
    "another request's": (answer(KEY, SIZE, FRAME, kind=Kind.OFFER), Failed),
    "a flipped bit": (bytes([1]) + answer(KEY, SIZE, FRAME)[1:], Failed),
    "an end": (answer(KEY, SIZE, FRAME[:-1]), Failed),
    "more than was asked for": (
        FRAMING.message(Kind.READ, 1, b"") + pack_group([(KEY, SIZE)] * 2) + 2 * FRAME,
        Failed,
    ),
    "nothing of nothing": (FRAMING.message(Kind.READ, 1, b"") + pack_group([]), Failed),
}


@each("lie, outcome", LIES.values(), ids=LIES)
def test_an_answer_that_cannot_be_is_no_hit_and_takes_no_memory(lie, outcome):
    blocks = Blocks.on_heap(1, SIZE)
    sink = BlockSink(blocks)
    with Liar(lie) as liar, TcpChannel(Address("127.0.0.1"), SystemClock()) as channel:
        (found,) = channel.read(liar.peer, [Part(KEY)], sink, soon())
    assert isinstance(found, outcome)
    sink.release()
    assert blocks.ledger() == {}


def test_where_others_can_connect_something_must_keep_them_out():
    source = HeldFrames(Blocks.on_heap(1, SIZE))
    anywhere = TcpChannel(Address("0.0.0.0"), SystemClock())
    with anywhere, pytest.raises(ConfigError, match="takes a secret"):
        anywhere.serve(source, 1)


def test_a_channel_serves_once():
    source = HeldFrames(Blocks.on_heap(1, SIZE))
    with TcpChannel(Address("127.0.0.1"), SystemClock(), advertise="this.host") as channel:
        assert channel.serve(source, 7).address.startswith("this.host:")
        with pytest.raises(ConfigError, match="once"):
            channel.serve(source, 8)


def test_no_secret_is_shown():
    secret = "never to be seen"
    channel = discover().open("channel", "tcp", {"secret": secret}, OpenContext(SystemClock()))
    with channel:
        gone = Peer("127.0.0.1:1")
        (outcome,) = channel.read(gone, [Part(KEY)], BlockSink(Blocks.on_heap(1, SIZE)), soon())
        known = [repr(vars(one.pool)) for one in channel._known.values()]
        shown = [repr(channel), repr(vars(channel)), repr(outcome), *known]
    assert known
    assert secret not in "".join(shown)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Files of an authority and of a certificate by it, and those of strangers."""
    files = []
    for name in ("ours", "strangers"):
        folder = tmp_path_factory.mktemp(name)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(folder / "peer.pem")
        files.append((str(folder / "ca.pem"), str(folder / "peer.pem")))
    return files


def test_with_tls_only_peers_of_our_authority_are_heard(certificates):
    (ours, mine), (theirs, strange) = certificates
    registry, context = discover(), OpenContext(SystemClock())

    def opened(ca, certificate):
        settings = {"tls": True, "tls_ca": ca, "tls_certificate": certificate}
        return registry.open("channel", "tcp", settings, context)

    blocks = Blocks.on_heap(2, SIZE)
    source = HeldFrames(blocks)
    key = source.put("a", SIZE)
    with ExitStack() as ends:
        far = ends.enter_context(opened(ours, mine))
        peer = far.serve(source, 1)
        for ca, certificate, right in (
            (ours, mine, True),
            (theirs, strange, False),
            (ours, strange, False),
        ):
            channel = ends.enter_context(opened(ca, certificate))
            sink = BlockSink(blocks)
            (outcome,) = channel.read(peer, [Part(key)], sink, soon())
            assert isinstance(outcome, Hit) == right
            assert (sink.data(0) == FRAME) == right
            sink.release()
    assert source.asked == [""]
