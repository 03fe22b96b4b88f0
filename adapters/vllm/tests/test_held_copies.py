"""What vLLM's offloading stores is copied at once; what it loads stays until it is copied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.vllm.held_ranks import BLOCKS, SIZES, SLOT, Keyed, Rank, engine
from engines.vllm.late_blocks import late_copies
from hexkv.adapters.vllm.worker.held import COPYING
from hexkv.contracts.doubles import ManualClock
from hexkv.ports import PAGE, frame_bytes


@pytest.fixture
def rank(tmp_path):
    rank = Rank(engine({"store": "disk", "settings": {"root": str(tmp_path / "cache")}}))
    yield rank
    rank.held.close()


@pytest.fixture
def simple():
    rank = Rank(Keyed())
    yield rank
    rank.held.close()


@pytest.mark.parametrize("group", [0, 1])
def test_a_block_that_was_stored_is_held_and_loaded_elsewhere(rank, group):
    before = rank.block(group, 2)
    assert rank.store(b"a", group, 2) == sum(SIZES[group])
    assert rank.store(b"a", group, 2) == 0
    assert rank.held.hold(7, group, b"a")
    assert rank.load(7, 4) == sum(SIZES[group])
    assert rank.block(group, 4) == before


def test_blocks_of_all_groups_are_stored_at_once_and_loaded_at_once(rank):
    before = [rank.block(group, block) for group, block in ((0, 1), (1, 1), (0, 3))]
    rank.store(b"b", 1, 1)
    some = [(b"c", 0, 3), (b"b", 1, 1), (b"a", 0, 1)]
    assert rank.held.store(some, 0) == 2 * sum(SIZES[0])
    assert rank.engine.flush(60)
    for ticket, group, name in ((7, 0, b"a"), (8, 1, b"b"), (9, 0, b"c")):
        assert rank.held.hold(ticket, group, name)
    copying = rank.held.load([(9, 4), (8, 5), (7, 0)])
    assert copying.done
    assert copying.size == 2 * sum(SIZES[0]) + sum(SIZES[1])
    assert [rank.block(0, 0), rank.block(1, 5), rank.block(0, 4)] == before


def test_nothing_from_before_it_was_emptied_comes_back(rank):
    """vLLM hands over what it named in the step before."""
    for name in (b"a", b"b", b"c"):
        rank.held.store([(name, 0, 2)], 0)  # queued when the cache is emptied
    rank.clear(1)
    assert rank.held.store([(b"d", 0, 2)], 0) == 0
    assert not any(rank.held.hold(i, 0, name) for i, name in enumerate((b"a", b"b", b"c")))
    assert not rank.held.hold(4, 0, b"d")
    rank.held.store([(b"d", 0, 2)], 1)
    assert rank.engine.flush(60)
    assert rank.held.hold(5, 0, b"d")


def test_a_block_is_kept_as_it_was_when_it_was_handed_over(rank):
    """Its place may be another's a moment later."""
    before = rank.block(0, 2)
    rank.held.store([(b"a", 0, 2)], 0)
    for page in rank.pages[0]:
        page[2] = 0
    assert rank.engine.flush(60)
    assert rank.held.hold(7, 0, b"a")
    rank.load(7, 4)
    assert rank.block(0, 4) == before


def test_a_release_frees_no_memory_that_is_being_copied(rank):
    before = rank.block(0, 2)
    rank.store(b"a", 0, 2)
    assert rank.held.hold(7, 0, b"a")
    with late_copies() as copies:
        copying = rank.held.load([(7, 4)])
    rank.held.release([7])
    rank.engine.clear()
    for number in range(3):  # and use the memory again, if it is free
        rank.store(b"%d" % number, 0, 3)
    assert not copying.done
    assert (rank.leases(), rank.leases(COPYING)) == (0, 1)
    copies[0].finish()
    assert copying.done
    assert rank.block(0, 4) == before
    assert rank.leases(COPYING) == 0
    assert rank.engine.health().pool_held_bytes == 0


