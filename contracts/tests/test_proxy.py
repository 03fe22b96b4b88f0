"""The proxy is a bad network, exactly as it is told, and a good one otherwise."""

import gc
import socket
import socketserver
import time
from contextlib import contextmanager, suppress
from threading import Event, Thread

import pytest

from hexkv.contracts.faults.proxy import FaultProxy, Traffic, Way

PATIENCE = 60.0


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)
        except OSError:
            pass  # the tests cut connections


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@contextmanager
def running(server):
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


@pytest.fixture
def proxy():
    with running(Server(("127.0.0.1", 0), Echo)) as address, FaultProxy(address) as proxy:
        yield proxy


def connect(proxy):
    return socket.create_connection((proxy.host, proxy.port), PATIENCE)


@pytest.fixture
def client(proxy):
    with connect(proxy) as client:
        yield client


def exactly(client, size):
    data = bytearray()
    while len(data) < size and (part := client.recv(size - len(data))):
        data += part
    return bytes(data)


def ask(client, data=b"ping"):
    client.sendall(data)
    return exactly(client, len(data))


def turn(client):
    """The seconds that a question and its answer take."""
    before = time.monotonic()
    assert ask(client) == b"ping"
    return time.monotonic() - before


def ended(client):
    """Whether the other side has closed, rather than keeping silent."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def ends_at_once(proxy):
    """Whether a new connection is ended, be it before connect() has looked."""
    try:
        client = connect(proxy)
    except ConnectionError:
        return True
    with client:
        return ended(client)


def silent(client, seconds=0.2):
    client.settimeout(seconds)
    try:
        with pytest.raises(TimeoutError):
            client.recv(1)
    finally:
        client.settimeout(PATIENCE)
    return True


def swallowed(proxy):
    """Whether what is under way has come to the proxy, which passes it on to nobody."""
    return any(line.holed for line in proxy._open())


def until(reached):
    limit, pause = time.monotonic() + PATIENCE, Event()
    while not reached():
        assert time.monotonic() < limit
        pause.wait(0.005)


def test_it_listens_to_this_machine_alone(proxy):
    assert proxy.host == "127.0.0.1"
    assert proxy.address == f"127.0.0.1:{proxy.port}"


def test_everything_passes_until_something_is_wrong(proxy, client):
    data = bytes(range(256)) * 20_000
    sender = Thread(target=client.sendall, args=(data,))
    sender.start()
    intact = exactly(client, len(data)) == data
    sender.join(PATIENCE)
    assert intact
    assert proxy.traffic == Traffic(1, 1, len(data), len(data))
    client.close()
    until(lambda: proxy.traffic == Traffic(1, 0, len(data), len(data)))


def test_the_end_of_one_direction_is_passed_on(client):
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert exactly(client, 100) == b"last words"


def test_a_unix_socket_is_a_target_like_any_other(tmp_path):
    path = str(tmp_path / "echo")
    with (
        running(UnixServer(path, Echo)),
        FaultProxy(path) as proxy,
        connect(proxy) as client,
    ):
        assert ask(client) == b"ping"
        proxy.cut()
        assert ended(client)


def test_a_target_that_refuses_is_a_connection_that_ends():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and does not listen
        with FaultProxy(deaf.getsockname()) as proxy:
            assert ends_at_once(proxy)


def test_latency_is_paid_once_for_each_turn(proxy, client):
    ask(client)
    proxy.latency(0.1)
    assert turn(client) >= 0.2
    proxy.latency(600.0)
    proxy.mend()
    assert turn(client) < PATIENCE


def test_mending_ends_a_delay_that_is_under_way(proxy, client):
    proxy.latency(600.0)
    client.sendall(b"ping")
    assert silent(client, 0.05)
    proxy.mend()
    assert exactly(client, 4) == b"ping"


def test_bandwidth_limits_what_comes_through_in_a_second(proxy, client):
    proxy.bandwidth(100_000.0)
    before = time.monotonic()
    assert ask(client, bytes(20_000)) == bytes(20_000)
    assert time.monotonic() - before >= 0.2


def test_a_trickle_lets_a_request_through_at_once_and_its_reply_byte_by_byte(proxy, client):
    proxy.trickle(20.0)
    request = bytes(range(200))  # an echo of all of it takes ten seconds
    client.sendall(request)
    before = time.monotonic()
    assert exactly(client, 4) == request[:4]
    assert time.monotonic() - before >= 0.15
    assert proxy.traffic.forth == len(request)
    assert proxy.traffic.back < len(request)
    proxy.mend()
    assert exactly(client, 196) == request[4:]


def test_a_cut_ends_what_is_open_and_what_is_opened(proxy, client):
    ask(client)
    proxy.cut()
    assert ended(client)
    assert ends_at_once(proxy)
    proxy.mend()
    with connect(proxy) as later:
        assert ask(later) == b"ping"


def test_a_cut_in_the_middle_of_a_reply_lets_so_many_bytes_through(proxy, client):
    ask(client)
    proxy.cut_after(3)
    client.sendall(b"ping")
    assert exactly(client, 3) == b"pin"
    assert ended(client)


def test_a_stall_loses_nothing_and_passes_nothing(proxy, client):
    ask(client)
    proxy.stall()
    client.sendall(b"ping")
    assert silent(client)
    with connect(proxy) as later:
        later.sendall(b"pong")
        assert silent(later)
        proxy.mend()
        assert exactly(client, 4) == b"ping"
        assert exactly(later, 4) == b"pong"


@pytest.mark.parametrize("way", Way)
def test_one_direction_may_stall_alone(proxy, client, way):
    ask(client)
    proxy.stall(way)
    before = proxy.traffic
    client.sendall(b"ping")
    if way is Way.BACK:
        until(lambda: proxy.traffic.forth == before.forth + 4)
    assert silent(client)
    assert proxy.traffic.back == before.back
    proxy.mend()
    assert exactly(client, 4) == b"ping"


def test_a_stalled_connection_makes_the_sender_wait_and_fills_no_memory(proxy, client):
    ask(client)
    proxy.stall()
    client.settimeout(0.2)
    sent, part = 0, bytes(1 << 16)
    with suppress(TimeoutError):
        while sent < 256 << 20:
            sent += client.send(part)
    assert sent < 64 << 20  # what the kernel's own buffers take
    assert proxy.traffic.forth == 4


def test_garbage_comes_once_before_the_next_reply(proxy, client):
    ask(client)
    proxy.garbage(10)
    client.sendall(b"ping")
    spoilt = exactly(client, 14)
    assert spoilt[10:] == b"ping"
    assert spoilt[:10] != bytes(10)
    assert ask(client) == b"ping"
    with connect(proxy) as later:
        later.sendall(b"ping")
        assert exactly(later, 14)[:10] != spoilt[:10]


def test_the_same_seed_makes_the_same_garbage():
    found = []
    for _ in range(2):
        with (
            running(Server(("127.0.0.1", 0), Echo)) as address,
            FaultProxy(address, seed=7) as proxy,
            connect(proxy) as client,
        ):
            proxy.garbage(20)
            client.sendall(b"ping")
            found.append(exactly(client, 20))
    assert found[0] == found[1]


def test_half_open_swallows_what_the_server_says_and_that_it_is_gone():
    class Dying(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(4)
            self.request.sendall(b"farewell")

    with (
        running(Server(("127.0.0.1", 0), Dying)) as address,
        FaultProxy(address) as proxy,
        connect(proxy) as client,
    ):
        proxy.half_open(Way.BACK)
        client.sendall(b"ping")
        until(lambda: swallowed(proxy))
        assert silent(client)
        proxy.mend()
        assert ended(client)  # never a stream with a hole in it


def test_half_open_the_other_way_hides_the_client_from_the_server(proxy, client):
    ask(client)
    proxy.half_open(Way.FORTH)
    client.sendall(b"ping")
    until(lambda: swallowed(proxy))
    assert silent(client)
    assert proxy.traffic.forth == 4
    proxy.mend()
    assert ended(client)


def test_what_was_idle_while_it_was_half_open_is_whole(proxy, client):
    ask(client)
    proxy.half_open()
    proxy.mend()
    assert ask(client) == b"ping"


def test_closing_leaves_no_connection_open_that_was_just_made():
    with running(Server(("127.0.0.1", 0), Echo)) as address:
        for _ in range(50):
            one = FaultProxy(address)
            with socket.socket() as client:
                client.setblocking(False)
                client.connect_ex((one.host, one.port))
                one.close()
    gc.collect()  # what nobody closed would be complained of, and that is an error here


def test_closing_ends_everything_whatever_is_wrong_at_the_moment():
    for trouble in (FaultProxy.stall, FaultProxy.half_open, FaultProxy.mend):
        with running(Server(("127.0.0.1", 0), Echo)) as address:
            proxy = FaultProxy(address)
            with connect(proxy) as client:
                ask(client)
                trouble(proxy)
                proxy.close()
                proxy.close()
                assert ended(client)
            with pytest.raises(ConnectionError):
                connect(proxy)
