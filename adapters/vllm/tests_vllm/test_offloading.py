"""Behind vLLM's OffloadingConnector: right tokens whatever is lost, given up, emptied or broken."""

import random

import pytest
from vllm.config import LoRAConfig
from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.request import RequestStatus

from engines.vllm.late_blocks import late_copies
from engines.vllm.vllm_engines import PATIENT
from engines.vllm.vllm_offloaded import Offloaded
from engines.vllm.vllm_toy import alone, configuration
from hexkv.adapters.vllm.worker.held import COPYING
from hexkv.ports import ConfigError
from processes import until


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


@pytest.fixture
def start(model, tmp_path):
    """Starts toys; the test's end ends them."""
    toys = []

    def begin(hexkv=PATIENT, **settings):
        tiers = {"pool": {"bytes": "4MiB"}, "tiers": [{"store": "memory"}]}
        toys.append(Offloaded(model, {**tiers, **hexkv, "socket_dir": str(tmp_path)}, **settings))
        return toys[-1]

    yield begin
    for toy in toys:
        toy.close()


@pytest.fixture
def toy(start):
    return start()


def check(toy):
    """Every request got what it gets without a cache."""
    for name, answer in toy.answers().items():
        request = toy.requests[name]
        assert answer == alone(request.prompt_token_ids, request.max_tokens), name


def run(toy):
    """Until nothing is under way and vLLM's own cache is empty."""
    toy.run()
    until(lambda: toy._rest() or not toy.busy)
    check(toy)
    toy.forget()


def give_up(toy, name):
    toy.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    del toy.requests[name]


def believe(toy, monkeypatch, name):
    """vLLM takes everything for found, for one request, without asking."""
    ask = toy.manager.lookup

    def found(key, context):
        return LookupResult.HIT if context.req_id == name else ask(key, context)

    monkeypatch.setattr(toy.manager, "lookup", found)


def test_adapters_that_vllm_names_without_their_content_are_refused(start, model, monkeypatch):
    monkeypatch.setattr(configuration(str(model), 256, True), "lora_config", LoRAConfig())
    with pytest.raises(ConfigError, match="LoRA adapters are not cached behind"):
        start()


def test_a_prompt_that_was_computed_before_is_loaded(toy):
    for name in ("cold", "hit"):
        toy.add(name, prompt(1, 100))
        run(toy)
    assert (toy.cached["cold"], toy.cached["hit"]) == (0, 96)


def test_preempted_requests_come_back_right(start):
    toy = start(blocks=26, budget=128)
    for turn in range(2):
        for i in range(4):
            toy.add(f"{turn}.{i}", prompt(i, 90), count=60)
        run(toy)
    assert toy.preempted


def test_requests_given_up_at_any_moment_leave_nothing_behind(toy):
    toy.add("cold", prompt(1, 200))
    run(toy)
    for steps in range(8):
        toy.add(f"given up {steps}", prompt(1, 200), count=20)
        for _ in range(steps):
            toy.step()
        give_up(toy, f"given up {steps}")
        toy.add(f"other {steps}", prompt(2 + steps, 50))
        run(toy)
    until(lambda: toy._rest() or not toy.held.used)
    assert set(toy.engine.health().leases) <= {"memory store"}


def test_a_block_that_vllm_did_not_look_for_is_loaded(toy, monkeypatch):
    toy.add("cold", prompt(1, 100))
    run(toy)
    believe(toy, monkeypatch, "hit")
    toy.add("hit", prompt(1, 100))
    run(toy)
    assert toy.cached["hit"] == 96


def test_a_load_of_what_is_not_there_waits_and_ends_with_its_request(toy, monkeypatch):
    believe(toy, monkeypatch, "waits")
    toy.add("waits", prompt(1, 100))
    toy.add("other", prompt(2, 100))
    until(lambda: toy._rest() or toy.requests["other"].is_finished())
    assert toy.requests["waits"].status is RequestStatus.WAITING_FOR_REMOTE_KVS
    assert toy.scheduler.reset_prefix_cache(reset_connector=True) is False  # it has blocks
    for _ in range(40):
        toy.step()
    assert toy.requests["waits"].status is RequestStatus.WAITING_FOR_REMOTE_KVS
    give_up(toy, "waits")
    run(toy)  # which finds no block in use
    toy.add("again", prompt(1, 100))
    run(toy)


def test_a_load_that_waits_goes_on_once_another_request_has_stored_it(start, monkeypatch):
    toy = start({})  # what is not there is looked for again as often as nobody has patience
    believe(toy, monkeypatch, "waits")
    toy.add("waits", prompt(1, 100))
    toy.step()
    toy.add("computes", prompt(1, 100))
    run(toy)
    assert (toy.cached["computes"], toy.cached["waits"]) == (0, 96)


