"""What the scheduler's half plans, told by the calls that vLLM makes."""

from array import array

from engines.vllm.vllm_plans import BLOCK, CHUNK, Clock, Rank, arrive, blocks, half, request, step
from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.adapters.vllm.configuration.weights import Weights
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.scheduler.requests import Allowed, Scheduled, Shape
from hexkv.adapters.vllm.scheduler.scheduler_connector import SchedulerConnector
from hexkv.contracts.kit.cases import each
from hexkv.ports import Reason


def test_asking_again_and_again_changes_nothing():
    rank = Rank(hit=64)
    plan = half(rank)
    name = arrive(plan, request())
    assert {plan.matched(name, 0) for _ in range(100)} == {(64, False)}
    assert rank.asked == [("find", "r")]


def test_a_hit_is_what_every_rank_has():
    plan = half(Rank(hit=96), Rank(hit=32), Rank(hit=64))
    name = arrive(plan, request())
    assert plan.matched(name, 0) == (32, False)
    # Who holds one tail need not hold another one.
    for hits, shared in ((112, 112), 112), ((112, 96), 96), ((112, 80), 64), ((96, 80), 64):
        plan = half(*(Rank(hit=hit) for hit in hits), tail=BLOCK)
        assert plan.matched(arrive(plan, request(120)), 0) == (shared, False)
    # Who gets what another one loads has no say, also on where the tail ends.
    plan = half(Rank(hit=112), Rank(follows=True), Rank(follows=True), tail=BLOCK)
    assert plan.matched(arrive(plan, request(120)), 0) == (112, False)


def test_the_last_chunk_of_a_prompt_ends_where_its_last_whole_block_does():
    rank = Rank(hit=80)
    plan = half(rank, tail=BLOCK)
    assert plan.matched(arrive(plan, request(BLOCK - 1, "short")), 0) == (0, False)
    assert plan.matched(arrive(plan, request(80, "exact")), 0) == (79, False), "one is computed"
    made = request(118)
    name = arrive(plan, made)
    external, _ = plan.matched(name, 0)
    plan.allocated(name, blocks(128), external)
    planned = step(plan, name, 80, 20, blocks(128))
    [load], [save] = planned.loads, planned.saves
    assert (load.start, load.end) == (0, 80)
    assert (save.start, save.end) == (64, 96), "a full chunk, from its beginning on"
    [save] = step(plan, name, 100, 18, replaces=False).saves
    assert (save.start, save.end, list(save.blocks)) == (96, 112, blocks(112))
    made.all_token_ids.extend(range(10))
    made.num_tokens += 10
    assert step(plan, name, 118, 9, replaces=False).saves == []
    [save] = step(plan, name, 127, 1, replaces=False).saves
    assert (save.start, save.end) == (96, 128), "as it grows, only full chunks are stored"


def test_tokens_that_vllm_has_itself_are_not_loaded():
    plan = half(Rank(hit=64))
    name = arrive(plan, request())
    assert plan.matched(name, 48) == (16, False)
    assert plan.matched(name, 64) == (0, False)
    assert plan.matched(name, 80) == (0, False)


@each(("later", "external"), [(False, 95), (True, 96)])
def test_within_a_step_one_token_is_left_to_compute(later, external):
    plan = half(Rank(hit=96), later=later)
    name = arrive(plan, request(96))
    assert plan.matched(name, 0) == (external, later)
    plan.allocated(name, blocks(96), external)
    (load,) = step(plan, name, external, 1, blocks(96)).loads
    assert (load.start, load.end, load.later) == (0, 96, later)
    assert array("I", load.tokens).tolist() == list(range(96))


@each("loading", ["sync", "layerwise", "async"])
def test_a_prompt_with_images_is_loaded_between_steps_beside_others_in_them(loading):
    plan = SchedulerConnector(
        ConnectorSettings(loading=loading), Shape(CHUNK, BLOCK), [Rank(hit=96)]
    )
    seen = arrive(plan, request(96, name="seen"), scope=Scope(inputs="images"))
    read = arrive(plan, request(96, name="read"))
    later = loading == "async"
    assert plan.matched(seen, 0) == (96, True)
    assert plan.matched(read, 0) == (96 if later else 95, later)
    plan.allocated(seen, blocks(96), 96)
    plan.allocated(read, blocks(96), 95)
    step = plan.plan([])
    assert [load.later for load in step.loads] == [True, later]
    assert step.idle


