"""Nodes as peers: the node serves and reads, and its engines know nothing of it."""

import random
import socket
from contextlib import ExitStack
from secrets import token_hex
from threading import Event, Thread

import pytest

from hexkv.adapters.node.server.taking import Predecessor
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.peers.serving.addresses import Addresses
from hexkv.ports import ConfigError, StoreError
from nodes import FRAME, Node, NodeProcess
from peers.peering import directory_at, directory_of, eventually, free_address
from processes import free_port
from servers.directory_servers import SECRET, DirectoryProcess, Served

PROMPT = random.Random(5).choices(range(50_000), k=4 * TOKENS)


def hit(engine):
    """Tokens that a retrieve brings, each checked to be right."""
    target = HeapKV(LAYOUT, len(PROMPT))
    got = engine.retrieve(PROMPT, target).hit_tokens
    assert target.agrees(HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT), got)
    return got


def sections(directory, place, channel="tcp", **settings):
    """Of a node of memory that serves at *place*, and reads from others."""
    return {
        "tiers": [{"store": "memory", "budget": 12 * FRAME}, {"store": "peers"}],
        "directory": directory,
        "peers": {"channel": channel, "settings": settings | {"listen": place}},
    }


def somewhere(channel):
    """A place to listen at that nobody else takes."""
    return f"@hexkv-{token_hex(8)}" if channel == "shm" else f"127.0.0.1:{free_port()}"


def anywhere(channel):
    return f"@hexkv-{token_hex(8)}" if channel == "shm" else "127.0.0.1:0"


def test_what_one_node_holds_engines_of_another_one_hit(tmp_path):
    places = free_address(), free_address()
    with ExitStack() as opened:
        nodes = [
            opened.enter_context(
                Node(tmp_path, **sections(directory_of(other) | {"name": own}, own))
            )
            for own, other in (places, places[::-1])
        ]
        first, second = (opened.enter_context(node.engine()) for node in nodes)
        first.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
        eventually(lambda: hit(second) == len(PROMPT))


@pytest.fixture
def taken(tmp_path):
    """Opens a node at a port, an engine over it that stored a prompt, and a reader of its peers."""
    with ExitStack() as opened:

        def open_at(place, channel="tcp", kind="embedded"):
            mine, others = directories(opened, tmp_path, place, kind)
            node = opened.enter_context(NodeProcess(tmp_path, **sections(mine, place, channel)))
            engine = opened.enter_context(node.engine())
            engine.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
            other = sections(others, anywhere(channel), channel)
            other["tiers"] = [{"store": "memory", "promote": False}, {"store": "peers"}]
            reader = opened.enter_context(opened.enter_context(Node(tmp_path, **other)).engine())
            eventually(lambda: hit(reader) == len(PROMPT))
            return node, engine, reader

        yield open_at


def directories(opened, tmp_path, place, kind):
    """The sections of a node at *place*, and of one that reads from it."""
    names = {"name": "node"}, {"name": "other"}
    if kind == "over the channel":
        return directory_of() | names[0], directory_of(place) | names[1]
    if kind == "at a port":
        listen = f"127.0.0.1:{free_port()}"
        each = {"listen": listen}, {"peers": [listen]}
        mine, others = ({"adapter": "static", "settings": own} for own in each)
        return mine | names[0], others | names[1]
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    served = opened.enter_context(DirectoryProcess("--secret-file", str(secret)))
    return [directory_at(served) | name for name in names]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("channel", "fixed", "kind"),
    [
        ("tcp", False, "embedded"),
        *[(channel, True, "embedded") for channel in ("tcp", "shm", "nixl", "mooncake")],
        ("tcp", True, "over the channel"),
        ("shm", True, "over the channel"),
        ("tcp", True, "at a port"),
    ],
)
def test_a_node_that_is_taken_over_is_read_by_its_peers_again(taken, channel, fixed, kind):
    """While both are asked all the time: an engine of the node hits, a peer hits or misses."""
    if channel == "nixl":
        pytest.importorskip("nixl_cu12")
    place = somewhere(channel) if fixed else anywhere(channel)
    node, engine, reader = taken(place, channel, kind)
    over, wrong = Event(), []

    def ask(cache, fewest):
        try:
            while not over.is_set():
                assert hit(cache) >= fewest
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [Thread(target=ask, args=one) for one in ((engine, len(PROMPT)), (reader, 0))]
    for thread in threads:
        thread.start()
    for _ in range(2):
        node.take_over()
        eventually(lambda: hit(reader) == len(PROMPT))
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert "peers are not served" not in node.said()


def test_a_node_that_hands_over_leaves_its_directory_to_its_successor(tmp_path):
    """At once: by the directory's clock, which stands still, it is never silent."""
    with (
        Served(ManualClock()) as served,
        NodeProcess(tmp_path, **sections(directory_at(served) | {"name": "n"}, "127.0.0.1:0")) as n,
    ):

        def lives():
            return [member.generation for _, member in served.cell.columns()[1]]

        (before,) = eventually(lives)
        n.take_over()
        eventually(lambda: lives() > [before])


@pytest.mark.thorough
def test_a_node_that_is_not_taken_over_after_all_serves_its_peers_again(taken):
    """Also if its port is somebody else's for a while."""
    port = free_port()
    node, engine, reader = taken(f"127.0.0.1:{port}")
    with ExitStack() as held, Predecessor(node.path) as before:
        before.take()
        squatter = held.enter_context(socket.create_server(("127.0.0.1", port)))
        before.__exit__(None, None, None)
        assert hit(engine) == len(PROMPT)
        eventually(lambda: "peers are not served" in node.said())
        squatter.close()
        eventually(lambda: hit(reader) == len(PROMPT))


class Part:
    """Something that listens, where somebody else may be, or that has ended."""

    def __init__(self, wrong=None):
        self.wrong, self.serves, self.asked = wrong, True, 0

    def suspend(self):
        self.serves = False

    def resume(self):
        self.asked += 1
        if self.wrong is not None:
            raise self.wrong
        self.serves = True


@pytest.mark.thorough
def test_addresses_come_back_once_all_are_free_and_never_beside_another_hand_over():
    taken, ended, well = Part(ConfigError("taken")), Part(StoreError("closed")), Part()
    addresses = Addresses()
    for part in (taken, ended, well, object(), None):
        addresses.add(part)
    addresses.leave()
    assert not well.serves
    addresses.take_back()
    assert well.serves
    eventually(lambda: taken.asked > 1)
    addresses.leave()
    asked = taken.asked
    taken.wrong = None
    assert not well.serves
    addresses.take_back()
    assert taken.serves
    assert taken.asked == asked + 1
    taken.wrong = ConfigError("taken")
    addresses.leave()
    addresses.take_back()
    addresses.close()
    addresses.close()
    assert not taken.serves
