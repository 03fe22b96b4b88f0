"""What stands on Redis, while Redis dies, hangs, lies and comes back."""

import socket
from contextlib import closing
from threading import Event, Thread

import pytest

import rigging
from hexkv.adapters.local.memory import MemoryStore
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key
from hexkv.contracts.heap_kv import HeapKV
from hexkv.core.breaker import BreakerRules
from hexkv.core.engine import Deadlines
from hexkv.core.scheduler import LaneRules
from hexkv.core.tiers import Tier, TierRules
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Failed, Hit, Item, Miss, Stored, StoreUnreachable, TimedOut
from redis_servers import RedisServer, free_port
from rigging import CHUNK, LAYOUT

KEY = chunk_key("a")
PROMPT = list(range(8 * CHUNK))
SECONDS = 0.5
"""How long a caller of the engine waits."""


def soon(seconds=SECONDS):
    return Deadline.after(SystemClock(), seconds)


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as server:
        yield server


class Served:
    """An engine over Redis alone, whose answers are checked against what was computed."""

    def __init__(self, build, store):
        # The breaker's pauses are short, so that the test waits for no clock.
        rules = TierRules(lane=LaneRules(breaker=BreakerRules(5, 0.01, 0.02)))
        self.tier = Tier("redis", store, None, rules)
        waits = Deadlines(*[SECONDS] * len(Deadlines.__dataclass_fields__))
        self.rig = build([self.tier], clock=SystemClock(), deadlines=waits)
        self.computed = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)

    def store(self):
        """How many tokens are there; a failure of the tier is none of the caller's."""
        report = self.rig.engine.store(PROMPT, self.computed)
        return report.stored_tokens + report.present_tokens

    def retrieve(self):
        """How many tokens came back; right ones, within the deadline and a little."""
        window = HeapKV(LAYOUT, len(PROMPT))
        clock = SystemClock()
        start = clock.now()
        hit = self.rig.engine.retrieve(PROMPT, window).hit_tokens
        assert clock.now() - start < SECONDS + 2
        assert window.agrees(self.computed, hit)
        return hit

    def until_whole(self, call):
        """Until the tier is back and *call* treats the whole prompt."""
        patience = soon(30)
        while call() != len(PROMPT):
            assert not patience.expired, "the tier did not come back"


@pytest.fixture
def served(rig_of, server, open_store):
    return Served(rig_of, open_store(server.url))


@pytest.fixture
def rig_of():
    with rigging.rigging() as build:
        yield build


def test_the_engine_outlives_a_server_that_is_killed_and_started_again(served, server):
    served.until_whole(served.store)
    assert served.retrieve() == len(PROMPT)
    server.kill()
    for _ in range(8):
        assert served.retrieve() == 0
        served.store()
    server.start()
    served.until_whole(served.store)
    served.until_whole(served.retrieve)
    assert served.rig.at_rest()


def test_memory_serves_on_while_redis_is_down(rig_of, server, open_store):
    memory = rigging.tier("memory", MemoryStore(ManualClock()))
    tiers = [memory, Tier("redis", open_store(server.url))]
    rig = rig_of(tiers, clock=SystemClock())
    computed = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
    rig.engine.store(PROMPT, computed)
    server.kill()
    window = HeapKV(LAYOUT, len(PROMPT))
    assert rig.engine.retrieve(PROMPT, window).hit_tokens == len(PROMPT)
    assert window.agrees(computed, len(PROMPT))
    other = [token + 1000 for token in PROMPT]
    report = rig.engine.store(other, HeapKV(LAYOUT, len(other)).compute(other))
    assert report.stored_tokens == len(other)
    assert rig.at_rest()


def test_a_server_killed_in_the_middle_of_calls_gives_nothing_wrong(served, server):
    served.until_whole(served.store)
    begun, over = Event(), Event()
    failures = []

    def work(call):
        try:
            while not over.is_set():
                assert 0 <= call() <= len(PROMPT)
                begun.set()
        except BaseException as error:  # noqa: BLE001 - looked at by the test's own thread
            failures.append(error)

    threads = [Thread(target=work, args=(c,)) for c in (served.retrieve, served.store) * 2]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert begun.wait(30)
        server.kill()
        begun.clear()
        assert begun.wait(30)  # it answers without the server, too
        server.start()
        begun.clear()
    assert begun.wait(30)
    over.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    served.until_whole(served.store)
    served.until_whole(served.retrieve)


def test_a_frozen_server_costs_one_deadline_and_then_nothing(served, server):
    served.until_whole(served.store)
    server.freeze()
    clock = SystemClock()
    start = clock.now()
    assert served.retrieve() == 0
    assert clock.now() - start < 2 * SECONDS
    assert served.tier.reading.breaker.state != "closed"
    server.thaw()
    served.until_whole(served.retrieve)