def test_a_prompt_shorter_than_a_chunk_is_not_asked_for():
    rank = Rank(hit=32)
    plan = half(rank)
    name = arrive(plan, request(CHUNK - 1))
    assert plan.matched(name, 0) == (0, False)
    assert rank.asked == []


def test_a_worker_that_is_not_there_is_a_miss():
    plan = half(Rank(hit=64), Rank(there=False))
    assert plan.matched(arrive(plan, request()), 0) == (0, False)


def test_a_worker_that_does_not_answer_in_time_is_a_miss():
    plan = half(Rank(hit=64), Rank(late=True))
    assert plan.matched(arrive(plan, request()), 0) == (0, False)


def test_asynchronous_lookups_let_vllm_come_again_until_their_deadline():
    clock, rank = Clock(), Rank(hit=64, late=True)
    plan = half(rank, async_lookup=True, lookup_seconds=2.0, clock=clock)
    name = arrive(plan, request())
    assert plan.matched(name, 0) == (None, False)
    clock.time = 1.0
    assert plan.matched(name, 0) == (None, False)
    rank.late = False
    assert plan.matched(name, 0) == (64, False)

    rank.late = True
    late = arrive(plan, request(name="late"))
    clock.time = 4.0
    assert plan.matched(late, 0) == (0, False)


def test_who_loads_nothing_lets_go_of_what_the_workers_hold():
    rank = Rank(hit=64)
    plan = half(rank)
    name = arrive(plan, request())
    plan.matched(name, 64)
    plan.allocated(name, blocks(100), 0)
    plan.allocated(name, blocks(100), 0)
    assert rank.count("release") == 1


def test_a_request_that_is_given_up_lets_go_of_it_too():
    rank = Rank(hit=64)
    plan = half(rank)
    plan.left(arrive(plan, request()))
    assert rank.count("release") == 1
    assert not plan.knows("r")


def test_after_a_load_the_workers_let_go_by_themselves():
    rank = Rank(hit=64)
    plan = half(rank)
    name = arrive(plan, request())
    external, _ = plan.matched(name, 0)
    plan.allocated(name, blocks(100), external)
    plan.left(name)
    assert rank.count("release") == 0


def test_blocks_of_others_are_not_loaded_into():
    plan = half(Rank(hit=96))
    name = arrive(plan, request())
    external, _ = plan.matched(name, 48)
    plan.allocated(name, blocks(100), external)
    (load,) = step(plan, name, 96, 4, blocks(100)).loads
    assert (load.start, load.end) == (48, 96)


def test_a_prompt_is_stored_chunk_by_chunk_as_it_is_computed():
    plan = half(Rank())
    name = arrive(plan, request())
    plan.matched(name, 0)
    plan.allocated(name, blocks(40), 0)
    (save,) = step(plan, name, 0, 40, blocks(40)).saves
    assert (save.start, save.end, list(save.blocks)) == (0, 32, [1, 2])
    assert step(plan, name, 40, 8, blocks(48)).saves == []
    (save,) = step(plan, name, 48, 52, [4, 5, 6, 7], replaces=False).saves
    assert (save.start, save.end, list(save.blocks)) == (32, 96, [1, 2, 3, 4, 5, 6])
    assert array("I", save.tokens).tolist() == list(range(96))


def test_what_was_found_is_not_stored_again():
    plan = half(Rank(hit=64))
    name = arrive(plan, request())
    external, _ = plan.matched(name, 0)
    plan.allocated(name, blocks(100), external)
    (save,) = step(plan, name, 64, 36, blocks(100)).saves
    assert (save.start, save.end) == (64, 96)


@each(("wanted", "end"), [(True, 128), (False, 96)])
def test_generated_tokens_are_stored_if_wanted(wanted, end):
    plan = half(Rank(), write_generated=wanted)
    name = arrive(plan, request(100, generated=40))
    plan.allocated(name, blocks(140), 0)
    (save,) = step(plan, name, 0, 139, blocks(140)).saves
    assert save.end == end


def test_guessed_tokens_are_not_stored():
    plan = half(Rank())
    name = arrive(plan, request(94))
    plan.allocated(name, blocks(98), 0)
    (save,) = step(plan, name, 0, 98, blocks(98)).saves  # four more than there are
    assert save.end == 64


