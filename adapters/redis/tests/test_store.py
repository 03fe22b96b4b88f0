"""What is special about a store in Redis: where bytes go, expiry, other people's keys, limits."""

import ctypes
import mmap
import tracemalloc

import pytest

from hexkv.adapters.net.stream import Stream
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import (
    ChunkKey,
    Corrupt,
    Failed,
    Hit,
    Item,
    Miss,
    Reason,
    Stored,
    StoreError,
    StoreFull,
)
from servers.redis_servers import RedisServer

MIB = 1 << 20
A, B, C = (chunk_key(name) for name in "abc")


def items(**frames):
    return [Item(chunk_key(name), memoryview(frame)) for name, frame in frames.items()]


def address(view):
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Block:
    """A sink with one buffer, as the pool gives it."""

    def __init__(self, size):
        self.memory = memoryview(bytearray(size))

    def room(self, index, size):
        return self.memory[:size]


@pytest.fixture
def store(valkey, open_store, keys):
    return open_store(valkey.url)


@pytest.fixture
def kernel(monkeypatch):
    """What is handed to the kernel: address and size of every buffer."""
    seen = []
    gather, receive = Stream._gather, Stream._receive

    def spy_gather(wire, parts, deadline):
        seen.extend((address(part), len(part)) for part in parts if not part.readonly)
        return gather(wire, parts, deadline)

    def spy_receive(wire, into, deadline, *, whole):
        seen.append((address(into), len(into)))
        return receive(wire, into, deadline, whole=whole)

    monkeypatch.setattr(Stream, "_gather", spy_gather)
    monkeypatch.setattr(Stream, "_receive", spy_receive)
    return seen


def test_the_kernel_reads_a_frame_from_the_callers_own_memory(store, kernel):
    block = memoryview(bytearray(8 * MIB))
    assert store.write([Item(A, block)], deadline()) == [Stored(8 * MIB)]
    assert (address(block), 8 * MIB) in kernel


def test_the_kernel_writes_a_frame_into_the_sinks_memory_but_for_a_line_s_remainder(store, kernel):
    store.write(items(a=bytes(8 * MIB)), deadline())
    block = Block(8 * MIB)
    assert store.read([A], block, deadline()) == [Hit(8 * MIB)]
    start, size = max(kernel, key=lambda seen: seen[1])
    skipped = start - address(block.memory)
    assert 0 <= skipped < 64
    assert skipped + size == 8 * MIB


def test_moving_frames_takes_no_memory_of_their_size(store):
    block = Block(16 * MIB)
    tracemalloc.start()
    try:
        store.write([Item(A, block.memory)], deadline())
        store.read([A], block, deadline())
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@each("size", [0, 1, 60, 70_000, 3 * MIB])
def test_batches_of_any_size_keep_their_order(store, size):
    frames = [bytes([i]) * (size + i) for i in range(40)]
    keys = [chunk_key(str(i)) for i in range(40)]
    pairs = zip(keys, map(memoryview, frames), strict=True)
    outcomes = store.write([Item(*pair) for pair in pairs], deadline())
    assert outcomes == [Stored(len(frame)) for frame in frames]
    asked = [key for pair in zip(keys, map(chunk_key, "abc" * 20), strict=False) for key in pair]
    sink = ListSink(refuse={2, 6})
    outcomes = store.read(asked, sink, deadline())
    assert [type(outcome) for outcome in outcomes] == [
        Miss if i % 2 or i in (2, 6) else Hit for i in range(80)
    ]
    assert outcomes[2] == Miss(Reason.REFUSED)
    for i in range(0, 80, 2):
        assert i in (2, 6) or sink.data(i) == frames[i // 2]


def test_a_chunk_expires_on_the_server(valkey, open_store, keys):
    store = open_store(valkey.url, ttl=7200.0)
    store.write(items(a=b"frame"), deadline())
    name = keys.prefix + A
    assert 7_100_000 < keys.admin.pttl(name) <= 7_200_000
    keys.admin.pexpire(name, 0)
    assert store.read([A], ListSink(), deadline()) == [Miss()]


def test_a_chunk_stays_unless_somebody_says_otherwise(store, keys):
    store.write(items(a=b"frame"), deadline())
    assert keys.admin.pttl(keys.prefix + A) == -1


def test_a_value_of_another_type_is_corrupt_and_can_be_overwritten(store, keys):
    keys.admin.rpush(keys.prefix + B, "a list")
    store.write(items(a=b"a", c=b"c"), deadline())
    a, b, c = store.read([A, B, C], ListSink(), deadline())
    assert (a, c) == (Hit(1), Hit(1))
    assert isinstance(b, Corrupt)
    assert store.write(items(b=b"frame"), deadline()) == [Stored(5)]
    assert store.read([B], ListSink(), deadline()) == [Hit(5)]


def test_a_frame_larger_than_a_value_is_refused_before_it_is_sent(store):
    with mmap.mmap(-1, (512 << 20) + 1) as memory, memoryview(memory) as frame:
        small = items(a=b"frame")
        outcomes = store.write([Item(B, frame), *small], deadline())
    assert isinstance(outcomes[0], Failed)
    assert outcomes[1] == Stored(5)


def test_a_key_of_another_length_fails_the_call_and_garbles_no_other(store):
    with pytest.raises(StoreError, match="48 bytes"):
        store.contains([A, ChunkKey(b"short")], deadline())
    store.write(items(a=b"frame"), deadline())
    assert list(store.contains([A], deadline())) == [True]


def test_calls_one_after_the_other_share_a_connection(store, keys):
    def connections():
        return keys.admin.info("stats")["total_connections_received"]

    store.contains([A], deadline())
    before = connections()
    for _ in range(10):
        store.write(items(a=b"frame"), deadline())
        store.read([A], ListSink(refuse={0}), deadline())
        store.read([B], ListSink(), deadline())
        store.delete([A], deadline())
    assert connections() == before


@pytest.fixture
def small_server(tmp_path):
    limits = ("--maxmemory", "20mb", "--maxmemory-policy", "noeviction")
    with RedisServer(tmp_path, *limits) as server:
        yield server


def test_a_full_server_is_full_chunk_by_chunk_and_takes_more_after_a_delete(
    small_server, open_store
):
    store = open_store(small_server.url)
    keys = [chunk_key(str(i)) for i in range(12)]
    frame = memoryview(bytes(4 * MIB))
    outcomes = store.write([Item(key, frame) for key in keys], deadline())
    taken = [isinstance(outcome, Stored) for outcome in outcomes]
    assert 1 <= sum(taken) < 12
    assert all(
        isinstance(outcome, Stored) or isinstance(outcome.error, StoreFull) for outcome in outcomes
    )
    assert list(store.contains(keys, deadline())) == taken
    assert list(store.delete(keys, deadline())) == taken
    assert store.write([Item(A, frame)], deadline()) == [Stored(4 * MIB)]
