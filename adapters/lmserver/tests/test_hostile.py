"""Clients that are broken, malicious or very slow. The server answers the others."""

import os
import socket
import struct
from contextlib import ExitStack, closing, contextmanager, suppress
from random import Random

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Failed, Hit, Item, Miss, Stored, StoreFull
from processes import PATIENCE, until
from servers.lm_servers import SMALL, RawHexkv, request, served

FEW = 8
QUICK = (*SMALL[:-2], "--patience", "0.5")
BURST = 500
ABANDONED = 2000


@pytest.fixture(scope="module")
def impatient():
    """A server of little patience."""
    with served(*QUICK) as server:
        yield server


def greeted(server):
    """A connection to an impatient server, which drops also whoever just did not run."""
    patience = Deadline.after(SystemClock(), PATIENCE)
    while True:
        try:
            return RawHexkv(server.address)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            assert not patience.expired


@contextmanager
def connected(server, start=b""):
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        sock.sendall(start)
        yield sock


def ended(sock):
    """Wait until the server closes the connection; what it said before."""
    said = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(65_536):
            said += part
    return said


def serves(open_store, server, soon):
    """Whether an honest client gets what it wrote."""
    key = chunk_key(os.urandom(8).hex())
    store = open_store(server.address)
    (outcome,) = store.write([Item(key, memoryview(b"honest"))], soon)
    sink = ListSink()
    assert outcome == Stored(6)
    assert list(store.read([key], sink, soon)) == [Hit(6)]
    store.close()
    return sink.data(0) == b"honest"


def served_now(open_store, server, soon):
    """Whether an honest client is let in at this moment."""
    with closing(open_store(server.address)) as store:
        return isinstance(store.read([bytes(48)], ListSink(), soon)[0], Miss)


def meaningless(random):
    """A request in a sound frame that nobody should send."""
    kind, count = random.randrange(256), random.choice([0, 1, 2, 4097, 2**32 - 1])
    body = random.randbytes(random.choice([0, 1, 47, 49, 63, 500]))
    size = {1: 48, 2: 48, 3: 56, 4: 48, 5: 64, 6: 48}.get(kind)
    if size is not None and len(body) == count * size:
        count += 1
    return request(kind, count, body, status=random.choice([0, 1, 255]))


def broken(random):
    """Bytes at which the server must give up on the connection, or that never end."""
    sound = bytearray(request(random.randint(1, 6), 1, random.randbytes(48)))
    match random.randrange(4):
        case 0:
            sound[random.randrange(24)] ^= 1 << random.randrange(8)
        case 1:
            sound[16:20] = random.randbytes(4)
        case 2:
            del sound[random.randrange(len(sound)) :]
        case 3:
            sound = bytearray(random.randbytes(random.randint(1, 300)))
    return bytes(sound)


@pytest.mark.thorough
def test_a_hundred_thousand_malformed_frames_leave_it_as_it_was(server, open_store, soon):
    random = Random(20_26)
    assert serves(open_store, server, soon)
    before = server.resident
    frames = 0
    raw = RawHexkv(server.address)
    while frames < 100_000 - ABANDONED:
        raw.sock.sendall(b"".join(meaningless(random) for _ in range(BURST)))
        refusals = raw.exactly(24 * BURST)
        assert {refusals[place + 5] for place in range(0, len(refusals), 24)} == {1}
        frames += BURST
    raw.close()
    for number in range(ABANDONED):
        if number % 2:
            raw = RawHexkv(server.address)
            raw.sock.sendall(broken(random))
            raw.close()
        else:
            start = random.choice([b"", b"hexkvTCP", struct.pack("<i", random.randint(1, 5))])
            with connected(server, start + random.randbytes(random.randint(1, 300))):
                pass
        frames += 1
        if not number % 32:
            server.alone()  # else there might be more at a time than it lets in
    assert frames == 100_000
    server.alone()
    assert serves(open_store, server, soon)
    assert server.resident < before + (16 << 20)


@each("size", [(80 << 20) + 1, 1 << 40, 2**64 - 1])
def test_an_oversize_claim_is_refused_before_memory_is_taken(server, open_store, soon, size):
    raw = RawHexkv(server.address)
    before = server.resident
    raw.ask(3, 1, chunk_key("a") + size.to_bytes(8, "little"))
    assert raw.answer() == (0, 1, b"\2")
    assert raw.answer()[2] == b"", "nothing was to be sent, so nothing is judged"
    assert server.resident < before + (1 << 20)
    raw.close()


def test_a_batch_of_claims_takes_no_more_than_one_connection_may_have(server):
    raw = RawHexkv(server.address)
    wishes = [chunk_key(str(i)) + (30 << 20).to_bytes(8, "little") for i in range(4)]
    raw.ask(3, 4, b"".join(wishes))
    assert raw.answer()[2] == bytes([0, 0, 1, 1])
    raw.close()


