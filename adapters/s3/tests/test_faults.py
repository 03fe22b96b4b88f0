"""What stands on S3, while S3 dies, hangs, refuses and comes back."""

from threading import Event

import pytest

import rigging
from depth import thorough
from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.engine.engine import Deadlines
from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.rules import TierRules
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    Corrupt,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    StoreError,
    StoreUnreachable,
    TimedOut,
)
from processes import PATIENCE, held_port, until
from rigging import CHUNK, LAYOUT
from servers.s3_servers import Double

KEY = chunk_key("a")
CLIENTS = ["http", *thorough("awscrt")]
PROMPT = list(range(8 * CHUNK))
SECONDS = 2.0
"""How long a caller of the engine waits for a server that says nothing."""

NOT_EACH = 7 * SECONDS
"""Longer than one such wait on a busy machine, shorter than one for each of eight chunks."""

both = pytest.mark.parametrize("client", CLIENTS)


def soon(seconds=PATIENCE):
    return Deadline.after(SystemClock(), seconds)


def frame(size):
    return memoryview(bytes(size))


@pytest.fixture
def server():
    with Double() as server:
        yield server


class Served:
    """An engine over S3 alone, whose answers are checked against what was computed."""

    def __init__(self, build, store, failures):
        # The breaker's pauses are short, so that the test waits for no clock.
        rules = TierRules(lane=LaneRules(breaker=BreakerRules(failures, 0.01, 0.02)))
        plan = TierPlan("s3", store, rules=rules)
        waits = Deadlines(lookup=SECONDS, retrieve=SECONDS, store=SECONDS)
        self.rig = build([plan], clock=SystemClock(), deadlines=waits)
        self.computed = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)

    def store(self):
        """How many tokens are there; a failure of the tier is none of the caller's."""
        report = self.rig.engine.store(PROMPT, self.computed)
        return report.stored_tokens + report.present_tokens

    def retrieve(self):
        """How many tokens came back; right ones, within the deadline and a little.

        That is less than a deadline for each of the chunks: these are not waited for in turn.
        """
        window = HeapKV(LAYOUT, len(PROMPT))
        clock = SystemClock()
        start = clock.now()
        hit = self.rig.engine.retrieve(PROMPT, window).hit_tokens
        assert clock.now() - start < NOT_EACH
        assert window.agrees(self.computed, hit)
        return hit

    def until_whole(self, call):
        """Until the tier is back and *call* treats the whole prompt."""
        until(lambda: call() == len(PROMPT))


@pytest.fixture
def serve(server, open_store, client):
    # What lookups believe about a server that forgets everything would only cost time here.
    options = server.settings | {"present_ttl": 0.0, "absent_ttl": 0.0, "client": client}
    with rigging.rigging() as build:
        yield lambda failures=5: Served(build, open_store(**options), failures)


@both
def test_memory_that_was_given_up_is_never_touched_again(server, open_store, client):
    store = open_store(client=client, **server.settings)
    store.write([Item(KEY, memoryview(b"x" * (8 << 20)))], soon())
    sink = ListSink()
    given = Event()

    class Telling(ListSink):
        def room(self, index, size):
            server.freeze()
            given.set()
            return sink.room(index, size)

    for seconds in (0.3, 2.0, PATIENCE):  # a busy machine may take longer until it asks for room
        (outcome,) = store.read([KEY], Telling(), soon(seconds))
        if given.is_set():
            break
    assert given.is_set()
    # Of a body that small, all of it may be under way already.
    assert outcome in (TimedOut(), Hit(8 << 20))
    if outcome == TimedOut():
        sink.reclaim()  # raises if anybody still looks at it
    server.thaw()
    (again,) = store.read([KEY], ListSink(), soon())
    assert again == Hit(8 << 20)


@both
def test_a_port_where_nobody_listens_fails_at_once_and_opening_does_not(open_store, client):
    endpoint = f"http://127.0.0.1:{held_port()}"
    store = open_store(endpoint=endpoint, access_key="A", secret_key="S", client=client)
    for outcomes in (
        store.read([KEY], ListSink(), soon()),
        store.write([Item(KEY, frame(10))], soon()),
    ):
        assert isinstance(outcomes[0], Failed)
        assert isinstance(outcomes[0].error, StoreUnreachable)
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], soon())


@both
def test_a_wrong_secret_is_told(server, open_store, client):
    store = open_store(client=client, **server.settings | {"secret_key": "wrong"})
    for (outcome,) in (
        store.read([KEY], ListSink(), soon()),
        store.write([Item(KEY, frame(10))], soon()),
    ):
        assert type(outcome.error) is StoreError
        assert "SignatureDoesNotMatch" in str(outcome.error)
        assert "wrong" not in str(outcome.error)
    with pytest.raises(StoreError, match="403"):
        store.contains([KEY], soon())


@both
def test_a_bucket_that_is_not_there_is_told_and_no_miss(double, open_store, client):
    store = open_store(bucket="another", client=client, **double.settings)
    (outcome,) = store.read([KEY], ListSink(), soon())
    assert "nothing creates a bucket" in str(outcome.error)
    for call in (store.contains, store.delete):
        with pytest.raises(StoreError, match="NoSuchBucket"):
            call([KEY], soon())
    with pytest.raises(StoreError, match="NoSuchBucket"):
        list(store.scan())


@both
def test_an_object_that_vanishes_after_a_lookup_is_a_miss_and_forgotten(
    double, open_store, prefix, client
):
    store = open_store(client=client, **double.settings)
    store.write([Item(KEY, frame(10))], soon())
    assert list(store.contains([KEY], soon())) == [True]
    double.objects(f"{prefix}/").delete(KEY)
    assert list(store.contains([KEY], soon())) == [True]  # so it was, a moment ago
    assert store.read([KEY], ListSink(), soon()) == [Miss()]
    assert list(store.contains([KEY], soon())) == [False]


@both
def test_an_archived_object_is_promised_in_vain_once_and_written_anew(
    serve, server, prefix, caplog
):
    served = serve()
    served.until_whole(served.store)
    engine = served.rig.engine
    archived = engine.chunk_keys(PROMPT)[5]
    server.archive(f"{prefix}/{archived.hex()}")
    assert engine.lookup(PROMPT).hit_tokens == len(PROMPT), "the server says that it has it"
    assert served.retrieve() == 5 * CHUNK
    assert engine.lookup(PROMPT).hit_tokens == 5 * CHUNK
    assert served.store() == len(PROMPT)
    assert engine.flush()
    assert engine.lookup(PROMPT).hit_tokens == served.retrieve() == len(PROMPT)
    assert engine.health().tiers[0].reading == "closed"
    (line,) = (line for line in caplog.messages if "not used until" in line)
    assert "InvalidObjectState" in line
    assert archived.hex() in line


def test_a_range_that_ends_before_its_end_is_corrupt(double, open_store):
    store = open_store(**double.settings)
    store.write([Item(KEY, frame(100))], soon())
    for start in (91, 100):
        outcome = store.read_range(KEY, start, memoryview(bytearray(10)), soon())
        assert isinstance(outcome, Corrupt)
