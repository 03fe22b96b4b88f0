"""What one failure shows seldom: many clients and nodes that are killed, stopped or lie.

Each test has a seed. What is compared to a time is compared, too, to what the machine makes of a
sleep in the same processes at the same moments, for it may be busy with something else.
"""

import os
import random
import select
import signal
import socket
import time
from collections import Counter
from contextlib import suppress
from struct import pack

import pytest

from hexkv.adapters.net.rpc.wire import HEAD, message
from hexkv.adapters.node import wire
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS, content, put, soon, specs
from hexkv.ports import FRAME_VERSION
from machines.node_crowd import COMMON, Crowd, checked, reason_words
from nodes import FRAME, MEMORY, Node, NodeProcess
from processes import until

pytestmark = pytest.mark.thorough

KILLS = 1000
RESTARTS = 200
FRAMES = 100_000


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def at_rest(node):
    """Nothing is leased, pinned, open or over."""
    node.at_rest()
    told = node.served.health()
    assert not told.pins
    assert set(told.leases) <= {MEMORY}
    assert told.leases.get(MEMORY, 0) * FRAME == told.tiers[0].used_bytes == told.pool_held_bytes


def test_a_thousand_clients_are_killed_and_nothing_is_left_of_them(tmp_path, record_property):
    """At random moments under load, one in ten of them while it is stopped."""
    chance = random.Random(15)
    with Node(tmp_path, slots=64) as node:
        reader, running = node.client(), []
        put(reader, COMMON)
        assert reader.flush(soon())
        before = descriptors()
        seen = Counter()
        with Crowd(node.path) as crowd:
            for number in range(KILLS):
                running.append(crowd.client("untidy", number))
                if len(running) < 6:
                    continue
                victim = running.pop(chance.randrange(len(running)))
                if chance.random() < 0.1:
                    victim.send(signal.SIGSTOP)
                for _ in range(chance.randrange(3)):
                    with reader.hold(COMMON, "reader", soon()) as hold:
                        assert hold.wait(soon())
                        checked(hold, COMMON, seen)
                crowd.kill(victim)
            total = crowd.stop(running)
        assert (seen["wrong"], total["wrong"], total["raised"], total["leases"]) == (0, 0, 0, 0)
        assert min(seen["hits"], total["hits"]) > 0
        reader.close()
        at_rest(node)
        # Those of the reader: its socket and the node's, and a pair to be woken by.
        until(lambda: descriptors() <= before - 4)
        record_property("reads beside", seen["hits"])


def test_sixteen_clients_at_once_read_what_each_of_them_stores(tmp_path, record_property):
    with NodeProcess(tmp_path, slots=256, memory=128) as node:
        client = node.client()
        put(client, COMMON)
        with Crowd(node.path) as crowd:
            running = [crowd.client("steady", number) for number in range(16)]
            time.sleep(8)
            seen = crowd.stop(running)
        assert (seen["wrong"], seen["raised"], seen["leases"]) == (0, 0, 0)
        assert reason_words(seen) == {}
        assert seen["hits"] == len(COMMON) * seen["rounds"]
        assert seen["published"] == seen["allocated"] == 2 * seen["rounds"] > 32
        client.close()
        node.at_rest()
        record_property("rounds", seen["rounds"])


@pytest.mark.parametrize("times", [10])
def test_no_request_fails_while_a_node_is_taken_over(tmp_path, record_property, times):
    """Under load: what is in memory is hit, and what is stored is stored."""
    chance = random.Random(5)
    with NodeProcess(tmp_path, slots=256, memory=128) as node:
        client = node.client()
        put(client, COMMON)
        with Crowd(node.path) as crowd:
            running = [crowd.client("steady", number) for number in range(6)]
            for _ in range(times):
                time.sleep(chance.random())
                node.take_over()
            seen = crowd.stop(running)
        assert (seen["wrong"], seen["raised"], seen["leases"]) == (0, 0, 0)
        assert reason_words(seen) == {}
        assert seen["hits"] == len(COMMON) * seen["rounds"]
        assert seen["published"] == seen["allocated"] == 2 * seen["rounds"] > 12
        assert client.match([spec.key for spec in COMMON], soon()) == ["memory"] * len(COMMON)
        client.close()
        node.at_rest()
        record_property("longest round, seconds", seen["longest"])


def test_calls_keep_their_deadline_while_their_node_is_killed(tmp_path, record_property):
    """Or stopped for a while; and when it is there again so are its hits."""
    chance = random.Random(200)
    with NodeProcess(tmp_path, slots=64, memory=16) as node:
        client = node.client()
        put(client, COMMON)
        assert client.flush(soon())
        client.close()
        node.stop()
        log, back = node.folder / "log", []
        with Crowd(node.path) as crowd:

            def start():
                """A node that listens."""
                child = crowd.node(log, node.arguments())
                until(lambda: f'"pid": {child.pid}' in node.said())
                return child

            child = start()
            running = [crowd.client("timed", number) for number in range(3)]
            watcher = node.client()
            for _ in range(RESTARTS):
                time.sleep(chance.random() * 0.1)
                if chance.random() < 0.1:
                    child.send(signal.SIGSTOP)
                    time.sleep(chance.random() * 0.4)
                    if chance.random() < 0.5:
                        child.send(signal.SIGCONT)
                        continue
                crowd.kill(child)
                child, up = start(), time.monotonic()
                until(lambda: watcher.match([COMMON[0].key], soon())[0] is not None)
                back.append(time.monotonic() - up)
            watcher.close()
            seen = crowd.stop(running)
            crowd.kill(child)
        record_property("misses", str(reason_words(seen)))
        record_property("latest call and latest sleep", f"{seen['call']} {seen['sleep']}")
        record_property("hits back after", f"{sorted(back)[len(back) // 2]} {max(back)}")
        assert (seen["wrong"], seen["raised"], seen["leases"]) == (0, 0, 0), dict(seen)
        assert min(seen["hits"], seen["downs"]) > 0
        assert seen["call"] <= 0.05 + 2 * seen["sleep"]
        assert max(back) <= 5 + seen["sleep"]


