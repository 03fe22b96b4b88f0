"""With vLLM's own scheduler: right tokens whatever is found, lost, preempted or given up."""

import random

import pytest

from depth import thorough
from engines.vllm.vllm_toy import alone, packed
from hexkv.ports import StoreUnreachable
from processes import until

MODES = ["sync", "async", "layerwise"]


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture(params=MODES)
def mode(request):
    return {"loading": request.param}


def check(toy):
    """Every request got what it gets without a cache."""
    for name, answer in toy.answers().items():
        request = toy.requests[name]
        assert answer == alone(request.prompt_token_ids, request.max_tokens), name


def test_a_prompt_that_was_computed_before_is_loaded(start, mode):
    toy = start(connector=mode)
    toy.add("cold", prompt(1, 100))
    toy.run()
    toy.forget()
    toy.add("hit", prompt(1, 100))
    toy.run()
    check(toy)
    assert (toy.cached["cold"], toy.cached["hit"]) == (0, 96)


def test_a_whole_prompt_is_loaded_but_for_the_token_to_compute(start, mode):
    toy = start(connector=mode)
    for name in ("cold", "hit"):
        toy.add(name, prompt(1, 96))
        toy.run()
        toy.forget()
    check(toy)
    assert toy.cached["hit"] == 95


def test_long_prompts_in_small_steps_and_many_at_once(start, mode):
    toy = start(connector=mode, budget=48)
    for turn in range(3):
        for i in range(6):
            toy.add(f"{turn}.{i}", prompt(7, 64) + prompt(i, 40 + 17 * i), count=6)
        toy.run()
        check(toy)
        toy.forget()


def test_preempted_requests_come_back_right(start, mode):
    toy = start(connector=mode, blocks=26, budget=128)
    for turn in range(2):
        for i in range(4):
            toy.add(f"{turn}.{i}", prompt(i, 90), count=60)
        toy.run()
        toy.forget()
    check(toy)
    assert toy.preempted


def test_generated_tokens_are_there_for_the_next_turn(start):
    toy = start()
    toy.add("first", prompt(1, 60), count=40)
    toy.run()
    toy.forget()
    spoken = prompt(1, 60) + toy.answers()["first"]
    toy.add("second", [*spoken, 1, 2, 3])
    toy.run()
    check(toy)
    assert toy.cached["second"] == 96


@pytest.mark.parametrize("caching", [True, False])
def test_vllms_own_prefix_cache_and_this_one_complete_each_other(start, mode, caching):
    toy = start(connector=mode, prefix_caching=caching)
    toy.add("cold", prompt(1, 100))
    toy.run()
    if caching:
        toy.forget()
    toy.add("short", prompt(1, 100)[:40])
    toy.run()
    toy.add("long", prompt(1, 100))
    toy.run()
    check(toy)
    assert toy.cached["long"] == 96


def test_what_is_lost_is_computed_and_stored_again(start, mode):
    toy = start(connector=mode)
    toy.add("cold", prompt(1, 200))
    toy.run()
    found = toy.scheduler.connector._scheduler
    for turn in range(4):
        toy.forget()
        toy.add(f"lost {turn}", prompt(1, 200))
        assert found.matched(f"lost {turn}", 0)[0] == 192
        toy.engine.clear(packed(prompt(1, 200)[: 32 * turn]))  # after it was found
        toy.run()
        check(toy)
        toy.forget()
        toy.add(f"healed {turn}", prompt(1, 200))
        toy.run()
        check(toy)
        assert toy.cached[f"healed {turn}"] == 192


def test_everything_is_lost_at_once_for_many_requests(start, mode):
    toy = start(connector=mode)
    for i in range(4):
        toy.add(f"cold {i}", prompt(9, 64) + prompt(i, 50))
    toy.run()
    toy.forget()
    found = toy.scheduler.connector._scheduler
    for i in range(4):
        toy.add(f"lost {i}", prompt(9, 64) + prompt(i, 50))
        assert found.matched(f"lost {i}", 0)[0] > 0
    toy.engine.clear()
    toy.run()
    check(toy)


def test_nothing_is_stored_that_was_computed_from_what_was_lost(start, mode):
    toy = start(connector=mode)
    toy.add("cold", prompt(9, 64))
    toy.run()
    found = toy.scheduler.connector._scheduler
    for turn in range(2):
        toy.forget()
        for i in range(3):
            toy.add(f"{turn}.{i}", prompt(9, 64) + prompt(i, 70))
            assert found.matched(f"{turn}.{i}", 0)[0] > 0
        if not turn:
            toy.engine.clear()  # after it was found, and before the step that completes chunks
        toy.run()
        check(toy)
    assert [toy.cached[f"1.{i}"] for i in range(3)] == [128] * 3