def test_a_load_of_what_was_released_takes_nothing(simple):
    for name in (b"a", b"b"):
        simple.store(name, 0, 2)
    assert simple.held.hold(7, 0, b"a")
    assert simple.held.hold(8, 0, b"b")
    simple.held.release([8])
    with pytest.raises(KeyError):
        simple.held.load([(7, 3), (8, 4)])
    assert simple.leases(COPYING) == 0


@pytest.mark.parametrize("which", [0, 1])
def test_a_copy_that_fails_is_not_whole_and_leaves_nothing(simple, which, caplog):
    for number, group in enumerate((0, 1)):
        simple.store(b"a", group, 2)
        assert simple.held.hold(number, group, b"a")
    with late_copies() as copies:
        copying = simple.held.load([(0, 3), (1, 3)])
    copies[which].error = RuntimeError("on purpose")
    assert not copying.done  # of the other one
    assert simple.leases(COPYING) == 2
    copies[1 - which].finish()
    assert copying.done
    assert not copying.whole
    assert simple.leases(COPYING) == 0
    assert "on purpose" in caplog.text


def test_a_block_that_vllm_does_not_have_is_not_loaded(simple, caplog):
    simple.store(b"a", 0, 2)
    assert simple.held.hold(7, 0, b"a")
    copying = simple.held.load([(7, BLOCKS)])
    assert copying.done
    assert not copying.whole
    assert simple.leases(COPYING) == 0
    assert "cannot be copied" in caplog.text


def test_closing_gives_back_everything_but_what_is_still_being_copied():
    rank = Rank(Keyed(), clock=ManualClock())
    for number, name in enumerate((b"a", b"b", b"c")):
        rank.store(name, 0, 2)
        assert rank.held.hold(number, 0, name)
    rank.load(0, 3)
    with late_copies() as copies:
        copying = rank.held.load([(1, 4)])
    rank.held.close()
    assert rank.engine.chunks.ledger() == {COPYING: 1}
    copies[0].finish()
    assert copying.done
    rank.held.close()
    assert rank.engine.chunks.ledger() == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "hold", "release", "load", "copied", "clear"]),
            st.integers(0, 3),
            st.integers(0, 1),
        ),
        max_size=30,
    )
)
def test_whatever_happens_held_blocks_are_right_and_counted(steps):
    """Against a model: what each ticket holds, and what is being copied."""
    rank = Rank(Keyed(), limit=3 * SLOT)
    stored, held, under_way = {}, {}, []
    tickets = iter(range(1000))
    with late_copies() as copies:
        for op, number, group in steps:
            name = b"%d" % number
            if op == "store":
                rank.held.store([(name, group, number)], 0)
                stored.setdefault((name, group), rank.block(group, number))
            elif op == "hold":
                ticket = next(tickets)
                room = rank.held.used + frame_bytes(sum(SIZES[group])) <= 3 * SLOT
                assert rank.held.hold(ticket, group, name) is (room and (name, group) in stored)
                if room and (name, group) in stored:
                    held[ticket] = group, stored[name, group]
            elif op == "release" and held:
                ticket = sorted(held)[number % len(held)]
                rank.held.release([ticket])
                del held[ticket]
            elif op == "load" and held:
                ticket = sorted(held)[number % len(held)]
                copying = rank.held.load([(ticket, 4 + group)])
                assert not copying.done
                under_way.append((copying, copies[-1], 4 + group, *held[ticket]))
            elif op == "copied" and under_way:
                copying, copy, block, of, content = under_way.pop(number % len(under_way))
                copy.finish()
                assert copying.done
                assert rank.block(of, block) == content
            elif op == "clear":
                rank.clear(0)
                stored.clear()
            assert rank.held.used == sum(PAGE + len(content) for _, content in held.values())
            assert (rank.leases(), rank.leases(COPYING)) == (len(held), len(under_way))
        rank.held.release(held)
        for _, copy, *_ in under_way:
            copy.finish()
    rank.held.close()
    assert rank.engine.chunks.ledger() == {}
