"""What reads and serdes were seen to do, and when a tier is given up and tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.core.tiers.stores.bandwidth import PROBE_EVERY, STALE, Flow, SerdeStats, TierBandwidth


def read(link, *, tokens, seconds, size=1000, now=0.0):
    link.began(now)
    link.arrived(now + seconds, size)
    link.ended(now + seconds, tokens)


def test_a_second_counts_once_however_many_read_in_it():
    flow = Flow()
    flow.began(0.0)
    flow.began(0.0)
    flow.ended(1.0, 100)
    flow.ended(1.0, 100)
    assert flow.value == pytest.approx((0.9 * 100 + 100) / 0.9)
    alone = Flow()
    alone.began(0.0)
    alone.ended(1.0, 200)
    assert alone.value == 200


def test_time_in_which_nothing_was_read_says_nothing():
    flow = Flow()
    for now in (0.0, 1000.0):
        flow.began(now)
        flow.ended(now + 1, 100)
    assert flow.value == pytest.approx(100)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e6)), max_size=20))
def test_no_order_of_times_breaks_a_rate(reads):
    flow = Flow()
    for began, ended, amount in reads:
        flow.began(began)
        flow.ended(ended, amount)
    assert flow.value is None or flow.value >= 0


def test_what_brought_nothing_makes_nothing_slower():
    link = TierBandwidth()
    read(link, tokens=100, seconds=1.0)
    read(link, tokens=0, size=0, seconds=100.0)
    assert link.tokens_rate == 100
    assert link.rate == 1000


def test_a_tier_serves_until_a_read_has_shown_that_it_is_slow():
    link = TierBandwidth()
    assert link.serves(1000.0)
    read(link, tokens=100, seconds=1.0)
    assert link.serves(100.0)
    assert link.serves(None), "nobody knows what computing takes"
    assert not link.serves(101.0)


def test_one_request_in_many_finds_out_that_a_tier_is_fast_again():
    link = TierBandwidth()
    read(link, tokens=1, seconds=1.0)
    for _ in range(3):  # it is still slow
        assert [link.serves(1000.0) for _ in range(PROBE_EVERY)] == [False] * 15 + [True]
        assert link.serves(1000.0), "until something was read: the lookup's retrieve comes next"
        assert not link.slower_than(1000.0)
        read(link, tokens=1, seconds=1.0)
    assert [link.serves(1000.0) for _ in range(PROBE_EVERY)] == [False] * 15 + [True]
    read(link, tokens=0, size=0, seconds=1.0)
    assert link.serves(1000.0), "nothing was read"
    read(link, tokens=2000, seconds=1.0)
    assert link.tokens_rate == 2000, "what was before does not count"
    assert link.serves(1000.0)


def test_asking_whether_it_is_slow_lets_nobody_through():
    link = TierBandwidth()
    read(link, tokens=1, seconds=1.0)
    assert all(link.slower_than(1000.0) for _ in range(10 * PROBE_EVERY))


def test_a_form_is_what_its_serde_was_seen_to_do():
    speeds = SerdeStats()
    assert speeds.form("small", "small/1", 4) is None
    speeds.encoded("small/1", 1000, 250)
    speeds.decoded("small/1", 1000, 5.0, 7.0)
    form = speeds.form("small", "small/1", 4)
    assert (form.serde, form.ratio, form.decode_rate) == ("small", 4.0, 2000.0)


def test_a_serde_that_is_not_used_is_due_once_in_a_while_and_one_that_is_never():
    speeds = SerdeStats()
    assert [speeds.due("one", 0.0) for _ in range(3)] == [True, False, False]
    speeds.decoded("two", 1, 0.0, 0.0)
    assert not speeds.due("two", STALE)
    speeds.decoded("two", 1, STALE, STALE)
    later = STALE + 1
    assert [speeds.due(name, later) for name in ("one", "two")] == [True, False]
