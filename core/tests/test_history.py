"""What happened to chunks is remembered, within bounds."""

import inspect
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depth import thorough
from hexkv.contracts.doubles import chunk_key
from hexkv.core.tiers.index.history import History, Note
from hexkv.ports import Reason

NAMES = st.integers(0, 15).map(lambda n: chunk_key(str(n)))
TIERS = st.sampled_from(["memory", "disk"])


@given(
    st.lists(st.tuples(NAMES, TIERS, st.sampled_from([*Reason, None])), max_size=60),
    st.integers(1, 8),
)
def test_the_newest_notes_are_kept_and_no_more(steps, limit):
    history, model, order = History(limit), {}, []
    for when, (key, where, cause) in enumerate(steps):
        if cause is None:
            history.forget([key], where)
            model.pop((key, where), None)
            continue
        history.note([key], where, cause, float(when), f"detail {when}")
        order = [*order, (key, where)][-limit:]
        model[key, where] = Note(cause, float(when), f"detail {when}")
        for lost in model.keys() - set(order):
            del model[lost]
    assert len(history) == len(model) <= limit
    for key, where in {(key, where) for key, where, _ in steps}:
        assert history.find(key, where) == model.get((key, where))


def test_a_batch_larger_than_the_history_leaves_its_end():
    history = History(3)
    keys = [chunk_key(str(n)) for n in range(5000)]
    history.note(keys, "disk", Reason.CLEARED, 1.0)
    assert [history.find(key, "disk") is not None for key in keys[-4:]] == [False, True, True, True]
    assert len(history) == 3


def test_details_are_cut_to_a_line():
    history = History()
    history.note([chunk_key("a")], "disk", Reason.READ_FAILED, 1.0, "two\nlines " + "x" * 10_000)
    detail = history.find(chunk_key("a"), "disk").detail
    assert detail.startswith("two lines x")
    assert len(detail) == 120


@pytest.mark.parametrize("texts", [*thorough(1), 10**9], ids=["one error", "an error each"])
def test_a_note_takes_at_most_250_bytes_whatever_happened(texts):
    limit = 2048
    keys = [random.Random(n).randbytes(48) for n in range(3 * limit)]
    tracemalloc.start()
    try:
        history = History(limit)
        for n, key in enumerate([*keys, *keys]):
            history.note([bytes(key)], "disk", Reason.READ_FAILED, float(n), f"error {n % texts}")
        # Not of other threads: workers of tests before this one may still be at work.
        own = [tracemalloc.Filter(True, path) for path in (inspect.getfile(History), __file__)]
        grown = sum(it.size for it in tracemalloc.take_snapshot().filter_traces(own).traces)
    finally:
        tracemalloc.stop()
    # The table of details has a size of its own, which a history of the usual size hides.
    assert grown <= 250 * limit + 250_000
    assert history.find(keys[-1], "disk").cause is Reason.READ_FAILED