def test_who_may_not_write_stores_nothing_and_who_may_not_read_asks_nothing():
    rank = Rank(hit=64)
    plan = half(rank)
    plan.arrived(request(name="w"), Scope(), Allowed(True, False))
    plan.arrived(request(name="r"), Scope(), Allowed(False, True))
    assert plan.matched("w", 0) == (64, False)
    assert plan.matched("r", 0) == (0, False)
    plan.allocated("w", blocks(100), 0)
    plan.allocated("r", blocks(100), 0)
    assert step(plan, "w", 0, 100, blocks(100)).saves == []
    assert [save.end for save in step(plan, "r", 0, 100, blocks(100)).saves] == [96]
    assert rank.asked == [("find", "w"), ("release", "w")]


def test_a_request_that_comes_back_after_preemption_is_asked_for_anew():
    rank = Rank()
    plan = half(rank)
    name = arrive(plan, request())
    plan.matched(name, 0)
    plan.allocated(name, blocks(100), 0)
    step(plan, name, 0, 100, blocks(100))
    rank.hit, rank.tiers = 96, {"memory": 96}
    assert plan.matched(name, 0) == (96, False)
    plan.allocated(name, [21, 22, 23, 24, 25, 26, 27], 96)
    planned = step(plan, name, 96, 4, [21, 22, 23, 24, 25, 26, 27])
    assert list(planned.loads[0].blocks) == [21, 22, 23, 24, 25, 26, 27]
    assert planned.saves == []
    assert rank.count("find") == 2


def test_what_did_not_arrive_is_stored_again_and_not_looked_for_again():
    rank = Rank(hit=96)
    plan = half(rank)
    name = arrive(plan, request())
    external, _ = plan.matched(name, 0)
    plan.allocated(name, blocks(100), external)
    step(plan, name, 96, 4, blocks(100))
    plan.done({3, 4, 5, 6}, {})  # the second chunk and the third
    (save,) = step(plan, name, 32, 68, (), replaces=False).saves
    assert (save.start, save.end) == (32, 96)
    assert plan.matched(name, 0) == (0, False)
    assert rank.count("find") == 1


def test_where_failures_are_seen_later_nothing_in_doubt_is_stored():
    ranks = Rank(hit=64), Rank(hit=64)
    plan = half(*ranks, checked_later=True)
    name, other = arrive(plan, request()), arrive(plan, request(name="o"))
    external, _ = plan.matched(name, 0)
    plan.allocated(name, blocks(100), external)
    plan.matched(other, 0)
    plan.allocated(other, [1, 2, 3, 4, 11, 12, 13], 0)  # shares the blocks that are being loaded
    planned = plan.plan(
        [
            Scheduled(name, 64, 36, blocks(100), True),
            Scheduled(other, 64, 36, [1, 2, 3, 4, 11, 12, 13], True),
        ]
    )
    assert len(planned.loads) == 1
    assert planned.saves == []
    plan.done((), {planned.number: 1})
    assert step(plan, name, 100, 1, (), replaces=False).saves == []
    plan.done((), {planned.number: 1})
    assert [save.end for save in step(plan, name, 101, 1, (), replaces=False).saves] == [96]


def test_vllms_own_word_on_a_requests_blocks_counts():
    plan = half(Rank())
    name = arrive(plan, request())
    plan.allocated(name, blocks(100), 0)
    planned = plan.plan(
        [Scheduled(name, 0, 100, blocks(100), True)], lambda _: [9, 8, 7, 6, 5, 4, 3]
    )
    assert list(planned.saves[0].blocks) == [9, 8, 7, 6, 5, 4]


def test_tokens_are_counted_by_the_tier_that_gives_them():
    plan = half(Rank(hit=96, tiers={"memory": 32, "disk": 64}))
    name = arrive(plan, request())
    plan.matched(name, 16)
    assert plan.sources(name, 80) == {"memory": 16, "disk": 64}
    assert plan.sources(name, 20) == {"memory": 16, "disk": 4}