def test_a_load_that_breaks_is_never_taken_for_one_that_did_not(toy, monkeypatch):
    toy.add("cold", prompt(1, 100))
    run(toy)

    def broken(*args):
        raise ZeroDivisionError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(toy.held, "load", broken)
        toy.add("broken", prompt(1, 100))
        toy.add("other", prompt(2, 100))
        until(lambda: toy._rest() or toy.requests["other"].is_finished())
        until(lambda: toy._rest() or toy.busy)
        assert not toy.requests["broken"].is_finished()
        give_up(toy, "broken")
        run(toy)


def test_blocks_of_a_load_that_is_given_up_stay_vllms_while_they_are_written_to(toy):
    toy.add("cold", prompt(1, 100))
    run(toy)
    with late_copies() as copies:
        toy.add("given up", prompt(1, 100))
        until(lambda: toy._rest() or copies)
    give_up(toy, "given up")
    toy.add("other", prompt(2, 100))
    until(lambda: toy._rest() or toy.requests["other"].is_finished())
    assert toy.busy
    assert toy.engine.health().leases[COPYING]
    for copy in copies:
        copy.finish()
    run(toy)  # which finds no block in use
    until(lambda: toy._rest() or set(toy.engine.health().leases) <= {"memory store"})


def test_a_load_whose_copy_fails_is_never_taken_for_one_that_did_not(toy):
    toy.add("cold", prompt(1, 100))
    run(toy)
    with late_copies() as copies:
        toy.add("broken", prompt(1, 100))
        until(lambda: toy._rest() or copies)
    for copy in copies:
        copy.error = ZeroDivisionError("on purpose")
    toy.add("other", prompt(2, 100))
    until(lambda: toy._rest() or toy.requests["other"].is_finished())
    assert not toy.requests["broken"].is_finished()
    give_up(toy, "broken")
    run(toy)


@pytest.mark.parametrize("name", ["match", "hold", "save"])
def test_whatever_breaks_inside_vllm_goes_on_and_the_tokens_are_right(toy, name, monkeypatch):
    def broken(*args, **named):
        raise ZeroDivisionError("on purpose")

    toy.add("cold", prompt(1, 100))
    run(toy)
    with monkeypatch.context() as patched:
        patched.setattr(toy.held._chunks, name, broken)
        toy.add("without", prompt(1, 100))
        toy.add("other", prompt(2, 100))
        run(toy)
    toy.add("whole", prompt(1, 100))
    run(toy)
    assert toy.cached["whole"] == 96


def test_hooks_that_break_altogether_are_left_out(toy, monkeypatch):
    def broken(*args, **named):
        raise ZeroDivisionError("on purpose")

    for name in ("held", "loaded", "stored", "step", "left", "forget"):
        with monkeypatch.context() as patched:
            patched.setattr(toy.manager._promises, name, broken)
            toy.add(f"without {name}", prompt(1, 100))
            run(toy)
            assert toy.scheduler.reset_prefix_cache(reset_connector=True)


def test_what_is_stored_while_vllm_resets_its_cache_is_not_found_after(toy):
    """Its memory may be other after a sleep. vLLM hands over what is stored one step late."""
    toy.add("before", prompt(1, 100), count=1)
    toy.run()
    assert toy.busy
    assert toy.scheduler.reset_prefix_cache(reset_connector=True)
    toy.add("other", prompt(2, 100))
    run(toy)
    toy.add("after", prompt(1, 100))
    run(toy)
    assert (toy.cached["before"], toy.cached["after"]) == (0, 0)


@pytest.mark.parametrize("clears", [[], ["memory"]])
def test_a_reset_deletes_only_what_is_configured(start, clears):
    toy = start(PATIENT | {"reset_clears": clears})
    for name in ("cold", "again"):
        toy.add(name, prompt(1, 100))
        run(toy)
        assert toy.scheduler.reset_prefix_cache(reset_connector=True)
    assert toy.cached["again"] == (0 if clears else 96)


def test_nothing_is_found_before_every_rank_knows_of_a_reset(toy, monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("on purpose")

    toy.add("cold", prompt(1, 100))
    run(toy)
    with monkeypatch.context() as patched:
        patched.setattr("hexkv.adapters.vllm.worker.held.cleared", broken)
        toy.scheduler.reset_prefix_cache(reset_connector=True)
    toy.add("again", prompt(1, 100))
    run(toy)
    toy.scheduler.reset_prefix_cache(reset_connector=True)
    toy.add("hit", prompt(1, 100))
    run(toy)
    assert [toy.cached[name] for name in ("again", "hit")] == [0, 96]


def test_it_ends_with_loads_and_stores_under_way(toy, monkeypatch):
    believe(toy, monkeypatch, "waits")
    toy.add("waits", prompt(1, 100))
    toy.add("stores", prompt(2, 100), count=1)
    toy.step()
    assert toy.busy
    toy.close()
    toy.close()
