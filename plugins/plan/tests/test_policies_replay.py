"""Replays: by hand, against the future, and of a recorded trace."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.core.policies import LRU, MRU, POLICIES
from hexkv.plan.replay import optimal, replay, unlimited
from hexkv.plan.stacked import Below, Writing, replay_stacked
from hexkv.plan.trace import BadTrace, TracedPrompt, read_mooncake, renamed
from hexkv.plan.workloads import WORKLOADS, footprint, synthetic
from hexkv.ports import ChunkKey

EXCERPT = Path(__file__).parents[3] / "tests" / "data" / "conversation.jsonl"


def request(path):
    """A prompt of one-letter chunks: a key is the whole path up to its chunk."""
    return TracedPrompt(
        512 * len(path), [ChunkKey(path[: i + 1].encode()) for i in range(len(path))]
    )


def hits(requests, policy, chunks):
    return replay([request(path) for path in requests], policy, chunks).hit_tokens // 512


def test_only_an_unbroken_run_from_the_start_is_a_hit():
    assert hits(["abc", "abd", "xbc", "abc"], LRU, 100) == 0 + 2 + 0 + 3


def test_a_tier_without_room_evicts_the_ends_of_prompts_first():
    # abc fills it; xy pushes out c and b; a is still there.
    assert hits(["abc", "xy", "abc"], LRU, 3) == 1
    done = replay([request(path) for path in ("abc", "xy", "abc")], LRU, 3)
    assert done.evictions == 4
    assert done.requests == 3
    assert done.hit_rate == 1 / 8


def test_a_request_never_evicts_itself():
    assert hits(["abcdef", "abcdef"], LRU, 4) == 4


def test_a_cycle_defeats_lru_and_not_mru():
    cycle = ["a", "b", "c"] * 4
    assert hits(cycle, LRU, 2) == 0
    assert hits(cycle, MRU, 2) == 5
    assert optimal([request(path) for path in cycle], 2).hit_tokens // 512 == 6


def test_what_the_last_chunk_leaves_over_counts_as_tokens_only():
    short = [TracedPrompt(700, request("a").keys), TracedPrompt(700, request("a").keys)]
    assert replay(short, LRU, 5).hit_rate == 512 / 1400
    assert unlimited(short).hit_rate == 512 / 1400


@each(
    ("writing", "hits", "dropped"),
    [
        (None, 2, 0),
        (Writing(2, pace=1.0), 2, 0),
        (Writing(2, pace=0.0, between=2.0), 2, 0),
        (Writing(2, pace=0.5), 0, 0),  # b is written first, which is of no use without a
        (Writing(1, pace=1.0), 2, 1),  # a hit takes no time: one of x and y
        (Writing(2, pace=0.0), 0, 2),  # those of the third request
    ],
)
def test_evicted_chunks_wait_to_be_written_and_are_dropped_from_a_full_queue(
    writing, hits, dropped
):
    requests = [request(path) for path in ("ab", "xy", "ab")]
    done = replay_stacked(requests, LRU, 2, Below(9, writing=writing))
    assert (done.hit_tokens // 512, done.dropped) == (hits, dropped)


def test_nothing_replayed_is_nothing_found():
    assert replay([], LRU, 5).hit_rate == unlimited([]).hit_rate == optimal([], 5).hit_rate == 0


paths = st.text("ab", min_size=1, max_size=5)
traces = st.lists(paths, max_size=25).map(lambda found: [request(path) for path in found])


@given(trace=traces, chunks=st.integers(1, 12), policy=st.sampled_from(sorted(POLICIES)))
def test_nobody_beats_who_knows_the_future(trace, chunks, policy):
    found = replay(trace, POLICIES[policy], chunks)
    best = optimal(trace, chunks)
    assert found.hit_tokens <= best.hit_tokens <= unlimited(trace).hit_tokens
    assert found.tokens == best.tokens == unlimited(trace).tokens


@given(trace=traces, chunks=st.integers(1, 12), policy=st.sampled_from(sorted(POLICIES)))
def test_no_policy_depends_on_the_names_of_chunks(trace, chunks, policy):
    other = renamed(trace, 3)
    assert {*other[0].keys}.isdisjoint(trace[0].keys) if trace else not other
    assert replay(other, POLICIES[policy], chunks) == replay(trace, POLICIES[policy], chunks)


@given(trace=traces, policy=st.sampled_from(sorted(POLICIES)))
def test_where_all_fits_every_policy_finds_all_there_is(trace, policy):
    found = replay(trace, POLICIES[policy], footprint(trace) + 1)
    assert found.hit_tokens == unlimited(trace).hit_tokens == optimal(trace, 99).hit_tokens
    assert found.evictions == 0


@given(trace=traces, chunks=st.integers(1, 4))
def test_the_optimum_is_what_trying_everything_finds(trace, chunks):
    trace = trace[:4]
    best = {frozenset(): 0}
    for now in trace:
        following = {}
        for kept, found in best.items():
            run = next((i for i, key in enumerate(now.keys) if key not in kept), len(now.keys))
            for left in _subsets(kept | set(now.keys), chunks):
                following[left] = max(following.get(left, 0), found + run)
        best = following
    assert optimal(trace, chunks).hit_tokens == 512 * max(best.values())


def _subsets(keys, most):
    """All prefix-closed subsets of at most so many keys: gaps are of no use to anybody."""
    found = {frozenset()}
    for key in sorted(keys, key=len):
        found |= {
            kept | {key}
            for kept in found
            if len(kept) < most and (len(key) == 1 or key[:-1] in kept)
        }
    return found


@pytest.fixture(scope="module")
def excerpt():
    with EXCERPT.open("rb") as lines:
        return list(read_mooncake(lines))


@pytest.mark.parametrize(("chunks", "expected"), [(300, 357_888), (1000, 377_856), (3000, 609_792)])
def test_lru_finds_of_a_recorded_trace_what_a_plain_model_finds(excerpt, chunks, expected):
    assert replay(excerpt, LRU, chunks).hit_tokens == expected == _plain_lru(excerpt, chunks)


def _plain_lru(requests, chunks):
    """LRU with the end of a prompt first, without windows, pins or an index."""
    kept, found = OrderedDict(), 0
    for now in requests:
        run = next((i for i, key in enumerate(now.keys) if key not in kept), len(now.keys))
        found += 512 * run
        for key in reversed(now.keys[:chunks]):
            kept[key] = None
            kept.move_to_end(key)
        while len(kept) > chunks:
            kept.popitem(last=False)
    return found


def test_a_recorded_trace_is_read_in_full(excerpt):
    assert len(excerpt) == 700
    assert unlimited(excerpt).hit_tokens == 1_783_808
    assert all(len(now.keys) == now.tokens // 512 for now in excerpt)


LINE = {"timestamp": 5, "input_length": 1300, "output_length": 9, "hash_ids": [1, 2, 3]}


@each(
    ("line", "message"),
    [
        ("{", "line 2: "),
        (b"\xff{}", "line 2: "),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "line 2: "),
        ({"timestamp": 4}, "timestamp 4 is no time, or before"),
        ({"timestamp": float("nan")}, "timestamp nan"),
        ({"timestamp": True}, "timestamp True"),
        ({"input_length": -1}, "input_length -1 is no number of tokens"),
        ({"input_length": 10**9}, "input_length 1000000000"),
        ({"output_length": "9"}, "output_length '9'"),
        ({"hash_ids": 7}, "no list of whole numbers"),
        ({"hash_ids": [1, 2, 3.0]}, "no list of whole numbers"),
        ({"hash_ids": [1, 2]}, "2 hash_ids, where 1300 tokens make 3 blocks of 512"),
        ({"hash_ids": [1, 3, 2]}, "hash id 3 follows 1, and 2 elsewhere"),
        ({"hash_ids": [1, 1, 2]}, "hash id 1 follows 1, and None elsewhere"),
    ],
)
def test_a_bad_line_is_an_error_that_says_which_and_why(line, message):
    bad = json.dumps(LINE | line) if isinstance(line, dict) else line
    with pytest.raises(BadTrace, match="line 2: ") as caught:
        list(read_mooncake([json.dumps(LINE), bad]))
    assert message in str(caught.value)


def test_blocks_may_have_another_size_and_lines_may_be_empty():
    (found,) = read_mooncake(["\n", json.dumps(LINE | {"hash_ids": [1, 2]})], 1000)
    assert (found.tokens, len(found.keys)) == (1300, 1)
    with pytest.raises(BadTrace, match="blocks of 0 tokens"):
        list(read_mooncake([], 0))


@each("name", WORKLOADS)
def test_a_workload_is_a_function_of_its_seed(name):
    assert synthetic(name, 50, 3) == synthetic(name, 50, 3) != synthetic(name, 50, 4)
