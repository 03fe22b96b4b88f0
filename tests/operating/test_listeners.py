"""A client that is silent, or slow, keeps no other client out, at any listener of the project."""

import socket
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from hexkv.adapters.admin import server as admin_server
from hexkv.adapters.admin import wire as admin_wire
from hexkv.adapters.admin.server import AdminServer
from hexkv.adapters.directory import wire as directory_wire
from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.client import RemoteDirectory
from hexkv.adapters.directory.server import DirectoryServer
from hexkv.adapters.lmserver import wire as lm_wire
from hexkv.adapters.lmserver.handshake import greet as greet_lm
from hexkv.adapters.lmserver.server import Server as LMServer
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.peers import wire as peer_wire
from hexkv.adapters.net.peers.line import greet as greet_peer
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.net.server.server import listen
from hexkv.adapters.net.stream import Stream, connect
from hexkv.adapters.node import wire as node_wire
from hexkv.adapters.node.server.limits import ClientLimits
from hexkv.adapters.observe.http import HealthServer
from hexkv.adapters.shm.channel import ShmChannel
from hexkv.adapters.tcp.channel import TcpChannel
from hexkv.adapters.vllm.lookup.channel import ChannelServer
from hexkv.contracts.channel.blocks import Blocks
from hexkv.contracts.channel.source import HeldFrames
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import FRAME_VERSION, PAGE, ConfigError, Deadline
from nodes import FRAME, Node, NodeProcess
from operating.administration import short_folder
from processes import PATIENCE, until

PLACES = 4
SECONDS = 5.0
"""For all before the first request, where that cannot be set."""

SHORT = 0.5

MANY = 500


class Nothing:
    """What is served to clients that ask for nothing; it can be referred to weakly."""


def soon():
    return Deadline.after(SystemClock(), PATIENCE)


def running(server):
    """Run *server* in a thread until the stack that gets this ends."""
    thread = Thread(target=server.run, daemon=True)
    thread.start()

    @contextmanager
    def ending():
        try:
            yield server
        finally:
            server.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()

    return ending()


def served(address, admission, start, greet):
    """A listener: where it is, its places, how a greeting begins, and what greets it."""
    return SimpleNamespace(address=address, admission=admission, start=start, greet=greet)


def health(opened, clock, places, seconds):
    server = HealthServer(Address("127.0.0.1"), clock, str, str, str, connections=places)
    opened.callback(server.close)

    def greet(stream):
        stream.send([b"GET /healthz HTTP/1.0\r\n\r\n"], soon())
        assert stream.take(15, soon()) == b"HTTP/1.0 200 OK"

    at = Address("127.0.0.1", server.port)
    return served(at, server._server._admission, b"GET /healthz HTTP/1.1\r\nX: aaaaaaa", greet)


def admin(address):
    def make(opened, clock, places, seconds):
        place = address or Address(path=f"{opened.enter_context(short_folder())}/admin.sock")
        listener = Listener(place)
        at = place if place.path else Address(listener.host, listener.port)
        administration = Nothing()
        opened.enter_context(patch.object(admin_server, "_OPENING", seconds))
        server = AdminServer(administration, listener, clock, clients=places)
        opened.callback(server.close)
        opened.callback(lambda: administration)
        greet = lambda stream: admin_wire.HANDSHAKE.greet(stream, soon(), b"")  # noqa: E731
        return served(at, server._admission, admin_wire.HANDSHAKE.hello(), greet)

    return make


def directory(opened, clock, places, seconds):
    server = DirectoryServer(
        listen("127.0.0.1", 0), Cell(clock), clock, connections=places, patience=seconds
    )
    opened.enter_context(running(server))
    at = Address(*server.address)
    greet = lambda stream: RemoteDirectory._greeted(RemoteDirectory(at), stream, soon())  # noqa: E731
    return served(at, server._admission, directory_wire.HANDSHAKE.hello(), greet)


def lm(opened, clock, places, seconds):
    values = SimpleNamespace(of=lambda scheme: None, durable=False)
    limits = Limits(1 << 20, patience=seconds)
    server = LMServer(listen("127.0.0.1", 0), values, clock, limits, connections=places)
    opened.enter_context(running(server))
    greet = lambda stream: greet_lm(stream, b"", soon(), checked=False)  # noqa: E731
    start = lm_wire.HANDSHAKE.hello(0)
    return served(Address(*server.address), server._admission, start, greet)


