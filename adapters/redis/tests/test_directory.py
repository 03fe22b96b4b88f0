"""A directory in a Redis that stands already, among other keys."""

import os
from contextlib import contextmanager

import pytest

from hexkv.adapters.redis import _routes
from hexkv.adapters.redis._bulks import bulks
from hexkv.adapters.redis._scripts import ENTRIES
from hexkv.adapters.redis._wire import ErrorReply, RedisStream
from hexkv.adapters.redis.plugin import hexkv_adapters
from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.directory._base import NODES, batches, holders, life, some, soon
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.kit.cases import case
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Report, StoreUnreachable
from servers.redis_servers import RedisServer, cluster

CONNECTING = 10.0
BEAT = 500.0
"""Seconds: no busy machine is silent for so long."""


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def open_directory(prefix, clock, monkeypatch):
    """Opens directories as a configuration does; closes them."""
    (spec,) = (it for it in hexkv_adapters() if it.kind == "directory")
    opened = []
    monkeypatch.setattr(_routes, "_QUESTION", CONNECTING)

    def open_directory(url, **settings):
        mine = {"prefix": prefix, "connect_timeout": CONNECTING, "heartbeat": BEAT}
        made = parse_settings(spec, {"url": url} | mine | settings)
        opened.append(spec.open(made, OpenContext(clock)))
        return opened[-1]

    yield open_directory
    for directory in opened:
        directory.close()


class Door:
    """The test's keys, and their time."""

    def __init__(self, admins, prefix):
        self.admins, self.prefix = admins, prefix.encode()

    def keys(self, more=b""):
        return [
            (admin, key)
            for admin in self.admins
            for key in admin.scan_iter(self.prefix + more + b"*", 1000)
        ]

    def clear(self):
        for admin, key in self.keys():
            admin.unlink(key)

    def elapse(self, seconds):
        """Let time pass for the signs of life, which the server counts down by itself."""
        for admin, key in self.keys(b"{m}:"):
            left = admin.pttl(key) - int(seconds * 1000)
            admin.pexpire(key, left) if left > 0 else admin.unlink(key)


class RedisDirectoryContract(DirectoryContract):
    @pytest.fixture
    def settings(self, valkey):
        return {"url": valkey.url}

    @pytest.fixture
    def seen(self, settings, open_directory, door):
        directories = {name: open_directory(**settings) for name in NODES}
        return directories.__getitem__

    @pytest.fixture
    def elapse(self, door):
        return door.elapse

    @pytest.fixture
    def forget(self, door):
        return door.clear


@pytest.fixture
def door(valkey, prefix):
    with valkey.admin() as admin:
        found = Door([admin], prefix)
        yield found
        found.clear()


@pytest.mark.thorough
class TestSingle(RedisDirectoryContract):
    @pytest.fixture
    def proxy(self, valkey):
        with FaultProxy(("127.0.0.1", valkey.port)) as proxy:
            yield proxy

    @pytest.fixture
    def settings(self, proxy):
        return {"url": f"redis://{proxy.address}"}

    @pytest.fixture
    def stalled(self, proxy):
        @contextmanager
        def stalled():
            proxy.stall()
            yield
            proxy.mend()

        return stalled


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp) as nodes:
        yield nodes


@pytest.mark.thorough
class TestCluster(RedisDirectoryContract):
    """Entries lie on all nodes, members on one."""

    @pytest.fixture
    def settings(self, nodes):
        return {"url": nodes[0].url, "topology": "cluster"}

    @pytest.fixture
    def door(self, nodes, prefix):
        admins = [node.admin() for node in nodes]
        found = Door(admins, prefix)
        yield found
        found.clear()
        for admin in admins:
            admin.close()


def test_nodes_join_report_leave_and_are_located(valkey, open_directory, door):
    """What the contract asks for at length, in ``make test-thorough``."""
    ada, bob, keys = open_directory(valkey.url), open_directory(valkey.url), some(600)
    assert ada.join(life("ada"), batches(keys[:500]), soon())
    assert bob.join(life("bob"), batches(keys[400:]), soon())
    assert holders(ada, keys) == [["ada"]] * 400 + [["ada", "bob"]] * 100 + [["bob"]] * 100
    assert ada.report(life("ada"), Report(1, keys[500:], keys[:100]), soon())
    assert not ada.report(life("ada"), Report(3), soon())
    assert ada.heartbeat(life("ada"), 1, soon())
    bob.leave(life("bob"), soon())
    assert holders(bob, keys) == [[]] * 100 + [["ada"]] * 500
    door.elapse(3 * BEAT)
    assert holders(bob, keys) == [[]] * 600
    assert not ada.heartbeat(life("ada"), 1, soon())


def test_the_last_life_of_a_node_is_known_after_it_is_silent_or_has_left(
    valkey, open_directory, door
):
    ada, bob = open_directory(valkey.url, ttl=5000.0), open_directory(valkey.url)
    assert bob.last_life("ada", soon()) == 0
    assert ada.join(life("ada", 2**62), [], soon())
    assert bob.join(life("bob", 7), [], soon())
    door.elapse(3 * BEAT)
    assert bob.join(life("bob", 8), [], soon()), "which forgets silent members"
    bob.leave(life("bob", 8), soon())
    assert [bob.last_life(name, soon()) for name in ("ada", "bob", "cyd")] == [2**62, 8, 0]
    ((admin, last),) = door.keys(b"{m}life:ada")
    assert 4900 < admin.ttl(last) <= 5000
    admin.unlink(last)
    assert ada.join(life("ada", 2**62), [], soon())
    ((admin, last),) = door.keys(b"{m}life:ada")
    admin.unlink(last)
    assert bob.last_life("ada", soon()) == 2**62, "as of one that joined by a former version"


