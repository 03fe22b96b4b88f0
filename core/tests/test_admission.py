"""What is worth writing: learned from what became of chunks that were offered before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.core.policies import LRU
from hexkv.core.tiers.write.admission import Admission
from hexkv.plan.replay import unlimited
from hexkv.plan.stacked import Below, replay_stacked
from hexkv.plan.trace import TracedPrompt
from hexkv.ports import ChunkKey

HORIZON = 50


def key(number):
    return ChunkKey(number.to_bytes(48))


def test_what_is_never_asked_for_again_is_written_no_more_and_the_rest_is():
    admission = Admission(0.1)
    system = [key(1)]
    admission.added(system, None)
    for number in range(1000, 1600):
        once, answer = key(number), key(2 * number)
        admission.added([once], None)
        admission.met(system)
        admission.added([answer], system[0])
        wanted = [admission.worth(each, HORIZON) for each in (once, answer)]
        admission.met([*system, answer])
    assert wanted == [False, True]
    assert admission.worth(key(7), HORIZON), "nothing is known of it"
    admission.met(system)
    assert admission.worth(*system, HORIZON), "it was met"


@pytest.mark.thorough
def test_what_was_refused_and_is_computed_anew_counts_as_met():
    admission = Admission(0.5)
    for _ in range(4):
        for number in range(100):
            admission.added([key(number)], None)
            assert admission.worth(key(number), 200)


paths = st.text("ab", min_size=1, max_size=5)
traces = st.lists(paths, max_size=40).map(
    lambda found: [
        TracedPrompt(512 * len(path), [key(hash(path[: i + 1]) % 2**64) for i in range(len(path))])
        for path in found
    ]
)


@pytest.mark.thorough
@given(
    trace=traces,
    memory=st.integers(1, 8),
    below=st.integers(0, 20),
    least=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_two_tiers_find_no_more_than_there_is(trace, memory, below, least):
    done = replay_stacked(trace, LRU, memory, Below(below, least))
    assert done.below_tokens <= done.hit_tokens <= unlimited(trace).hit_tokens
    assert done.written <= done.offered
    assert done.tokens == unlimited(trace).tokens
    if not least and below >= 40:
        assert done.written == done.offered