def peers(make, magic):
    def made(opened, clock, places, seconds):
        limits = Limits(16 * PAGE, patience=seconds)
        channel = opened.enter_context(make(clock, limits=limits, clients=places))
        source = HeldFrames(Blocks.on_heap(1, 4 * PAGE))
        at = channel.place(channel.serve(source, 1).address)
        word = magic(channel)
        start = peer_wire.handshake(word).hello(b"")
        greet = lambda stream: greet_peer(stream, b"", "", 16 * PAGE, soon(), word)  # noqa: E731
        return served(at, channel._server._admission, start, greet)

    return made


def node(opened, clock, places, seconds):
    root = opened.enter_context(short_folder())
    limits = ClientLimits(FRAME, patience=seconds)
    there = opened.enter_context(
        Node(root, slots=2, memory=1, disk=False, clients=places, limits=limits, clock=clock)
    )

    def greet(stream):
        passed = []
        node_wire.HANDSHAKE.greet(stream, soon(), b"", FRAME_VERSION, 0, passed=passed)
        socket.close(*passed)

    at = Address(path=str(there.path))
    return served(
        at, there.server._admission, node_wire.HANDSHAKE.hello(FRAME_VERSION, 0)[:-1], greet
    )


LISTENERS = {
    "numbers and probes": health,
    "administration": admin(None),
    "administration over TCP": admin(Address("127.0.0.1")),
    "a directory": directory,
    "hexkv serve": lm,
    "peers over TCP": peers(
        lambda clock, **options: TcpChannel(Address("127.0.0.1"), clock, **options),
        lambda channel: peer_wire.MAGIC,
    ),
    "peers over shared memory": peers(ShmChannel, lambda channel: channel._memory.magic),
    "a node": node,
}
every_listener = pytest.mark.parametrize("make", LISTENERS.values(), ids=LISTENERS)


def silent(opened, address):
    stream = connect(address, soon())
    opened.callback(stream.close)
    return stream


@every_listener
def test_the_longest_silent_gives_way_to_a_newcomer_and_is_counted(make):
    with ExitStack() as opened:
        there = make(opened, ManualClock(), PLACES, PATIENCE)
        first, *_ = [silent(opened, there.address) for _ in range(3 * PLACES)]
        there.greet(silent(opened, there.address))
        with suppress(ConnectionResetError):
            assert not first.socket.recv(1), "it has given way"
        until(lambda: sum(there.admission.turned_away.values()) >= 2 * PLACES + 1)


@every_listener
def test_a_byte_now_and_then_buys_no_time(make):
    clock = ManualClock()
    with ExitStack() as opened:
        there = make(opened, clock, PLACES, SHORT)
        stream = silent(opened, there.address)
        until(lambda: there.admission.clients)
        with suppress(OSError):  # it ends while bytes are sent
            for place in range(12):
                stream.socket.sendall(there.start[place : place + 1])
                clock.advance(SECONDS / 10)
        with suppress(ConnectionResetError):
            assert not stream.socket.recv(1), "it is over"
        until(lambda: there.admission.turned_away == {"late": 1})


@every_listener
@each("ends", ["it vanishes", "it sends noise"])
def test_a_client_that_ends_amid_a_message_frees_its_place_and_harms_no_other(make, ends):
    with ExitStack() as opened:
        there = make(opened, SystemClock(), PLACES, PATIENCE)
        if ends == "it vanishes":
            streams = [silent(opened, there.address) for _ in range(PLACES)]
            for stream in streams[:-1]:
                stream.send([there.start[:7]], soon())
                stream.close()
        else:
            streams = [silent(opened, there.address)]
            streams[0].send([there.start + bytes(range(256)) * 4], soon())
        streams[-1].abort()
        until(lambda: not there.admission.clients)
        there.greet(silent(opened, there.address))