def test_a_sign_of_life_lasts_three_heartbeats_and_an_entry_its_ttl(valkey, open_directory, door):
    ada = open_directory(valkey.url, ttl=5000.0)
    assert ada.join(life("ada"), batches(some(1)), soon())
    ((admin, sign),) = door.keys(b"{m}:")
    assert 2.9 * BEAT < admin.pttl(sign) / 1000 <= 3 * BEAT
    ((_, entry),) = door.keys(b"e:")
    assert 4900 < admin.ttl(entry) <= 5000


def test_a_node_renews_its_snapshot_after_half_of_the_ttl(valkey, open_directory, clock, door):
    ada, keys = open_directory(valkey.url, ttl=5000.0), some(2)
    assert ada.join(life("ada"), batches(keys), soon())
    door.admins[0].unlink(door.keys(b"e:")[0][1])  # evicted, or lost by a failover
    assert sorted(holders(ada, keys)) == [[], ["ada"]]
    clock.advance(2499)
    assert ada.heartbeat(life("ada"), 0, soon())
    clock.advance(2)
    assert not ada.heartbeat(life("ada"), 0, soon())
    assert ada.join(life("ada"), batches(keys), soon())
    assert holders(ada, keys) == [["ada"]] * 2


def test_marks_of_memberships_that_are_over_are_dropped_where_they_are_met(
    valkey, open_directory, door
):
    ada, bob, keys = open_directory(valkey.url), open_directory(valkey.url), some(1)
    for generation in range(1, 6):
        assert bob.join(life("bob", generation), batches(keys), soon())
        assert ada.join(life("ada", generation), batches(keys), soon())
    ((admin, entry),) = door.keys(b"e:")
    assert len(admin.get(entry)) == 16, "one mark each"
    assert holders(ada, keys) == [["ada", "bob"]]
    bob.leave(life("bob", 5), soon())
    assert holders(ada, keys) == [["ada"]]  # which shows ada that bob is gone
    assert ada.report(life("ada", 5), Report(1, keys), soon())
    assert len(admin.get(entry)) == 8
    assert ada.report(life("ada", 5), Report(2, [], keys), soon())
    assert door.keys(b"e:") == []


@pytest.mark.thorough
def test_a_chunk_with_very_many_marks_keeps_the_last_ones(valkey, door):
    admin, name = door.admins[0], door.prefix + b"e:x"
    marks = [os.urandom(8) for _ in range(70)]
    for mark in marks:
        admin.eval(ENTRIES, 1, name, mark, b"", 100, 1)
    assert admin.get(name) == b"".join(marks[-64:])


@pytest.mark.thorough
def test_a_full_server_refuses_and_a_dead_one_is_unreachable(tmp_path, open_directory):
    with RedisServer(tmp_path) as server:
        ada, keys = open_directory(server.url), some(3)
        assert ada.join(life("ada"), batches(keys), soon())
        with server.admin() as admin:
            admin.config_set("maxmemory", "1")
            with pytest.raises(Exception, match="OOM"):
                ada.report(life("ada"), Report(1, some(9, "more")), soon())
            admin.config_set("maxmemory", "0")
        assert ada.heartbeat(life("ada"), 0, soon())
        server.kill()
        with pytest.raises(StoreUnreachable):
            ada.locate(keys, soon())
        server.start()
        assert holders(ada, keys) == [[]] * 3
        assert not ada.heartbeat(life("ada"), 0, soon())
        assert ada.join(life("ada"), batches(keys), soon())
        assert holders(ada, keys) == [["ada"]] * 3


class Pieces:
    """A stream that gives its bytes in pieces of a size."""

    def __init__(self, data, size):
        self.data, self.size = data, size

    def take_some(self, most, deadline):
        piece, self.data = self.data[: min(most, self.size)], self.data[min(most, self.size) :]
        return piece

    def take_until(self, end, most, deadline, *, ahead):
        place = self.data.find(end)
        if place < 0:
            return None
        found, self.data = self.data[: place + 2], self.data[place + 2 :]
        return found

    def give_back(self, data):
        self.data = data + self.data


def test_values_are_read_whatever_pieces_they_come_in():
    values = [b"", None, b"a", b"\r\n$-1\r\n", None, b"x" * 300]
    said = b"".join(b"$-1\r\n" if it is None else b"$%d\r\n%b\r\n" % (len(it), it) for it in values)
    for size in (1, 2, 3, 7, 1000):
        for head, array in ((b"", False), (b"*%d\r\n" % len(values), True)):
            with case((size, array)):
                stream = Pieces(head + said + b"+next\r\n", size)
                assert bulks(RedisStream(stream), len(values), soon(), array=array) == values
                assert stream.data == b"+next\r\n"
    wrongs = [b"$8\r\n12345678xx", b"$5000\r\n", b"$1\r\nab\r\n", b":1\r\n", b"x" * 5000]
    for wrong in (*wrongs, b"$-2\r\n", b"$1"):
        with case(wrong), pytest.raises(StoreUnreachable):
            bulks(RedisStream(Pieces(wrong, 64)), 1, soon(), array=False)
    with pytest.raises(ErrorReply):
        bulks(RedisStream(Pieces(b"-ERR no\r\n", 64)), 1, soon(), array=False)
