"""The master that a sentinel names, also when it changes."""

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.ports import (
    Failed,
    Hit,
    Item,
    Stored,
    StoreError,
    StoreUnreachable,
)
from processes import held_port, until
from servers.redis_servers import RedisServer

KEY = chunk_key("a")
ITEM = Item(KEY, memoryview(b"frame"))


@pytest.fixture
def master(tmp_path):
    (tmp_path / "master").mkdir()
    at_once = ("--repl-diskless-sync-delay", "0")
    with RedisServer(tmp_path / "master", *at_once) as server:
        yield server


@pytest.fixture
def replica(tmp_path, master):
    (tmp_path / "replica").mkdir()
    of = ["--replicaof", f"127.0.0.1 {master.port}"]
    with RedisServer(tmp_path / "replica", *of) as server:
        yield server


@pytest.fixture
def sentinel(tmp_path, master):
    (tmp_path / "sentinel").mkdir()
    file = tmp_path / "sentinel" / "sentinel.conf"
    file.write_text(
        f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds mymaster 60000\n"
    )
    with RedisServer(file.parent, str(file), "--sentinel") as server:
        yield server


def test_the_master_is_found_and_used(master, sentinel, open_store, prefix):
    store = open_store(sentinel.url, topology="sentinel")
    assert store.write([ITEM], deadline()) == [Stored(5)]
    assert store.read([KEY], ListSink(), deadline()) == [Hit(5)]
    with master.admin() as admin:
        assert admin.get(prefix.encode() + KEY) == b"frame"


def test_a_dead_sentinel_is_passed_over(master, sentinel, open_store):
    dead = f"redis://127.0.0.1:{held_port()}"
    store = open_store(dead, topology="sentinel", others=(sentinel.address,))
    assert store.write([ITEM], deadline()) == [Stored(5)]


def test_a_sentinel_that_dies_later_is_not_missed(master, sentinel, open_store):
    store = open_store(sentinel.url, topology="sentinel")
    store.write([ITEM], deadline())
    sentinel.kill()
    assert store.read([KEY], ListSink(), deadline()) == [Hit(5)]


def test_a_service_that_no_sentinel_knows_is_an_error(master, sentinel, open_store):
    store = open_store(sentinel.url, topology="sentinel", service="other")
    with pytest.raises(StoreError, match="no sentinel knows 'other'"):
        store.contains([KEY], deadline())


def test_without_a_sentinel_there_is_no_master_but_an_error_at_once(open_store):
    store = open_store(f"redis://127.0.0.1:{held_port()}", topology="sentinel")
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], deadline())


def test_after_a_failover_the_new_master_is_used(master, replica, sentinel, open_store, prefix):
    store = open_store(sentinel.url, topology="sentinel")
    assert store.write([ITEM], deadline()) == [Stored(5)]
    with sentinel.admin() as watcher, replica.admin() as next_master:
        until(lambda: next_master.info("replication")["master_link_status"] == "up")
        # What a sentinel does when it promotes, without its minutes of waiting. Meanwhile it does
        # not watch: it might set right what it sees.
        watcher.execute_command("SENTINEL REMOVE", "mymaster")
        next_master.execute_command("REPLICAOF NO ONE")
        with master.admin() as old:
            old.execute_command("REPLICAOF", "127.0.0.1", replica.port)
        watcher.execute_command("SENTINEL MONITOR", "mymaster", "127.0.0.1", replica.port, 1)
        (refused,) = store.write([ITEM], deadline())
        assert isinstance(refused, Failed)
        assert isinstance(refused.error, StoreUnreachable)
        assert store.write([ITEM], deadline()) == [Stored(5)]
        assert next_master.get(prefix.encode() + KEY) == b"frame"
