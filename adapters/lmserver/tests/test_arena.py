"""The server's memory."""

from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.lmserver._arena import GRAIN, Arena, room
from rigging import Heap

GRAINS = 24


@pytest.fixture
def arena():
    return Arena(Heap(GRAINS * GRAIN))


def fill(block, byte):
    for view in block.views:
        view[:] = bytes([byte]) * len(view)


def content(block):
    return b"".join(block.views)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 6 * GRAIN)),
            st.tuples(st.just("drop"), st.integers(0, 100)),
        ),
        max_size=60,
    )
)
def test_blocks_never_overlap_and_what_is_free_always_fits(steps):
    arena = Arena(Heap(GRAINS * GRAIN))
    held = []
    for number, (step, value) in enumerate(steps):
        free = GRAINS * GRAIN - sum(room(block.size) for block, _ in held)
        assert arena.free == free
        if step == "take":
            block = arena.take(value, 0.0)
            assert (block is not None) == (room(value) <= free)
            if block is not None:
                assert sum(map(len, block.views)) == block.size == value
                fill(block, number % 256)
                held.append((block, number % 256))
        elif held:
            held.pop(value % len(held))[0].release()
        for block, byte in held:
            assert content(block) == bytes([byte]) * block.size
    for block, _ in held:
        block.release()
    whole = arena.take(GRAINS * GRAIN, 0.0, whole=True)
    assert len(whole.views) == 1, "free neighbours are one run again"


def test_a_block_comes_back_when_its_last_holder_lets_go(arena):
    block = arena.take(5, 0.0)
    shared = block.share()
    block.release()
    assert arena.free == (GRAINS - 1) * GRAIN
    shared.release()
    assert arena.free == GRAINS * GRAIN


def test_a_taker_waits_for_others_to_let_go(arena):
    everything = arena.take(GRAINS * GRAIN, 0.0)
    got = []
    taker = Thread(target=lambda: got.append(arena.take(1, 60.0)))
    taker.start()
    everything.release()
    taker.join(60)
    assert got[0] is not None


def test_a_contiguous_block_is_not_made_of_pieces(arena):
    blocks = [arena.take(GRAIN, 0.0) for _ in range(GRAINS)]
    for block in blocks[::2]:
        block.release()
    assert arena.take(2 * GRAIN, 0.0, whole=True) is None
    assert len(arena.take(2 * GRAIN, 0.0).views) == 2


@given(st.integers(0, 3 * GRAIN), st.integers(0, 3 * GRAIN))
def test_a_part_is_the_slice(start, size):
    arena = Arena(Heap(8 * GRAIN))
    kept = [arena.take(GRAIN, 0.0) for _ in range(8)]
    for block in kept[1::2]:
        block.release()
    block = arena.take(3 * GRAIN, 0.0)
    data = bytes(range(256)) * (3 * GRAIN // 256)
    place = 0
    for view in block.views:
        view[:] = data[place : place + len(view)]
        place += len(view)
    assert b"".join(block.part(start, size)) == data[start : start + size]
