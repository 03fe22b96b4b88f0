"""Reading a part of a frame: in the pool, past it, and where the frame is a tiny one."""

import pytest

from hexkv.adapters.mooncake._objects import EMPTY
from hexkv.contracts.doubles import chunk_key
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Corrupt, Hit, Miss, TimedOut
from processes import until
from servers.mooncake_servers import Master, Node, Region, is_gone, soon, until_stored

KEY = chunk_key("frame")
FRAME = bytes(range(251)) * 4000
TTL = 6.0
"""Seconds of silence after which the master forgets a node; by default it is ten."""


def read_range(store, start, size, limit=None):
    into = memoryview(bytearray(size))
    return store.read_range(KEY, start, into, limit or soon()), bytes(into)


def test_in_the_pool_a_part_arrives_in_place_and_alone(master, open_store):
    store = open_store(master.address, staging_bytes=0)
    region = Region(2 << 20)
    store.register(region)
    region.buffer[: len(FRAME)] = FRAME
    until_stored(store, {KEY: region.buffer[: len(FRAME)]})
    at, size = 1 << 20, 300_000
    into = region.buffer[at : at + size]
    assert store.read_range(KEY, 77_777, into, soon()) == Hit(size)
    same = into == FRAME[77_777 : 77_777 + size]
    assert same
    assert not any(region.buffer[at + size :])
    assert store._mover._staging._idle == []


@pytest.mark.parametrize("frame", [b"", b"just sixteen byt", b"seventeen bytes.."])
def test_a_part_of_a_tiny_frame_is_never_one_of_the_mark_of_no_bytes(borrow_store, frame):
    assert len(b"just sixteen byt") == len(EMPTY)
    store = borrow_store()
    until_stored(store, {KEY: frame})
    assert read_range(store, 0, len(frame)) == (Hit(len(frame)), frame)
    assert read_range(store, len(frame), 0) == (Hit(0), b"")
    if frame:
        assert read_range(store, 3, 5) == (Hit(5), frame[3:8])
    outcome, _ = read_range(store, 0, len(frame) + 1)
    assert isinstance(outcome, Corrupt)


@pytest.mark.thorough
def test_parts_fail_as_frames_do(secluded, open_store, tmp_path):
    with Master(tmp_path, f"--client_ttl={TTL:.0f}") as master:
        store = open_store(master.address)
        with Node(tmp_path, master) as node:
            until_stored(store, {KEY: FRAME})
            there, limit = SystemClock().now(), soon(0.3)
            node.freeze()
            assert read_range(store, 0, 100, limit)[0] == TimedOut()
            assert read_range(store, 0, 100, soon(0.0))[0] == TimedOut()
            node.thaw()
        outcome, _ = read_range(store, 0, 100)
        assert is_gone(outcome, there, TTL), outcome
        # Until the master forgets the node.
        until(lambda: read_range(store, 0, 100)[0] == Miss())