def traffic(chance, generation):
    """A message as a client sends it, of any kind."""
    some = specs(chance.randrange(1, 5), chance.choice(("chunk", "other")))
    keys = [spec.key for spec in some]
    space = wire.Space(some[0].identity, LAYOUT, "raw")
    count = len(some)
    wanted = wire.Wanted("owner", keys, [0] * count, [TOKENS] * count, [-1] * count)
    verb, body = chance.choice(
        [
            (wire.Verb.SPACE, wire.pack_space(0, space)),
            (wire.Verb.RELEASE, wire.pack_release([(chance.randrange(9), wire.ALL), (2, 0)])),
            (wire.Verb.PING, b""),
            (wire.Verb.MATCH, wire.pack_keys(keys)),
            (wire.Verb.HOLD, wire.pack_wanted(wanted)),
            (wire.Verb.ALLOCATE, wire.pack_wanted(wanted)),
            (wire.Verb.PUBLISH, b"\0" + (1).to_bytes(4, "little") + wire.pack_release([(3, 0)])),
            (wire.Verb.FORGET, wire.pack_keys([bytes(48)])),
            (wire.Verb.PIN, wire.pack_keys(keys, bytes(8) + wire.text("owner"))),
            (wire.Verb.UNPIN, wire.text("owner")),
            (wire.Verb.FLUSH, b""),
            (wire.Verb.CLEAR, b'{"prefixes": ["00"], "tiers": null}'),
            (wire.Verb.HEALTH, chance.choice((b"", pack("<d", 1e3)))),
            (wire.Verb.COMPUTES, pack("<Qd", chance.randrange(1, 9), 1e3)),
            (wire.Verb.USED, wire.pack_keys(keys)),
        ]
    )
    request = chance.randrange(1, 9)
    return message(verb, request, generation, body, seconds=chance.random() * 0.01)


def spoilt(chance, message):
    """A message with something wrong in it, or with nothing."""
    data = bytearray(message)
    how = chance.randrange(7)
    if how == 0:
        data = data[: chance.randrange(len(data))]
    elif how == 1:
        at = chance.randrange(len(data))
        data[at:at] = chance.randbytes(chance.randrange(1, 40))
    elif how == 2:
        data = bytearray(chance.randbytes(chance.randrange(1, 400)))
    elif how == 3:
        data[:4] = chance.randrange(1 << 32).to_bytes(4, "little")
    elif how < 6 and len(data) > HEAD.size:
        for _ in range(chance.randrange(1, 4)):  # in the body: the head is as it must be
            data[chance.randrange(HEAD.size, len(data))] = chance.randrange(256)
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def taken(sock, message):
    """Send a message, and receive what is said meanwhile. False: nothing is answered any more."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT)
    while message:
        assert poll.poll(60_000), "it neither reads nor says anything"
        with suppress(BlockingIOError):
            if not sock.recv(1 << 20):
                return False
        with suppress(BlockingIOError):
            message = message[sock.send(message) :]
    return True


def memory_of(pid):
    """Kilobytes that a process has to itself, by the system's account."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))


def test_malformed_frames_end_nothing_but_their_own_connection(tmp_path, record_property):
    """Noise, cut and spoilt messages; the node's memory does not grow with their number."""
    chance = random.Random(100)
    with NodeProcess(tmp_path, slots=32, memory=8) as node:
        client = node.client()
        put(client, specs(1))
        generation = client._keeper.link.generation
        sent, connections, sizes = 0, 0, []
        with client.hold(specs(1), "held", soon()) as held:
            assert held.wait(soon())
            while sent < FRAMES:
                with socket.socket(socket.AF_UNIX) as sock:
                    sock.settimeout(60)
                    sock.connect(str(node.path))
                    sock.sendall(wire.HANDSHAKE.hello(FRAME_VERSION, 0))
                    # What the pool is; nobody takes its descriptor.
                    assert sock.recv(wire.HANDSHAKE.challenge_bytes)
                    sock.setblocking(False)
                    connections += 1
                    with suppress(BrokenPipeError, ConnectionResetError):
                        for _ in range(chance.randrange(1, 200)):
                            message = traffic(chance, generation)
                            sent += 1
                            if chance.random() < 0.5:
                                message = spoilt(chance, message)
                            if not taken(sock, message):
                                break
                if connections % 100 == 0:
                    sizes.append(memory_of(node.process.pid))
                    assert client.match([specs(1)[0].key], soon()) == ["memory"]
            assert bytes(held.leases[0].payload) == content(specs(1)[0])
        client.close()
        node.at_rest()
        assert "Traceback" not in node.said()
        sizes.append(memory_of(node.process.pid))
        record_property("connections", connections)
        record_property("kilobytes", f"{sizes[0]} {max(sizes)} {sizes[-1]}")
        # After a tenth of all frames everything has been met: threads, buffers, log lines.
        settled = max(sizes[: max(1, len(sizes) // 10)])
        assert max(sizes) < settled + 16 * 1024
