"""What vLLM computes sooner than a tier brings it is not loaded, as vLLM's own steps show."""

import pytest

from engines.vllm.vllm_plans import CHUNK, Rank, arrive, blocks, half, request, step
from engines.vllm.vllm_rank import ALL, PLAIN, PROMPT, packed, store
from engines.vllm.vllm_rank import Rank as Worker
from hexkv.adapters.vllm.messages import Step
from hexkv.adapters.vllm.scheduler.requests import Scheduled, found_in
from hexkv.plugins.support.compute_speed import ComputeSpeed, StepTimer
from hexkv.ports import Reason


def test_rates_are_of_as_many_tokens_and_forget_a_first_slow_prompt():
    speed = ComputeSpeed()
    assert speed.rate(100) is None
    speed.observe(4000, 4.0)
    for _ in range(12):
        speed.observe(4000, 0.04)
        speed.observe(32_000, 0.64)
        speed.observe(60, 0.03)  # behind a prefix that was loaded
    assert speed.rate(4000) == pytest.approx(100_000, rel=0.02)
    assert (speed.rate(1), speed.rate(60_000)) == (speed.rate(60), speed.rate(32_000))
    assert speed.rate(32_000) == pytest.approx(50_000, rel=0.02)
    speed.observe(0, 1.0)
    speed.observe(4000, 0.0)
    assert speed.rate(4000) == pytest.approx(100_000, rel=0.02)


def test_a_prompt_computed_in_several_steps_beside_others_counts_its_share_of_each():
    plan = half(Rank())
    for name, tokens in (("r", 1000), ("generates", 40)):
        arrive(plan, request(tokens, name))
        plan.matched(name, 0)
        plan.allocated(name, blocks(tokens), 0)
    seconds = {}
    for computed, count, beside in ((0, 600, 200), (600, 400, 0)):
        parts = [Scheduled("r", computed, count, (), False)]
        if beside:
            parts.append(Scheduled("generates", 40, beside, (), False))
        made = plan.plan(parts)
        assert made.timed
        seconds[made.number] = (count + beside) / 1000
    assert plan.meter.rate(1000) is None
    plan.meter.over(seconds)
    assert plan.meter.rate(1000) == pytest.approx(1000.0)
    plan.meter.over({999: 1.0})
    assert not step(plan, "r", 1000, 1).timed, "a step that generates shows nothing"


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_lookup_says_how_fast_a_prompt_of_its_length_is_computed(takes_over):
    said = []

    class Asked(Rank):
        def ask(self, op, tokens=b"", *, wanted=True, **more):
            said.append(more.get("rate"))
            return super().ask(op, tokens, wanted=wanted, **more)

    plan = half(Asked())
    plan.meter._speed.observe(100, 0.5)
    plan._shape = plan._shape.__class__(CHUNK, CHUNK // 2, tail=CHUNK // 2)
    arrive(plan, request(100), takes_over=takes_over)
    # What another engine was to compute is loaded, however slowly.
    assert said == [0.0 if takes_over else 200.0]


def test_steps_are_timed_by_marks_that_are_not_waited_for():
    class Mark:
        reached = 0

        def __init__(self):
            Mark.made = self.number = getattr(Mark, "made", 0) + 1

        def until(self, later):
            return None if later.number > Mark.reached else float(later.number - self.number)

    timer = StepTimer(Mark)
    for number in (1, 2):
        timer.begin()
        timer.end(number)
        timer.end(7)
    assert timer.take() == {}
    Mark.reached = 2
    assert timer.take() == {1: 1.0}
    Mark.reached = 4
    assert (timer.take(), timer.take()) == ({2: 1.0}, {})
    for number in range(200):
        timer.begin()
        timer.end(number)
    assert len(timer._running) == 64


def test_a_slow_tier_is_left_out_where_vllm_computes_sooner(tmp_path):
    worker = Worker(tiers=[{"store": "disk", "settings": {"root": str(tmp_path)}}])
    question = {"op": "find", "id": "r", "scope": list(PLAIN)}

    def find(rate):
        answer = worker.desk(question | {"rate": rate}, memoryview(packed(PROMPT)))
        worker.desk.release("r")
        return found_in(answer)

    try:
        store(worker)
        assert worker.engine.flush(60)
        [tier] = worker.engine.admin.stack.tiers
        assert find(1e12).tokens == ALL, "its speed is not known"
        tier.link.began(0.0)
        tier.link.ended(1.0, 100.0)
        assert (find(1e12).tokens, find(1e12).why) == (0, Reason.SLOWER)
        assert worker.engine.explain(PROMPT).diverges.tiers["disk"].reason is Reason.SLOWER
        assert find(1.0).tokens == find(0.0).tokens == find("fast").tokens == ALL
    finally:
        worker.half.close()


def test_only_timed_steps_are_timed():
    worker = Worker()
    try:
        for number, timed in ((1, False), (2, True), (3, False)):
            made = Step(number, timed=timed)
            worker.half.prepare(made)
            worker.run(made)
        assert list(worker.half.timer.take()) == [2]
    finally:
        worker.half.close()
