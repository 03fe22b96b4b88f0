"""What the contract does not say about a Redis that dies, hangs, lies and comes back."""

import socket
from contextlib import closing
from threading import Barrier, Event, Thread

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Failed, Hit, Item, StoreUnreachable, TimedOut
from processes import PATIENCE, held_port
from servers.redis_servers import RedisServer

KEY = chunk_key("a")


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server


def test_a_port_where_nobody_listens_fails_at_once_and_opening_does_not(open_store):
    store = open_store(f"redis://127.0.0.1:{held_port()}")
    for outcomes in (
        store.read([KEY], ListSink(), deadline()),
        store.write([Item(KEY, memoryview(b""))], deadline()),
    ):
        assert isinstance(outcomes[0], Failed)
        assert isinstance(outcomes[0].error, StoreUnreachable)
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], deadline())


def test_after_a_restart_the_first_call_succeeds_though_all_connections_are_stale(
    server, open_store
):
    store = open_store(server.url)
    together = Barrier(4)
    outcomes = []

    class Waiting(ListSink):
        def room(self, index, size):
            together.wait(PATIENCE)  # so that each read has a connection of its own
            return super().room(index, size)

    def read():
        outcomes.extend(store.read([KEY], Waiting(), deadline()))

    store.write([Item(KEY, memoryview(b"frame"))], deadline())
    readers = [Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(PATIENCE)
    assert outcomes == [Hit(5)] * 4
    server.kill()
    server.start()
    for _ in range(5):
        assert list(store.contains([KEY], deadline())) == [False]


class Liar:
    """A server that answers every request with the same bytes, one at a time if it is slow."""

    def __init__(self, reply, drip=False):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}"
        self.reply = reply
        self.stop = Event()
        self.drip = drip
        self.thread = Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while not self.stop.is_set():
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                try:
                    while peer.recv(1 << 16):
                        self._answer(peer)
                        if not self.drip:
                            break
                except OSError:
                    continue

    def _answer(self, peer):
        if not self.drip:
            peer.sendall(self.reply)
            return
        for byte in self.reply:
            peer.sendall(bytes([byte]))
            if self.stop.wait(0.02):
                return

    def close(self):
        self.stop.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(30)


def test_a_server_that_trickles_costs_the_deadline_not_its_patience_for_each_byte(open_store):
    # All of it takes more than a minute.
    with closing(Liar(b"$4000\r\n" + bytes(4000) + b"\r\n", drip=True)) as liar:
        store = open_store(liar.url)
        late = Deadline.after(SystemClock(), 0.3)
        assert store.read([KEY], ListSink(), late) == [TimedOut()]
        assert SystemClock().now() - late.at < 20


@each("reply", [b"$5\r\nfra", b"$5\r\nframes\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\r\n"])
def test_a_server_that_lies_or_hangs_up_fails_what_it_was_asked(open_store, reply):
    with closing(Liar(reply)) as liar:
        store = open_store(liar.url)
        (outcome,) = store.read([KEY], ListSink(), deadline())
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StoreUnreachable)


def test_what_was_answered_before_the_connection_broke_stays_answered(open_store):
    with closing(Liar(b"$5\r\nframe\r\n")) as liar:
        store = open_store(liar.url)
        sink = ListSink()
        outcomes = store.read([KEY, KEY], sink, deadline())
        assert outcomes[0] == Hit(5)
        assert isinstance(outcomes[1], Failed)
        assert sink.data(0) == b"frame"


@each("reply", [b"-LOADING wait", b"-READONLY replica", b"-ERR max number of clients reached"])
def test_a_server_that_may_do_better_later_is_worth_another_try(open_store, reply):
    with closing(Liar(reply + b"\r\n")) as liar:
        (outcome,) = open_store(liar.url).read([KEY], ListSink(), deadline())
        assert isinstance(outcome.error, StoreUnreachable)


def test_a_connection_that_owes_an_answer_is_never_used_again(open_store):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        store = open_store(f"redis://127.0.0.1:{silent.getsockname()[1]}")
        # Of a clock that stands still: each wait ends, and the time between them counts nothing.
        assert store.read([KEY], ListSink(), deadline(0.5)) == [TimedOut()]
        peer, _ = silent.accept()
        with peer:
            peer.settimeout(PATIENCE)
            assert peer.recv(1 << 16).endswith(KEY + b"\r\n")
            assert peer.recv(1) == b""
