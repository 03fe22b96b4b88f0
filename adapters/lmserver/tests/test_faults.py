"""What the contract does not say about a server that dies, hangs, fills up or comes back."""

import signal
import socket
import time
from dataclasses import replace
from threading import Event, Thread, get_ident

import pytest

from depth import thorough
from hexkv.adapters.lmserver.server import Server
from hexkv.adapters.net.server.connection import Limits
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.engine.engine import Deadlines
from hexkv.core.policies.lru import LRU
from hexkv.core.tiers.index.index import TierIndex
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    Deadline,
    Failed,
    Item,
    Miss,
    Stored,
    StoreError,
    StoreUnreachable,
    TimedOut,
)
from processes import PATIENCE, held_port
from rigging import CHUNK, LAYOUT, rigging, tier
from servers.lm_servers import SMALL, RawHexkv, Served, served

PROMPT = list(range(10 * CHUNK))


@pytest.fixture(scope="module")
def spare():
    server = Served(*SMALL)
    yield server
    if server.process.poll() is None:
        server.stop()


@pytest.fixture
def own(spare):
    """A server to do harm to, which runs again afterwards."""
    yield spare
    if spare.process.poll() is None:
        spare.thaw()
    else:
        spare.start()


@pytest.fixture
def rig():
    with rigging() as build:
        yield build


def empty(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens))


def computed(tokens=PROMPT):
    return empty(tokens).compute(tokens)


def timed(call):
    start = time.monotonic()
    answer = call()
    return answer, time.monotonic() - start


def test_a_store_opens_without_its_server_and_says_that_it_is_unreachable(open_store, key, soon):
    nowhere = f"127.0.0.1:{held_port()}"
    store = open_store(nowhere)
    with pytest.raises(StoreUnreachable):
        store.contains([key], soon)
    (outcome,) = store.read([key], ListSink(), soon)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreUnreachable)


def test_an_idle_connection_that_broke_is_not_used_again(own, open_store, key, soon):
    store = open_store(own.address)
    assert store.write([Item(key, memoryview(b"1"))], soon) == [Stored(1)]
    own.kill()
    own.start()
    assert store.read([key], ListSink(), soon) == [Miss()]


