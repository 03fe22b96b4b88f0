"""What is special about S3: what is remembered, listed, moved in parts, and by whose keys."""

import sys
from threading import Event, Thread

import pytest

from depth import thorough
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.s3._credentials import Chain
from hexkv.adapters.s3._known import Known, Lives
from hexkv.adapters.s3._signing import Credentials
from hexkv.adapters.s3.plugin import S3Settings, hexkv_adapters
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.secret import Secret
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    AdapterUnavailable,
    ConfigError,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    Stored,
    StoreError,
    TimedOut,
)
from servers.s3_double import ACCESS_KEY, SECRET_KEY

MIB = 1 << 20
A, B = chunk_key("a"), chunk_key("b")
both = pytest.mark.parametrize("client", ["http", *thorough("awscrt")])


def soon(seconds=60.0):
    """For each wait by itself: a machine that is busy in between makes nothing late."""
    return deadline(seconds)


def pattern(size):
    return bytes(range(251)) * (size // 251) + bytes(size % 251)


class StepClock(SystemClock):
    """Now stands still until it is told to advance; the calendar goes on, for signatures."""

    def __init__(self):
        self.moment = 0.0

    def now(self):
        return self.moment


@pytest.fixture
def clock():
    return StepClock()


@pytest.fixture
def objects(double, prefix):
    found = double.objects(f"{prefix}/")
    yield found
    found.clear()


def test_an_absence_is_believed_for_a_moment_and_never_by_a_read(
    double, objects, open_store, clock
):
    store = open_store(clock=clock, absent_ttl=2.0, **double.settings)
    late = Deadline(clock, 1e9)
    assert list(store.contains([A, B], late)) == [False, False]
    objects.put(A, b"written by another host")
    assert list(store.contains([A, B], late)) == [False, False]
    (read,) = store.read([A], ListSink(), late)
    assert read == Hit(23)
    assert list(store.contains([A], late)) == [True]  # the read has seen it
    objects.put(B, b"likewise")
    clock.moment += 2.0
    assert list(store.contains([A, B], late)) == [True, True]


def test_what_this_store_does_is_known_at_once(double, objects, open_store, clock):
    store = open_store(clock=clock, absent_ttl=1e4, present_ttl=1e4, **double.settings)
    late = Deadline(clock, 1e9)
    for _ in range(2):
        assert list(store.contains([A], late)) == [False]
        store.write([Item(A, memoryview(b"frame"))], late)
        assert list(store.contains([A], late)) == [True]
        assert list(store.delete([A], late)) == [True]


def test_a_write_that_failed_leaves_nothing_known(double, objects, open_store, clock):
    store = open_store(clock=clock, absent_ttl=1e4, present_ttl=1e4, **double.settings)
    late = Deadline(clock, 1e9)
    store.write([Item(A, memoryview(b"frame"))], late)
    objects.delete(A)
    assert list(store.contains([A], late)) == [True]
    double.limit(1)
    (outcome,) = store.write([Item(A, memoryview(b"frame"))], late)
    double.limit(1 << 40)
    assert isinstance(outcome, Failed)
    assert list(store.contains([A], late)) == [False]


def test_an_answer_from_before_a_change_is_not_remembered():
    known = Known(ManualClock(), Lives(9.0, 9.0))
    turn = known.turn
    with known.changing(A, soon()) as change:
        change.here = True
    known.hear(A, here=False, turn=turn)
    assert known.ask(A) is True


def test_what_is_heard_while_a_change_is_under_way_is_not_remembered():
    """Others may read what is being written before the writer has its answer."""
    known = Known(ManualClock(), Lives(9.0, 9.0))
    with known.changing(A, soon()):
        known.hear(A, here=False, turn=known.turn)
        assert known.ask(A) is None


def test_what_is_remembered_is_bounded_and_forgets_the_oldest_first():
    known = Known(ManualClock(), Lives(9.0, 9.0), most=3)
    keys = [chunk_key(str(i)) for i in range(5)]
    for key in keys:
        known.hear(key, here=True, turn=known.turn)
    assert [known.ask(key) for key in keys] == [None, None, True, True, True]


def test_two_changes_of_one_object_wait_for_each_other_and_no_longer_than_their_deadline():
    known, begun, end = Known(ManualClock(), Lives(9.0, 9.0)), Event(), Event()

    def change():
        with known.changing(A, soon()):
            begun.set()
            end.wait(60)

    first = Thread(target=change, daemon=True)
    first.start()
    assert begun.wait(60)
    with known.changing(B, soon()), pytest.raises(OutOfTime), known.changing(A, soon(0.01)):
        raise AssertionError("both change it")
    end.set()
    with known.changing(A, soon()):
        pass
    first.join(60)
    assert not first.is_alive()


def test_a_listing_of_several_pages_is_whole_and_has_nothing_else(double, objects, open_store):
    store = open_store(**double.settings)
    keys = {chunk_key(str(i)) for i in range(1100)}
    store.write([Item(key, memoryview(key[:5])) for key in keys], soon())
    objects.put_name(f"{objects.prefix}README", b"not a chunk")
    entries = list(store.scan())
    assert len(entries) == len(keys)
    assert {entry.key for entry in entries} == keys
    assert {entry.size for entry in entries} == {5}
    objects.delete_name(f"{objects.prefix}README")
    assert sum(store.delete(sorted(keys), soon())) == len(keys)


PARTS = {"part_size": 5 * MIB, "multipart_threshold": 5 * MIB}


@both
@pytest.mark.parametrize("size", [5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 12 * MIB + 7])
def test_frames_of_several_parts_are_whole(double, objects, open_store, client, size):
    store = open_store(client=client, **PARTS, **double.settings)
    frame = pattern(size)
    assert store.write([Item(A, memoryview(frame))], soon()) == [Stored(size)]
    same = objects.get(A) == frame
    assert same
    sink = ListSink(offset=1)
    assert store.read([A], sink, soon()) == [Hit(size)]
    same = sink.data(0) == frame
    assert same


@both
def test_parts_of_an_object_that_is_replaced_meanwhile_are_never_mixed(
    double, objects, open_store, client
):
    store = open_store(client=client, **PARTS, **double.settings)
    size = 16 * MIB
    objects.put(A, b"1" * size)

    class Replacing(ListSink):
        def room(self, index, size):
            if not self.calls:
                objects.put(A, b"2" * size)
            return super().room(index, size)

    sink = Replacing()
    (outcome,) = store.read([A], sink, soon())
    if isinstance(outcome, Hit):
        assert set(sink.data(0)) in ({ord("1")}, {ord("2")})
    assert isinstance(outcome, Hit | Failed)


def test_an_upload_that_fails_is_taken_back(double, objects, open_store):
    store = open_store(**PARTS, **double.settings)
    double.limit(2 * MIB)
    (outcome,) = store.write([Item(A, memoryview(pattern(12 * MIB)))], soon())
    double.limit(1 << 40)
    assert isinstance(outcome, Failed)
    assert double.uploads() == 0
    assert store.read([A], ListSink(), soon()) == [Miss()]


@both
def test_a_server_behind_tls_is_believed_only_with_its_authority(encrypted, open_store, client):
    store = open_store(client=client, **encrypted.settings)
    frame = pattern(3 * MIB)
    assert store.write([Item(A, memoryview(frame))], soon()) == [Stored(len(frame))]
    sink = ListSink()
    assert store.read([A], sink, soon()) == [Hit(len(frame))]
    same = sink.data(0) == frame
    assert same
    assert list(store.delete([A], soon())) == [True]
    stranger = open_store(client=client, **encrypted.settings | {"tls_ca": ""})
    # awscrt goes on trying for a while; how long anybody waits is the deadline's to say.
    (outcome,) = stranger.read([A], ListSink(), soon(0.5))
    assert isinstance(outcome, Failed | TimedOut)
    with pytest.raises(StoreError, match="not to be believed"):
        stranger.contains([A], soon())
    trusting = {"tls_ca": "", "tls_verify": False}
    careless = open_store(client=client, **encrypted.settings | trusting)
    assert list(careless.contains([A], soon())) == [False]
    assert careless.read([A], ListSink(), soon()) == [Miss()]


@both
def test_authorities_that_cannot_be_read_are_told_at_once(open_store, client, tmp_path):
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match="tls_ca"):
        open_store(endpoint="https://s3", access_key="A", secret_key="S", tls_ca=missing)


