"""Numbered requests and the handshake before them, whatever the other end does."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from threading import Event, Thread

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime, Refused
from hexkv.adapters.net.rpc.asked import ClientBounds
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.adapters.net.rpc.link import Link
from hexkv.adapters.net.rpc.placed import PlacedSession
from hexkv.adapters.net.rpc.session import Session
from hexkv.adapters.net.rpc.wire import HEAD, Status, message
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.stream import Stream
from hexkv.adapters.net.tls import Trust, server_context
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, InvalidRequest, StoreUnreachable
from processes import PATIENCE, until

CLOCK = SystemClock()
LARGEST = 1 << 20
SHORT = 0.05
ECHO, FAIL, WAIT = 1, 2, 3
GREETING = Handshake("test", b"a test..", 7, "HN", "VQN")


def soon(seconds=PATIENCE):
    return Deadline.after(CLOCK, seconds)


class Echo(Session):
    """Answers with what it was sent; ``WAIT`` waits for an event."""

    at_once = (ECHO,)

    def __init__(self, *given, **settings):
        super().__init__(*given, **settings)
        self.go = Event()

    def respond(self, asked):
        if asked.head.verb == FAIL:
            raise InvalidRequest("on purpose")
        if asked.head.verb == WAIT:
            assert self.go.wait(PATIENCE)
        self.send(asked.head, Status.DONE, asked.body)


@pytest.fixture
def served():
    """``served(**bounds)``: a session in a thread, and a link to it; or ``raw``: a socket."""
    with ExitStack() as opened:

        def begin(*, raw=False, pair=None, **bounds):
            ours, theirs = pair or socket.socketpair()
            over = Event()
            bounds = {"largest": LARGEST, **bounds}
            session = Echo(theirs, "c", CLOCK, ClientBounds(**bounds), ended=lambda _: over.set())
            Thread(target=session.run, daemon=True).start()
            opened.callback(lambda: over.wait(PATIENCE))
            opened.callback(session.go.set)
            if raw:
                opened.callback(ours.close)
                return session, ours, over
            link = Link(ours, CLOCK, lambda: None, most=LARGEST)
            opened.callback(link.abandon)
            return session, link, over

        yield begin


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(6)))
def test_answers_in_any_order_belong_to_their_requests(order):
    ours, theirs = socket.socketpair()
    link = Link(ours, CLOCK, lambda: None, most=LARGEST)
    with theirs:
        answers = [link.ask(ECHO, b"", soon()) for _ in order]
        for place in order:
            theirs.sendall(message(ECHO, answers[place].request, 0, bytes([place])))
        for place, answer in enumerate(answers):
            assert link.wait(answer, soon())
            assert answer.body == bytes([place])
        link.abandon()


def test_a_request_that_waits_delays_no_other_and_threads_share_a_link(served):
    session, link, _ = served()
    late = link.ask(WAIT, b"late", soon())
    with ThreadPoolExecutor(8) as threads:
        bodies = [bytes([n]) * 1000 * n for n in range(40)]
        found = threads.map(lambda body: link.call(ECHO, body, soon()).body, bodies)
        assert list(found) == bodies
    assert not late.final
    session.go.set()
    assert link.wait(late, soon())
    assert link.call(FAIL, b"", soon()).status is Status.INVALID


def test_requests_beyond_the_bound_are_refused_and_those_within_it_wait_in_order(served):
    session, link, _ = served(under_way=4, at_a_time=1)
    answers = [link.ask(WAIT, bytes([n]), soon()) for n in range(6)]
    for refused in answers[4:]:
        assert link.wait(refused, soon())
        assert refused.status is Status.BUSY
    session.go.set()
    for n, answer in enumerate(answers[:4]):
        assert link.wait(answer, soon())
        assert (answer.status, answer.body) == (Status.DONE, bytes([n]))


@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=3 * HEAD.size), whole=st.booleans())
def test_noise_ends_its_own_session_or_link_and_raises_nothing(noise, whole):
    data = message(ECHO, 2, 0, noise) if whole else noise
    ours, theirs = socket.socketpair()
    over = Event()
    session = Echo(theirs, "c", CLOCK, ClientBounds(largest=LARGEST), ended=lambda _: over.set())
    with ours:
        Thread(target=session.run, daemon=True).start()
        ours.sendall(data + b"\xff" * HEAD.size)
        ours.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while ours.recv(4096):
                pass
        assert over.wait(PATIENCE)
    ours, theirs = socket.socketpair()
    link = Link(ours, CLOCK, lambda: None, most=LARGEST)
    with theirs:
        theirs.sendall(data + b"\xff" * HEAD.size)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionBroken):
            link.call(ECHO, b"", soon())
    assert not link.alive


def test_a_server_that_says_nothing_costs_the_deadline_and_one_that_is_gone_costs_nothing():
    ours, theirs = socket.socketpair()
    link = Link(ours, CLOCK, lambda: None, most=LARGEST)
    with pytest.raises(OutOfTime):
        link.call(ECHO, b"", soon(2 * SHORT))
    assert link.alive
    with pytest.raises(OutOfTime):  # nor is it received
        link.call(ECHO, bytes(LARGEST), soon(SHORT))
    assert not link.alive, "half a request was sent"
    theirs.close()
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(ConnectionBroken):
        Link(ours, CLOCK, lambda: None, most=LARGEST).call(ECHO, b"", soon())


@each("ends", ["a message that does not go on", "no message", "an answer that is not received"])
def test_a_client_that_is_half_open_is_dismissed_in_time(served, ends):
    limits = {"patience": SHORT, "idle": SHORT if ends == "no message" else None}
    _, sock, over = served(raw=True, **limits)
    if ends == "a message that does not go on":
        sock.sendall(message(ECHO, 1, 0, b"whole")[:-1])
    elif ends == "an answer that is not received":
        with suppress(OSError):
            for number in range(64):
                sock.sendall(message(ECHO, number + 1, 0, bytes(LARGEST)), socket.MSG_DONTWAIT)
    sock.settimeout(PATIENCE)
    with suppress(ConnectionResetError):
        while sock.recv(LARGEST):  # what was sent before that
            pass
    sock.close()
    assert over.wait(PATIENCE)


@pytest.fixture
def encrypted(tmp_path):
    """The two ends of a connection with TLS, after the handshake: the client's and the server's."""
    authority, file = trustme.CA(), tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(file))
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    one, other = socket.socketpair()
    server = server_context(str(file)).wrap_socket(one, True, do_handshake_on_connect=False)
    client = (
        Trust(str(ca))
        .context()
        .wrap_socket(other, server_hostname="localhost", do_handshake_on_connect=False)
    )
    with client, server, ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(Stream(server).secure, soon())
        Stream(client).secure(soon())
        accepted.result(PATIENCE)
        yield client, server


def test_both_directions_move_at_once_over_tls(served, encrypted):
    _, link, _ = served(pair=encrypted)
    with ThreadPoolExecutor(4) as threads:
        bodies = [bytes([n]) * (LARGEST - n) for n in range(12)]
        found = threads.map(lambda body: link.call(ECHO, body, soon()).body, bodies)
        assert list(found) == bodies


@each("tls", [True, False])
def test_a_request_that_was_not_sent_in_time_leaves_nothing_of_it_before_the_next(tls, request):
    """TLS keeps the record of a message that did not fit, and sends it before the next one."""
    ends = request.getfixturevalue("encrypted") if tls else socket.socketpair()
    with ends[0] as ours, ends[1]:
        link = Link(ours, CLOCK, lambda: None, most=LARGEST)
        sent = iter(lambda: link.ask(ECHO, bytes(8), soon(0)), None)
        assert len(list(sent)) > 100
        assert link.alive is not tls
        link.abandon()


@contextmanager
def placed():
    """A session with a place of a listener, its connection, and a link to it."""
    ours, theirs = socket.socketpair()
    connection = Connection(Stream(theirs), Limits(LARGEST), CLOCK)

    class Placed(PlacedSession, Echo):
        at_once = ()

    session = Placed(connection, ClientBounds(largest=LARGEST))
    thread = Thread(target=session.attend, daemon=True)
    thread.start()
    link = Link(ours, CLOCK, lambda: None, most=LARGEST)
    yield session, connection, link
    session.go.set()
    link.abandon()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_connection_gives_way_between_its_requests_alone():
    with placed() as (session, connection, link):
        waits = link.ask(WAIT, b"", soon())
        until(lambda: session._under_way)
        assert connection.lag is None
        session.go.set()
        assert link.wait(waits, soon())
        until(lambda: connection.lag is not None)


def test_a_request_keeps_its_place_though_the_one_before_ends_just_then(monkeypatch):
    with placed() as (_, connection, link):
        engage, disengage, second = connection.engage, connection.disengage, Event()
        begun, answers = [], []

        def begin(seconds):
            engage(seconds)
            begun.append(seconds)
            if len(begun) == 2:
                second.set()

        def end():
            answers.append(link.ask(WAIT, b"", soon()))
            second.wait(0.1)  # its reader has to wait for this end
            disengage()

        monkeypatch.setattr(connection, "engage", begin)
        monkeypatch.setattr(connection, "disengage", end)
        assert link.call(ECHO, b"first", soon()).body == b"first"
        assert second.wait(PATIENCE)
        assert connection.lag is None
        monkeypatch.undo()


def greeted(secret, said, *fields):
    """Both ends of a handshake: what the client and the server make of it."""
    one, other = socket.socketpair()
    ours, theirs = Stream(one), Stream(other)
    with ThreadPoolExecutor(1) as thread, closing(ours), closing(theirs):
        connection = Connection(theirs, Limits(LARGEST), CLOCK)
        answering = thread.submit(GREETING.answer, connection, b"secret", 9)
        try:
            found = GREETING.greet(ours, soon(), secret, *fields) if fields else None
            if said is not None:
                ours.send([said], soon())
                one.shutdown(socket.SHUT_WR)
        finally:
            if not fields or secret != b"secret":
                ours.close()
            outcome = answering.exception(PATIENCE) or answering.result()
    return found, outcome, connection.known


def test_fields_come_as_they_were_given_and_a_wrong_secret_is_refused():
    assert greeted(b"secret", None, 5) == ((9,), (5,), True)
    with pytest.raises(Refused, match="another secret"):
        greeted(b"another", None, 5)


@settings(max_examples=40, deadline=None)
@given(noise=st.binary(min_size=1, max_size=2 * GREETING.hello_bytes), right=st.booleans())
def test_noise_in_place_of_a_greeting_is_an_error_on_either_side(noise, right):
    said = GREETING.hello(1)[:10] + noise if right else noise
    _, outcome, known = greeted(b"", said.ljust(GREETING.hello_bytes + 32, b"\0"))
    assert isinstance(outcome, StoreUnreachable)
    assert not known
    one, other = socket.socketpair()
    with closing(Stream(one)) as ours, other:
        other.sendall(said.ljust(GREETING.challenge_bytes + 40, b"\0"))
        other.shutdown(socket.SHUT_WR)
        with pytest.raises(StoreUnreachable):
            GREETING.greet(ours, soon(), b"secret", 5)


def test_a_greeting_and_a_message_have_the_bytes_that_their_version_gives_them():
    hello, challenge = GREETING.hello(5), GREETING.challenge(9, wrong=True)
    assert struct.unpack("<8sHH32s", hello)[:3] == (b"a test..", 7, 5)
    assert struct.unpack("<8sHBQ32s", challenge)[:4] == (b"a test..", 7, 1, 9)
    assert message(3, 4, 5, b"body", status=1, seconds=0.5).hex() == (
        "040000000300010004000000000000000500000000000000000000000000e03f626f6479"
    )  # fmt: skip