def test_callers_beyond_the_connections_wait_no_longer_than_their_deadline(own, open_store, key):
    store = open_store(own.address, connections=1)
    own.freeze()
    outcomes = []

    def read():
        until = Deadline.after(SystemClock(), 0.5)
        outcomes.extend(timed(lambda: store.read([key], ListSink(), until)))

    threads = [Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert outcomes[::2] == [[TimedOut()]] * 4
    assert max(outcomes[1::2]) < 20.0, "the server answers nothing, ever"
    own.thaw()


def test_a_full_server_evicts_by_its_policy_and_never_exceeds_its_budget(server, open_store, soon):
    store = open_store(server.address)
    frame = memoryview(bytearray(30 << 20))
    keys = [chunk_key(str(i)) for i in range(9)]
    for key in keys:
        assert store.write([Item(key, frame)], soon) == [Stored(len(frame))]
        assert sum(entry.size for entry in store.scan()) <= 160 << 20
    assert list(store.contains(keys, soon)) == [False] * 4 + [True] * 5
    store.read(keys[4:5], ListSink(), soon)
    assert store.write([Item(chunk_key("new"), frame)], soon) == [Stored(len(frame))]
    assert list(store.contains(keys[4:], soon)) == [True, False, True, True, True]


def test_empty_chunks_have_an_end_too(soon, open_store):
    small = ("--budget", "1MiB", "--transit", "1MiB", "--largest", "512KiB")
    with served(*small) as server:
        store = open_store(server.address)
        keys = [chunk_key(str(i)) for i in range(300)]
        store.write([Item(key, memoryview(b"")) for key in keys], soon)
        assert sum(store.contains(keys, soon)) == (1 << 20) // 4096


@pytest.mark.parametrize("signals", [*thorough(signal.SIGTERM), signal.SIGKILL])
def test_a_directory_outlives_its_server(tmp_path, open_store, soon, signals):
    options = (*SMALL, "--dir", str(tmp_path / "chunks"))
    frames = {chunk_key(str(i)): bytes([i]) * 9000 for i in range(20)}
    server = Served(*options)
    store = open_store(server.address)
    items = [Item(key, memoryview(frame)) for key, frame in frames.items()]
    assert all(isinstance(outcome, Stored) for outcome in store.write(items, soon))
    server.process.send_signal(signals)
    server.process.communicate(timeout=PATIENCE)
    server.start()
    raw = RawHexkv(server.address)
    assert raw.keys() == set(frames)
    assert all(raw.get(key) == frame for key, frame in frames.items())
    raw.close()
    assert server.stop() == (0, "")


@pytest.mark.thorough
def test_a_directory_keeps_its_budget_over_restarts(tmp_path, open_store, soon):
    frame = memoryview(bytearray(1 << 20))
    keys = [chunk_key(str(i)) for i in range(12)]
    directory = ("--dir", str(tmp_path / "chunks"))
    with served(*SMALL, *directory) as server:
        open_store(server.address).write([Item(key, frame) for key in keys], soon)
    small = ("--budget", "4MiB", "--transit", "8MiB", "--largest", "2MiB", *directory)
    with served(*small) as server:
        raw = RawHexkv(server.address)
        assert len(raw.keys()) == 3  # and a header each
        raw.close()
    files = list((tmp_path / "chunks").rglob("*.hexkv"))
    assert sum(path.stat().st_size for path in files) <= 4 << 20


def test_sigterm_ends_a_server_cleanly_whatever_its_clients_do(open_store, soon, key):
    patient = (*SMALL[:-2], "--patience", "60")
    server = Served(*patient)
    store = open_store(server.address)
    store.write([Item(key, memoryview(b"1"))], soon)
    busy = RawHexkv(server.address)
    busy.ask(3, 1, key + (1000).to_bytes(8, "little"))
    (ended, taken) = timed(server.stop)
    assert ended == (0, "")
    assert taken < 20.0, "it waited for what a client owes it"
    busy.close()


def test_a_stop_that_wakes_nobody_is_noticed_all_the_same():
    class Deaf(socket.socket):
        """As one is that a signal reaches just before it begins to wait."""

        def shutdown(self, how):
            del how

    with Deaf() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = Server(listener, None, SystemClock(), Limits(1 << 20))
        running = Thread(target=server.run, daemon=True)
        running.start()
        server.stop()
        running.join(PATIENCE)
        assert not running.is_alive()


def test_chunks_on_a_server_rebuild_an_index_at_the_start(server, open_store, rig):
    def build():
        index = TierIndex(LRU(), 1 << 30)
        it = replace(tier("remote", open_store(server.address)), index=index)
        return rig([it], clock=SystemClock(), deadlines=Deadlines(PATIENCE, PATIENCE, PATIENCE))

    build().engine.store(PROMPT, computed())
    again = build().engine
    target = empty()
    assert again.lookup(PROMPT).hit_tokens == len(PROMPT)
    assert again.retrieve(PROMPT, target).loaded_tokens == len(PROMPT)
    assert target.agrees(computed(), len(PROMPT))


def test_closing_frees_whoever_waits_for_a_connection(own, open_store, key, soon):
    store = open_store(own.address, connections=1)
    store.contains([key], soon)
    own.freeze()
    failures, seen, waiting = [], set(), Event()

    class Told(ManualClock):
        """Whoever asks it is about to wait."""

        def now(self):
            seen.add(get_ident())
            if len(seen) == 1 + 3:
                waiting.set()
            return super().now()

    late = Deadline.after(Told(), PATIENCE)

    def read():
        try:
            failures.extend(store.read([key], ListSink(), late))
        except StoreError as error:
            failures.append(error)

    threads = [Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert waiting.wait(PATIENCE)
    store.close()
    for thread in threads:
        thread.join(20)  # a third of what each would wait for the server
        assert not thread.is_alive()
    assert len(failures) == 3
    own.thaw()
