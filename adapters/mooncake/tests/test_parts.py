"""What needs no server: settings, numbers, errands and turns."""

import sys
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from hexkv.adapters.mooncake import _connection
from hexkv.adapters.mooncake._connection import RetriedConnection
from hexkv.adapters.mooncake._errands import CallThreads, OutOfTime
from hexkv.adapters.mooncake._native import error_of, library, read_outcome
from hexkv.adapters.mooncake._rehearsal import SetupArguments, _wrong
from hexkv.adapters.mooncake._staging import Staging
from hexkv.adapters.mooncake._turns import Turns
from hexkv.adapters.mooncake.plugin import MooncakeSettings
from hexkv.contracts.doubles import deadline
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    AdapterUnavailable,
    Deadline,
    Miss,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from servers.mooncake_servers import Region


@each(
    "wrong",
    [
        {"address": "nowhere"},
        {"address": "host:0"},
        {"address": "http://host:50051"},
        {"address": "user@host:50051"},
        {"metadata": "etcd"},
        {"segment_bytes": -1},
        {"replicas": 0},
        {"connect_timeout": 0.0},
        {"call_timeout": -1.0},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=r"\w"):
        MooncakeSettings(**wrong)


def test_a_master_is_named_plainly_or_by_a_url():
    assert MooncakeSettings("host:1234").master == "host:1234"
    assert MooncakeSettings("mooncake://host:1234/").master == "host:1234"
    assert MooncakeSettings("[::1]:1234").master == "[::1]:1234"


@each(
    ("code", "kind"),
    [
        (-200, StoreFull),
        (-600, StoreError),
        (-706, StoreUnreachable),
        (-707, StoreUnreachable),
        (-800, StoreUnreachable),
        (-900, StoreUnreachable),
        (-12345, StoreUnreachable),
    ],
)
def test_every_number_is_an_error_of_a_store(code, kind):
    assert type(error_of(code)) is kind
    assert str(code) in str(error_of(code))


@each("code", [-703, -704])
def test_what_is_not_there_is_a_miss(code):
    assert read_outcome(code) == Miss()


def test_a_missing_library_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(AdapterUnavailable, match=r"pip install hexkv-mooncake\[tcp\]"):
        library()


COMPLAINT = b"E1121 01:29:52.557592 26336 master_client.cpp:370] RPC call failed\n"


@each(
    ("said", "wrong"),
    [
        ([b"I1121 01:29:52.557592 2 a.cpp:1] fine\n", b"hexkv: connected\n", COMPLAINT], None),
        ([b"I1121 01:29:52.557592 2 a.cpp:1] fine\n", COMPLAINT, b"-1\n"], "RPC call failed"),
        ([b"Traceback ...\n", b"ImportError: libnuma\n", b"\n"], "ImportError: libnuma"),
        ([], "no answer"),
    ],
)
def test_a_rehearsal_says_what_the_library_complained_of_or_what_came_last(said, wrong):
    assert _wrong(said) == wrong


@each(
    ("host", "without_port"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("node.example:12345", "node.example"),
        ("[fe80::1]:12345", "[fe80::1]"),
        ("fe80::1", "fe80::1"),
    ],
)
def test_a_rehearsal_takes_nobodys_port(host, without_port):
    place = SetupArguments("master:50051", "P2PHANDSHAKE", host, "tcp", "", 0, 0)
    assert place.anywhere().local_host == without_port


@pytest.fixture
def threads():
    threads = CallThreads("test", most=2)
    yield threads
    threads.close()


def test_a_call_thread_gives_or_raises_the_result_of_its_call(threads):
    assert threads.run(lambda: 42, 30) == 42
    with pytest.raises(ZeroDivisionError):
        threads.run(lambda: 1 // 0, 30)


def test_a_call_that_hangs_is_given_up_and_ended_only_when_it_ends(threads):
    go, ended = Event(), Event()
    with pytest.raises(OutOfTime):
        threads.run(lambda: go.wait(30), 0.01, after=ended.set)
    assert not ended.is_set()
    go.set()
    assert ended.wait(30)


def test_when_every_thread_hangs_the_next_call_is_refused_and_ended(threads):
    go, ended = Event(), []
    for _ in range(2):
        with pytest.raises(OutOfTime):
            threads.run(lambda: go.wait(30), 0.01)
    with pytest.raises(StoreUnreachable, match="2 calls hang"):
        threads.run(lambda: 1, 30, after=lambda: ended.append(1))
    assert ended == [1]
    go.set()


def test_closing_frees_the_caller_that_waits(threads):
    go, begun, raised = Event(), Event(), []

    def call():
        begun.set()
        go.wait(30)

    def wait():
        try:
            threads.run(call, 30)
        except StoreError as error:
            raised.append(str(error))

    waiting = Thread(target=wait)
    waiting.start()
    assert begun.wait(30)
    threads.close()
    waiting.join(30)
    assert raised == ["the store is closed"]
    go.set()
    with pytest.raises(StoreError, match="closed"):
        threads.run(lambda: 1, 30)


def test_readers_share_and_whoever_changes_is_alone():
    turns, now = Turns(), Deadline.after(SystemClock(), 0.01)
    with turns.reading({"a", "b"}, deadline()), turns.reading({"a"}, deadline()):
        with pytest.raises(OutOfTime), turns.changing(["a"], now):
            pass
        changing = turns.changing(["c"], deadline())
        with changing, pytest.raises(OutOfTime), turns.reading({"c"}, now):
            pass
    changing = turns.changing(["a"], deadline())
    with changing, pytest.raises(OutOfTime), turns.changing(["b", "a"], now):
        pass
    with turns.changing(["a", "b", "c"], deadline()):
        pass


class Registry:
    """What staging uses of a client, and who connects one."""

    def __init__(self):
        self.known = {}

    def setup(self, *arguments):
        return 0

    def close(self):
        return 0

    def register_buffer(self, address, size):
        self.known[address] = size
        return 0

    def unregister_buffer(self, address):
        del self.known[address]
        return 0


def test_staging_is_bounded_used_again_and_not_lent_while_somebody_has_it():
    client, staging, now = Registry(), Staging(8192), Deadline.after(SystemClock(), 0.01)
    loan = staging.lend(client, [5000], deadline())
    loan.share()
    loan.release()
    with pytest.raises(OutOfTime):
        staging.lend(client, [100], now)
    (first,) = loan.buffers
    loan.release()
    again = staging.lend(client, [8000], deadline())
    assert again.buffers == [first]
    again.release()
    large = staging.lend(client, [100_000], deadline())
    assert sum(client.known.values()) == 102_400
    large.release()
    staging.lend(client, [1], deadline()).release()
    assert sum(client.known.values()) <= 8192


def test_memory_that_is_offered_while_a_client_connects_is_registered_before_anybody_has_it(
    monkeypatch,
):
    regions, offered = [Region(4096), Region(8192)], []

    class Coming(Registry):
        """More memory is offered while some is being registered."""

        def register_buffer(self, address, size):
            if not offered:
                offered.append(True)
                connection.register(regions[1])
            return super().register_buffer(address, size)

    class Module:
        MooncakeDistributedStore = Coming

    begun = Event()

    @contextmanager
    def rehearsed(place, seconds):
        assert begun.wait(30)
        yield

    monkeypatch.setattr(_connection, "rehearsed", rehearsed)
    place = SetupArguments("master:50051", "P2PHANDSHAKE", "127.0.0.1", "tcp", "", 0, 0)
    connection = RetriedConnection(place, Module(), SystemClock(), 30.0)
    connection.register(regions[0])
    begun.set()
    connection.wait(30)
    assert all(connection.knows(r.address, len(r.buffer)) for r in regions)
    connection.close()
