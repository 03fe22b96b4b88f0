"""What the scheduler's half plans for a prompt that one engine computes and another takes over."""

from array import array

from engines.vllm.vllm_plans import BLOCK, Clock, Rank, arrive, blocks, half, request, step
from hexkv.adapters.vllm.scheduler.requests import PAD
from hexkv.contracts.kit.cases import each


def test_the_last_block_of_a_prompt_that_is_handed_over_is_stored_under_a_name_of_its_own():
    plan = half(Rank(hit=0), tail=BLOCK)
    made = request(118)
    name = arrive(plan, made, hands_over=True)
    assert plan.matched(name, 0) == (0, False)
    plan.allocated(name, blocks(118), 0)
    [save] = step(plan, name, 0, 100, blocks(118)).saves
    assert save.end == 96, "nothing of a block that is not computed"
    tail, last = step(plan, name, 100, 18, replaces=False).saves
    assert (tail.start, tail.end, last.start, last.end) == (96, 112, 96, 128)
    assert list(last.blocks) == blocks(118)
    assert array("I", last.tokens).tolist() == [*range(118), *[PAD] * 10]
    made.all_token_ids.extend(range(118, 128))
    made.num_tokens += 10
    assert step(plan, name, 118, 9, replaces=False).saves == []
    [save] = step(plan, name, 127, 1, replaces=False).saves
    assert (save.start, save.end) == (96, 128), "the chunk itself is stored, too"
    assert PAD not in array("I", save.tokens)


def test_a_prompt_that_is_taken_over_is_loaded_to_its_last_token():
    rank = Rank(hit=128)
    plan = half(rank, tail=BLOCK)
    made = request(118)
    name = arrive(plan, made, takes_over=True)
    assert plan.matched(name, 0) == (118, True), "between steps, where it can be all"
    plan.allocated(name, blocks(118), 118)
    [load] = plan.plan([]).loads
    assert (load.start, load.end, load.later) == (0, 128, True)
    assert array("I", load.tokens).tolist() == [*range(118), *[PAD] * 10]
    made.all_token_ids.extend(range(118, 128))
    made.num_tokens += 10
    [save] = step(plan, name, 127, 1, replaces=True, ids=blocks(128)).saves
    assert (save.start, save.end) == (96, 128), "what was generated behind it is stored"
    plan.matched(name, 0)
    assert PAD not in array("I", rank.tokens), "preempted: more is known than the prompt"


def test_a_prompt_is_announced_until_it_is_computed_or_given_up():
    rank = Rank()
    plan = half(rank, tail=BLOCK)
    for name in ("done", "aborted"):
        made = request(118, name)
        arrive(plan, made, hands_over=True)
        assert rank.asked[-2:] == [("announce", name), ("find", name)]
        plan.matched(name, 0)
        plan.allocated(name, blocks(118), 0)
        assert step(plan, name, 0, 100, blocks(118)).computed == []
    [computed] = step(plan, "done", 100, 18, replaces=False).computed
    assert computed.request == "done"
    plan.left("done")
    plan.left("aborted")
    assert [asked for asked in rank.asked if asked[0] == "withdraw"] == [("withdraw", "aborted")]


class Coming(Rank):
    """Says that another engine computes what it lacks, until it is settled."""

    def __init__(self):
        super().__init__(hit=32)
        self.coming, self.settled = True, []

    def take(self, number, seconds=0.0):
        if self.asked[number - 1][0] == "settled":
            return {"settled": self.settled} if self.settled else None
        return {"hit": self.hit, "tiers": {}, "coming": self.coming}


@each("end", ["settled", "nonsense", "late"])
def test_a_request_waits_for_what_another_engine_computes_as_long_as_it_may(end):
    rank, clock = Coming(), Clock()
    plan = half(rank, Rank(hit=112), tail=BLOCK, clock=clock, wait_seconds=5.0)
    name = arrive(plan, request(118), takes_over=True)
    clock.time = 4.0
    assert {plan.matched(name, 0) for _ in range(5)} == {(None, False)}
    assert rank.count("settled") == 1, "one question for all"
    assert plan.plan([]).waits, "the step need not be over at once"
    rank.coming, rank.hit = False, 112
    if end == "late":
        clock.time = 5.0
    else:
        rank.settled = ["other", name] if end == "settled" else "nonsense"
    assert plan.matched(name, 0) == (112, True)
    assert not plan.plan([]).waits
    assert rank.count("find") == 2


def test_without_tails_of_a_block_nothing_ends_with_the_last_one():
    rank = Rank(hit=96)
    plan = half(rank)
    name = arrive(plan, request(118), hands_over=True, takes_over=True)
    assert plan.matched(name, 0) == (96, True)
    assert len(rank.tokens) == 4 * 96
