"""Where an encoded form pays, and how rates follow measurements."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.core.tiers.stores.bandwidth import Encoding, Rate

rates = st.floats(1e5, 1e11)
forms = st.builds(Encoding, st.text(max_size=3), st.floats(1, 20), st.one_of(st.just(inf), rates))


@given(forms, rates)
def test_an_encoded_form_pays_where_decoding_outruns_the_link(form, link_rate):
    saved = form.ratio - 1
    needed = link_rate * form.ratio / saved if saved else inf
    if form.decode_rate > needed * 1.000001:
        assert form.seconds(1, link_rate) < 1 / link_rate
    if form.decode_rate < needed * 0.999999:
        assert form.seconds(1, link_rate) > 1 / link_rate


def test_rates_follow_what_is_measured():
    rate = Rate()
    assert rate.value is None
    for _ in range(100):
        rate.observe(1000, 1.0)
    assert rate.value == pytest.approx(1000)
    for _ in range(100):
        rate.observe(5000, 1.0)
    assert rate.value == pytest.approx(5000, rel=0.01)


def test_large_transfers_say_more_than_small_ones():
    rate = Rate()
    rate.observe(1_000_000, 1.0)
    rate.observe(10, 1e-3)
    assert rate.value == pytest.approx(1_000_000, rel=0.01)