def test_a_chunk_that_is_too_large_is_a_full_store(server, open_store, soon, key):
    store = open_store(server.address)
    large, small = memoryview(bytearray(81 << 20)), memoryview(b"small")
    full, stored = store.write([Item(key, large), Item(chunk_key("b"), small)], soon)
    assert isinstance(full, Failed)
    assert isinstance(full.error, StoreFull)
    assert stored == Stored(5)
    assert list(store.read([key], ListSink(), soon)) == [Miss()]


def stopping():
    """Connections that stop at every place at which one can."""
    hello = struct.pack("<8sHH4x32s", b"hexkvTCP", 1, 0, bytes(32))
    return {
        "before the first byte": b"",
        "in the magic": b"he",
        "in the greeting": hello[:20],
        "before the proof": hello,
    }


def test_a_client_that_stops_half_way_is_dropped(impatient):
    with ExitStack() as opened:
        for sock in [
            opened.enter_context(connected(impatient, start)) for start in stopping().values()
        ]:
            ended(sock)  # a time-out here fails the test


def test_a_client_that_stops_within_a_request_is_dropped(impatient):
    with ExitStack() as opened:
        stopped = []
        for sent in (1, 23, 24, 40):
            stopped.append(opened.enter_context(closing(greeted(impatient))))
            stopped[-1].sock.sendall(request(1, 1, bytes(48))[:sent])
        for raw in stopped:
            ended(raw.sock)


def test_a_client_that_sends_byte_by_byte_does_not_buy_time(impatient):
    """A slow loris: each byte comes well within any time-out for a single byte."""
    raw = greeted(impatient)
    raw.ask(3, 1, chunk_key("a") + (1 << 20).to_bytes(8, "little"))
    raw.answer()
    raw.sock.settimeout(0.05)
    patience, dropped = Deadline.after(SystemClock(), PATIENCE), False
    while not dropped and not patience.expired:
        try:
            raw.sock.sendall(b"x")
            dropped = raw.sock.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            dropped = True
    assert dropped
    raw.close()


def strangers():
    """Clients that have not made a request, each where one can stop."""
    ask = struct.pack("<9i150s", 3, *[0] * 8, b"name")
    return [*stopping().values(), ask[:4], ask[:100]]


def stalls(server, key):
    """Clients in whom the server has seen a request, each where one can stop."""

    def once(*requests, take=0):
        raw = RawHexkv(server.address)
        for asked in requests:
            raw.sock.sendall(asked)
        raw.exactly(take)
        return raw

    def foreign(*numbers):
        sock = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        sock.sendall(struct.pack("<9i150s", *numbers, *[0] * (9 - len(numbers)), b"name"))
        return closing(sock)

    size = (40 << 20).to_bytes(8, "little")
    return [
        lambda: closing(once()),
        lambda: closing(once(request(1, 1, bytes(48))[:30])),
        lambda: closing(once(request(3, 1, key + size), take=25)),
        lambda: closing(once(request(2, 1, key), take=40)),
        lambda: foreign(1, 1 << 20),
    ]


def test_silent_clients_on_every_connection_keep_nobody_out(open_store, soon, key):
    """Whatever they were about to say: the patience is longer than the test waits."""
    patient = (*SMALL[:-2], "--patience", "600", "--connections", str(FEW))
    with served(*patient) as server, ExitStack() as opened:
        known = opened.enter_context(closing(RawHexkv(server.address)))
        known.put(key, bytes(30 << 20))
        for start in strangers():
            for _ in range(2 * FEW):
                opened.enter_context(connected(server, start))
            assert serves(open_store, server, soon)
            assert server.threads <= 2 * FEW + 1
        assert known.keys() >= {key}, "strangers took the place of a client"
        for stall in stalls(server, key):
            for _ in range(2 * FEW):
                with suppress(OSError, EOFError):  # none is let in while all others get on
                    opened.enter_context(stall())
            until(lambda: served_now(open_store, server, soon))


def test_a_half_closed_connection_is_answered_and_then_over(server):
    raw = RawHexkv(server.address)
    raw.ask(1, 1, bytes(48))
    raw.sock.shutdown(socket.SHUT_WR)
    assert raw.answer()[2] == b"\0"
    assert raw.sock.recv(1) == b""
    raw.close()


def test_a_value_that_breaks_off_leaves_what_was_there(server, key):
    raw = RawHexkv(server.address)
    raw.put(key, b"old")
    other = RawHexkv(server.address)
    other.ask(3, 1, key + (1000).to_bytes(8, "little"))
    other.answer()
    other.sock.sendall(b"part of it")
    other.sock.shutdown(socket.SHUT_WR)
    ended(other.sock)  # the server has seen it
    other.close()
    assert raw.get(key) == b"old"
    assert raw.keys() == {key}
    raw.close()


def test_a_reader_that_goes_away_in_the_middle_gives_the_memory_back(server, open_store, soon):
    store = open_store(server.address)
    frame = memoryview(bytearray(40 << 20))
    for turn in range(6):
        (outcome,) = store.write([Item(chunk_key(str(turn)), frame)], soon)
        assert outcome == Stored(len(frame))
        raw = RawHexkv(server.address)
        raw.ask(2, 1, chunk_key(str(turn)))
        raw.exactly(36)
        raw.close()