def test_a_reset_of_vllms_caches_deletes_nothing(caplog):
    caplog.set_level("INFO", "vllm.hexkv")
    ranks = Rank(hit=64), Rank(hit=64)
    plan = half(*ranks)
    name = arrive(plan, request())
    assert plan.matched(name, 0) == (64, False)
    plan.reset()
    assert [rank.said for rank in ranks] == [{"tiers": [], "generation": 0}] * 2
    assert plan.matched(name, 0) == (64, False), "what was found is still there"
    assert caplog.messages == [
        "vLLM reset its caches; hexkv keeps its tiers' chunks (reset_clears)"
    ]


def test_a_reset_clears_the_tiers_that_are_named_and_says_what_it_could_not(caplog):
    caplog.set_level("INFO", "vllm.hexkv")
    ranks = Rank(hit=64), Rank(hit=64)
    plan = half(*ranks, reset_clears=("memory", "redis"))
    name = arrive(plan, request())
    assert plan.matched(name, 0) == (64, False)
    for rank in ranks:
        rank.hit, rank.cleared = 0, {"chunks": 3, "left": {}}
    plan.reset()
    assert ranks[0].said == {"tiers": ["memory", "redis"], "generation": 0}
    assert plan.matched(name, 0) == (0, False), "it was asked for again"
    ranks[0].cleared = {"chunks": 1, "left": {"redis": "it does not answer"}}
    ranks[1].there = False
    plan.reset()
    done, partly = caplog.messages
    assert done == "vLLM reset its caches; hexkv deleted 6 chunks on memory, redis"
    assert partly.endswith("some on redis: it does not answer; rank 1: no answer")


def lost(weights):
    """The weights are dropped, as vLLM is asked to."""
    weights.call(None, "sleep", {"kwargs": {"level": 2}}, lambda: None, lambda: "")


def test_requests_from_before_the_weights_were_replaced_are_left_alone():
    weights, rank = Weights(), Rank(hit=64)
    plan = half(rank, weights=weights)
    names = [arrive(plan, request(name=name)) for name in ("waits", "runs")]
    assert [plan.matched(name, 0) for name in names] == [(64, False)] * 2
    plan.allocated("runs", blocks(100), 64)
    assert not step(plan, "runs", 64, 20, blocks(100)).replaced
    lost(weights)
    assert plan.matched("waits", 0) == (0, False)
    assert rank.asked[-1] == ("release", "waits")
    plan.allocated("waits", blocks(100), 0)
    planned = plan.plan(
        [Scheduled("waits", 0, 100, blocks(100), True), Scheduled("runs", 84, 16, [], False)]
    )
    assert planned.replaced
    assert (planned.loads, planned.saves) == ([], [])
    assert [missed.reason for missed in planned.missed] == [
        Reason.TIER_OFF,
        Reason.BEHIND_A_MISS,
    ]


def test_requests_of_other_weights_are_not_looked_for_or_handed_over():
    weights, rank = Weights(), Rank(hit=64)
    plan = half(rank, weights=weights, tail=BLOCK)
    arrive(plan, request(name="told"), hands_over=True, holds=True)
    lost(weights)
    name = arrive(plan, request(), hands_over=True, holds=True)
    assert plan.matched(name, 0) == (0, False)
    plan.allocated(name, blocks(100), 0)
    planned = step(plan, name, 0, 100, blocks(100))
    assert (planned.saves, planned.computed) == ([], [])
    assert plan.handed_over(name)[0] is None
    assert [op for op, _ in rank.asked] == ["announce", "find", "release", "withdraw"]


def test_the_cache_goes_on_only_if_nothing_was_computed_with_other_weights(monkeypatch):
    monkeypatch.setattr(
        "hexkv.adapters.vllm.configuration.weights.weights_at", lambda config, place: "first"
    )
    for computes in (False, True):
        weights, rank = Weights(lambda: "first"), Rank(hit=64)
        plan = half(rank, weights=weights)
        arrive(plan, request(name="old"))
        lost(weights)
        if computes:
            step(plan, arrive(plan, request(name="between")), 0, 8, blocks(8))
        else:
            assert plan.plan([]).replaced, "nothing was computed"
        weights.call(None, "reload_weights", {}, lambda: None, lambda: "")
        name = arrive(plan, request())
        assert plan.matched(name, 0) == (0 if computes else 64, False)
        assert plan.matched("old", 0) == (0, False)
        assert plan.plan([]).replaced is computes