def test_a_frozen_server_times_every_chunk_out(server, open_store):
    store = open_store(server.url)
    item = Item(KEY, memoryview(bytes(1 << 20)))
    assert store.write([item], soon(30)) == [Stored(1 << 20)]
    server.freeze()
    assert store.read([KEY, KEY], ListSink(), soon(0.1)) == [TimedOut()] * 2
    assert store.write([item, item], soon(0.1)) == [TimedOut()] * 2
    with pytest.raises(StoreUnreachable, match="no answer in time"):
        store.contains([KEY], soon(0.1))
    with pytest.raises(StoreUnreachable, match="no answer in time"):
        store.delete([KEY], soon(0.1))
    server.thaw()
    # What was given up may still happen, and does no harm.
    (outcome,) = store.read([KEY], ListSink(), soon(30))
    assert outcome in (Hit(1 << 20), Miss())


def test_a_port_where_nobody_listens_fails_at_once_and_opening_does_not(open_store):
    store = open_store(f"redis://127.0.0.1:{free_port()}")
    for outcomes in (
        store.read([KEY], ListSink(), soon(30)),
        store.write([Item(KEY, memoryview(b""))], soon(30)),
    ):
        assert isinstance(outcomes[0], Failed)
        assert isinstance(outcomes[0].error, StoreUnreachable)
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], soon(30))


def test_after_a_restart_the_first_call_succeeds_though_all_connections_are_stale(
    server, open_store
):
    store = open_store(server.url)
    barrier = Event()

    class Waiting(ListSink):
        def room(self, index, size):
            barrier.wait(30)  # so that each read has a connection of its own
            return super().room(index, size)

    store.write([Item(KEY, memoryview(b"frame"))], soon(30))
    readers = [
        Thread(target=store.read, args=([KEY], Waiting(), soon(30)), daemon=True) for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    with server.admin() as admin:
        while len(admin.client_list()) < 5:
            assert readers[0].is_alive()
    barrier.set()
    for reader in readers:
        reader.join(30)
    server.kill()
    server.start()
    for _ in range(5):
        assert list(store.contains([KEY], soon(30))) == [False]


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
    with closing(Liar(b"$1000\r\n" + bytes(1000) + b"\r\n", drip=True)) as liar:
        store = open_store(liar.url)
        late = soon(0.3)
        assert store.read([KEY], ListSink(), late) == [TimedOut()]
        assert SystemClock().now() - late.at < 1


@pytest.mark.parametrize(
    "reply", [b"$5\r\nfra", b"$5\r\nframes\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\r\n"]
)
def test_a_server_that_lies_or_hangs_up_fails_what_it_was_asked(open_store, reply):
    with closing(Liar(reply)) as liar:
        store = open_store(liar.url)
        (outcome,) = store.read([KEY], ListSink(), soon(30))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StoreUnreachable)


def test_what_was_answered_before_the_connection_broke_stays_answered(open_store):
    with closing(Liar(b"$5\r\nframe\r\n")) as liar:
        store = open_store(liar.url)
        sink = ListSink()
        outcomes = store.read([KEY, KEY], sink, soon(30))
        assert outcomes[0] == Hit(5)
        assert isinstance(outcomes[1], Failed)
        assert sink.data(0) == b"frame"


@pytest.mark.parametrize(
    "reply", [b"-LOADING wait", b"-READONLY replica", b"-ERR max number of clients reached"]
)
def test_a_server_that_may_do_better_later_is_worth_another_try(open_store, reply):
    with closing(Liar(reply + b"\r\n")) as liar:
        (outcome,) = open_store(liar.url).read([KEY], ListSink(), soon(30))
        assert isinstance(outcome.error, StoreUnreachable)


def test_a_connection_that_owes_an_answer_is_never_used_again(open_store):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_store(f"redis://127.0.0.1:{silent.getsockname()[1]}")
        assert store.read([KEY], ListSink(), soon(0.05)) == [TimedOut()]
        peer, _ = silent.accept()
        with peer:
            peer.settimeout(5)
            assert peer.recv(1 << 16).endswith(KEY + b"\r\n")
            assert peer.recv(1) == b""


def test_closing_frees_whoever_waits_for_a_frozen_server(server, open_store):
    store = open_store(server.url)
    store.contains([KEY], soon(30))
    server.freeze()
    outcomes = []
    waiting = Event()

    class Told(ManualClock):
        def now(self):
            waiting.set()
            return super().now()

    late = Deadline.after(Told(), 60.0)
    reader = Thread(target=lambda: outcomes.extend(store.read([KEY], ListSink(), late)))
    waiting.clear()
    reader.start()
    assert waiting.wait(30)
    store.close()
    reader.join(30)
    assert not reader.is_alive()
    assert isinstance(outcomes[0], Failed)
    server.thaw()