def test_a_request_may_refuse_to_read_or_to_write(start):
    toy = start()
    toy.add("silent", prompt(1, 100), params={"hexkv": {"write": False}})
    toy.run()
    toy.forget()
    toy.add("cold", prompt(1, 100))
    toy.run()
    toy.forget()
    toy.add("deaf", prompt(1, 100), params={"hexkv": {"read": False}})
    toy.run()
    check(toy)
    assert (toy.cached["cold"], toy.cached["deaf"]) == (0, 0)


def test_salts_keep_tenants_apart(start):
    toy = start()
    for name, salt in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        toy.add(name, prompt(1, 100), salt=salt)
        toy.run()
        toy.forget()
    check(toy)
    assert (toy.cached["b1"], toy.cached["a2"]) == (0, 96)


def test_requests_given_up_at_any_moment_leave_nothing_behind(start, mode):
    from vllm.v1.request import RequestStatus

    toy = start(connector=mode)
    toy.add("cold", prompt(1, 200))
    toy.run()
    for steps in range(4):
        toy.forget()
        toy.add(f"given up {steps}", prompt(1, 200), count=20)
        for _ in range(steps):
            toy.step()
        toy.scheduler.finish_requests(f"given up {steps}", RequestStatus.FINISHED_ABORTED)
        del toy.requests[f"given up {steps}"]
        toy.add(f"other {steps}", prompt(2 + steps, 50))
        toy.run()
        check(toy)
    assert toy.engine.flush(60)
    until(lambda: toy.engine.health().pins == {} and toy.engine.health().prefetches == 0)


def test_lookups_that_take_their_time_hold_up_nobody(start, mode):
    toy = start(connector=mode | {"async_lookup": True})
    for turn in range(2):
        for i in range(4):
            toy.add(f"{turn}.{i}", prompt(i, 100))
        toy.run()
        check(toy)
        toy.forget()
    assert [toy.cached[f"1.{i}"] for i in range(4)] == [96] * 4


@pytest.mark.parametrize("clears", [[], ["memory"]])
def test_a_reset_with_the_connector_deletes_only_what_is_configured(start, clears):
    toy = start(connector={"reset_clears": clears})
    toy.add("cold", prompt(1, 100))
    toy.run()
    toy.forget()  # once its blocks are saved
    assert toy.scheduler.reset_prefix_cache(reset_connector=True)
    toy.add("again", prompt(1, 100))
    toy.run()
    check(toy)
    assert toy.cached["again"] == (0 if clears else 96)


def test_a_tier_that_cannot_be_cleared_fails_no_reset(start, monkeypatch, caplog):
    toy = start(connector={"reset_clears": ["memory"]})

    def broken(tiers):
        raise StoreUnreachable("it does not answer")

    monkeypatch.setattr(toy.engine, "clear", broken)
    assert toy.scheduler.reset_prefix_cache(reset_connector=True)
    assert "may have kept some on memory: it does not answer" in caplog.text


@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 6))])
def test_random_days_end_well(start, mode, seed, tmp_path):
    """Requests come, go and share prefixes; chunks vanish; memory is short."""
    from vllm.v1.request import RequestStatus

    rng = random.Random(seed)
    disk = {"store": "disk", "settings": {"root": str(tmp_path / "cache")}}
    toy = start(
        connector=mode | {"async_lookup": bool(seed % 2)},
        tiers=[{"store": "memory", "budget": "200KiB"}, disk],
        blocks=40,
        budget=rng.choice([48, 96, 256]),
        prefix_caching=seed % 3 > 0,
    )
    heads = [prompt(100 + i, 96) for i in range(3)]
    for i in range(30):
        body = rng.choice(heads)[: rng.choice([32, 64, 70, 96])] + prompt(i % 7, rng.randint(1, 60))
        toy.add(f"r{i}", body, count=rng.randint(1, 30))
        for _ in range(rng.randint(0, 6)):
            toy.step()
        if rng.random() < 0.2:
            toy.engine.clear(packed(rng.choice(heads)))
        if rng.random() < 0.2:
            toy.engine.clear()
        if rng.random() < 0.2 and toy.scheduler.has_unfinished_requests():
            name = rng.choice(list(toy.requests))
            toy.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            del toy.requests[name]
    toy.run()
    check(toy)