def test_keys_may_come_from_the_usual_places(double, open_store, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    for client in ("http", "awscrt"):
        store = open_store(endpoint=double.endpoint, client=client)
        assert store.write([Item(A, memoryview(b"frame"))], soon()) == [Stored(5)]
        assert list(store.delete([A], soon())) == [True]


class Provider:
    def __init__(self, *answers):
        self.answers = list(answers)

    def get_credentials(self):
        from concurrent.futures import Future

        future, answer = Future(), self.answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future


class Found:
    access_key_id, secret_access_key, session_token = "AKID", "hunter2", None


def test_keys_are_asked_for_again_when_they_are_old(clock):
    chain = Chain(Provider(Found, Found, OSError("no network"), None), clock)
    late = Deadline(clock, 1e9)
    assert chain(late) == chain(late) == Credentials("AKID", "hunter2")
    clock.moment += 3600
    assert chain(late).token == ""
    clock.moment += 3600
    with pytest.raises(StoreError, match="no network"):
        chain(late)
    with pytest.raises(OutOfTime):
        chain(soon(0.01))


def test_without_awscrt_keys_have_to_be_given_and_nothing_else_is_missing(
    double, open_store, monkeypatch
):
    monkeypatch.setitem(sys.modules, "awscrt", None)
    monkeypatch.setitem(sys.modules, "awscrt.auth", None)
    monkeypatch.setitem(sys.modules, "awscrt.s3", None)
    assert list(open_store(**double.settings).contains([A], soon())) == [False]
    with pytest.raises(AdapterUnavailable, match=r"hexkv-s3\[crt\]"):
        open_store(endpoint=double.endpoint)
    with pytest.raises(AdapterUnavailable, match=r"hexkv-s3\[crt\]"):
        open_store(client="awscrt", **double.settings)


def test_opening_asks_nobody_anything():
    (spec,) = hexkv_adapters()
    settings = S3Settings("s3://cache", access_key=Secret("A"), secret_key=Secret("S"))
    spec.open(settings, OpenContext(SystemClock())).close()


@both
def test_moto_agrees_about_all_of_it(moto, open_store, prefix, client):
    store = open_store(client=client, absent_ttl=0.0, **PARTS, **moto.settings)
    frames = {chunk_key(str(size)): pattern(size) for size in (0, 1, 70_001, 6 * MIB)}
    outcomes = store.write([Item(k, memoryview(f)) for k, f in frames.items()], soon())
    assert outcomes == [Stored(len(frame)) for frame in frames.values()]
    raw = moto.objects(f"{prefix}/")
    assert raw.keys() == set(frames)
    sink = ListSink()
    assert store.read([*frames, A], sink, soon()) == [
        *(Hit(len(frame)) for frame in frames.values()),
        Miss(),
    ]
    same = [sink.data(i) for i in range(len(frames))] == list(frames.values())
    assert same
    assert {entry.key: entry.size for entry in store.scan()} == {
        key: len(frame) for key, frame in frames.items()
    }
    large = list(frames)[-1]
    into = memoryview(bytearray(1000))
    assert store.read_range(large, 5 * MIB, into, soon()) == Hit(1000)
    same = into == frames[large][5 * MIB : 5 * MIB + 1000]
    assert same
    assert list(store.contains([A, *frames], soon())) == [False, True, True, True, True]
    assert list(store.delete([A, *frames], soon())) == [False, True, True, True, True]
    assert raw.keys() == set()
    with pytest.raises(StoreError, match="NoSuchBucket"):
        open_store(bucket="another", client=client, **moto.settings).contains([A], soon())
