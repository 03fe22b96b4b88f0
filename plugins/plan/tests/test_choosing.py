"""The form that is loaded soonest over each link, and none where computing is sooner."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.core.tiers.stores.bandwidth import Encoding
from hexkv.plan.cli.serdes import Decision, choose

RAW = Encoding("raw")
LEVELS = [
    RAW,
    Encoding("zstd", 1.6, 2e9),
    Encoding("cachegen", 3.9, 0.8e9),
    Encoding("small", 5.1, 0.8e9),
]
TOKEN = 131_072
"""Bytes of a token: 32 layers, 8 heads of 128, bfloat16."""

rates = st.floats(1e5, 1e11)
forms = st.builds(Encoding, st.text(max_size=3), st.floats(1, 20), st.one_of(st.just(inf), rates))


def chosen(link_rate, prefill_rate=1.0, tokens=1000, within=0.0, some=LEVELS):
    return choose(
        some,
        size=tokens * TOKEN,
        tokens=tokens,
        link_rate=link_rate,
        prefill_rate=prefill_rate,
        within=within,
    )


@given(st.lists(forms), rates, rates, st.floats(1, 1e6), st.floats(0, 100))
def test_a_faster_link_never_makes_it_later(some, one, other, prefill_rate, within):
    slow, fast = sorted((one, other))
    late = chosen(slow, prefill_rate, some=some).seconds
    assert chosen(fast, prefill_rate, some=some).seconds <= late
    in_time = chosen(slow, prefill_rate, within=within, some=some).seconds <= within
    if in_time:
        assert chosen(fast, prefill_rate, within=within, some=some).seconds <= within


@given(st.lists(forms, unique_by=lambda form: form.serde), rates, rates, st.floats(1, 1e6))
def test_the_slower_the_link_the_less_is_loaded(some, one, other, prefill_rate):
    slow, fast = sorted((one, other))
    known = {form.serde: form for form in some}
    at_slow, at_fast = (chosen(rate, prefill_rate, some=some).serde for rate in (slow, fast))
    if at_slow == at_fast or at_slow is None:
        return
    assert at_fast is not None, "a faster link made loading slower than computing"
    one_, other_ = known[at_slow], known[at_fast]
    if one_.seconds(1, slow) < 0.999999 * other_.seconds(1, slow):  # rounding decided nothing
        assert one_.ratio >= other_.ratio * 0.999999


@given(st.lists(forms), rates, st.floats(1, 1e6), st.floats(0, 1000))
def test_nothing_is_later_than_the_fastest_unless_it_is_in_time(some, rate, prefill_rate, within):
    every = [form.seconds(1000 * TOKEN, rate) for form in some] + [1000 / prefill_rate]
    decision = chosen(rate, prefill_rate, within=within, some=some)
    assert decision.seconds in every
    assert decision.seconds <= max(min(every), within)


@given(rates, st.floats(1, 1e6), st.floats(0, 1000))
def test_of_what_is_in_time_the_most_faithful_is_taken(rate, prefill_rate, within):
    decision = chosen(rate, prefill_rate, within=within)
    for form in LEVELS:
        in_time = form.seconds(1000 * TOKEN, rate) <= min(within, 1000 / prefill_rate)
        if form.serde == decision.serde:
            break
        assert not in_time, "a better one would have been in time"


@each(
    ("link_rate", "fastest", "in_time"),
    [
        (50e9, "raw", "raw"),
        (2e9, "raw", "raw"),
        (0.2e9, "small", "raw"),
        (0.1e9, "small", "zstd"),
        (0.05e9, "small", "cachegen"),
        (1e5, None, None),
    ],
)
def test_each_link_has_its_form(link_rate, fastest, in_time):
    """1,000 tokens, 131 MB, which take a second to compute."""
    assert chosen(link_rate, prefill_rate=1000.0).serde == fastest
    assert chosen(link_rate, prefill_rate=1000.0, within=0.9).serde == in_time


def test_what_is_slower_than_computing_is_not_loaded():
    lossy = [Encoding("cachegen", 3.9, 0.8e9)]
    assert chosen(1e7, prefill_rate=1000.0, within=5.0, some=lossy) == Decision(None, 1.0)