def test_probes_are_answered_beside_500_silent_and_500_trickling_connections():
    with ExitStack() as opened:
        there = health(opened, ManualClock(), 64, PATIENCE)
        crowd = [silent(opened, there.address) for _ in range(2 * MANY)]
        for turn in range(3):
            for stream in crowd[::2]:
                with suppress(OSError):
                    stream.socket.sendall(there.start[turn : turn + 1])
            there.greet(silent(opened, there.address))
        assert sum(there.admission.turned_away.values()) >= 2 * MANY - 64


def test_a_request_has_five_seconds_in_all_and_one_to_its_first_byte():
    """By the deadlines of what is waited for: nothing here takes a second."""
    clock, first, ends = ManualClock(), [], []
    take_some, send = Stream.take_some, Stream.send

    def slow():
        clock.advance(3.0)
        return ""

    def ready(self, seconds):
        first.append(seconds)
        return True

    def taking(self, most, deadline):
        ends.append(deadline.at)
        return take_some(self, most, deadline)

    def sending(self, views, deadline):
        ends.append(deadline.at)
        send(self, views, deadline)

    server = HealthServer(Address("127.0.0.1"), clock, str, slow, str)
    here, there = socket.socketpair()
    with (
        closing(server),
        closing(here),
        patch.multiple(Stream, ready=ready, take_some=taking, send=sending),
    ):
        here.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")  # so that the server waits for nothing
        start = clock.now()
        server._server._admission.admit(there)
        here.settimeout(PATIENCE)
        assert here.recv(15) == b"HTTP/1.0 200 OK"
    assert first == [1.0]
    assert clock.now() == start + 3.0
    assert set(ends) == {start + 5.0}
    assert len(ends) > 1, "of what comes, and of what goes"


# ------------------------------------------------------------------------ sockets of ended servers


def administers(opened, path):
    administration = Nothing()
    opened.callback(lambda: administration)
    return AdminServer(administration, Listener(Address(path=path)), SystemClock())


def lends(_, path):
    channel = ShmChannel(SystemClock(), listen=path)
    try:
        channel.serve(HeldFrames(Blocks.on_heap(1, 4 * PAGE)), 1)
    except BaseException:
        channel.close()
        raise
    return channel


AT_PATHS = {
    "administration": administers,
    "peers over shared memory": lends,
    "vLLM's lookups": lambda _, path: ChannelServer(Path(path), dict),
}
"""Those that listen at a path, beside the node; directories and ``hexkv serve`` listen at ports."""


@each("start", AT_PATHS.values())
def test_a_path_is_taken_from_ended_servers_of_this_user_alone(start):
    with ExitStack() as opened:
        folder = opened.enter_context(short_folder())
        path = folder / "a.sock"
        (folder / "a.sock.lock").touch()
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
        with closing(start(opened, str(path))):
            with pytest.raises(ConfigError, match="another process serves it"):
                start(opened, str(path))
            silent(opened, Address(path=str(path)))
        assert not [*folder.iterdir()]

        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            with patch("os.geteuid", lambda: 4711), pytest.raises(ConfigError, match="of user"):
                start(opened, str(path))
            other.listen(1)
            with pytest.raises(ConfigError, match="another process serves it"):
                start(opened, str(path))
            silent(opened, Address(path=str(path)))
        path.unlink()
        path.write_text("mine")
        with pytest.raises(ConfigError, match="no socket"):
            start(opened, str(path))
        assert path.read_text() == "mine"


@pytest.mark.thorough
def test_a_node_and_its_administration_leave_no_socket_and_take_those_of_a_killed_one(tmp_path):
    with short_folder() as folder, ExitStack() as opened:
        address = str(folder / "admin.sock")
        node = opened.enter_context(NodeProcess(tmp_path, admin={"address": address}))
        for end in (node.kill, node.stop, node.kill):
            second = node.begin()
            assert second.wait(PATIENCE) != 0
            assert "another process serves it" in node.said()
            silent(opened, Address(path=address))
            silent(opened, Address(path=str(node.path)))
            end()
            assert node.path.exists() == (folder / "admin.sock").exists() == (end == node.kill)
            node.start()
        node.stop()
        assert not [*folder.iterdir()]
        assert {it.name for it in node.folder.iterdir()} == {"hexkv.yaml", "log"}
