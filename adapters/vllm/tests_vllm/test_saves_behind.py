"""vLLM's own scheduler beside saves that run much later than their steps."""

import random
from collections import deque
from concurrent.futures import Future

import pytest

from depth import thorough
from engines.vllm.vllm_toy import Toy, alone
from hexkv.adapters.vllm.scheduler.blocks_read import BlocksRead
from hexkv.adapters.vllm.worker.pending_saves import PendingSave


def prompt(seed, count):
    return random.Random(seed).choices(range(1000), k=count)


class LateToy(Toy):
    """A toy whose saves run when :meth:`save` is called, one at a time."""

    def __init__(self, *given, **settings):
        super().__init__(*given, **settings)
        self.tasks = deque()
        saving = self.worker._worker.half._saving
        saving._thread.shutdown()
        saving._thread = self

    def submit(self, work, *given):
        self.tasks.append((future := Future(), work, given))
        return future

    def shutdown(self, **_):
        self.save(len(self.tasks))

    def settle(self, seconds):
        pass

    def save(self, count=1):
        for _ in range(min(count, len(self.tasks))):
            future, work, given = self.tasks.popleft()
            future.set_result(work(*given))

    def close(self):
        self.save(len(self.tasks))
        super().close()

    def _rest(self):
        if not self.step():
            self.save()


def check(toy):
    for name, answer in toy.answers().items():
        request = toy.requests[name]
        assert answer == alone(request.prompt_token_ids, request.max_tokens), name


def free(toy):
    return toy.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def test_a_request_that_ended_keeps_its_blocks_until_they_are_copied(start):
    toy = start(toy=LateToy)
    before = free(toy)
    toy.add("r", prompt(1, 100), count=1)
    toy.run()
    assert toy.scheduler.has_requests(), "vLLM goes on to take steps"
    for _ in range(3):
        toy.step()
        assert free(toy) < before
    toy.save()
    toy.step()
    assert (free(toy), toy.scheduler.has_requests()) == (before, False)
    toy.forget()
    toy.add("hit", prompt(1, 100))
    toy.run()
    check(toy)
    assert toy.cached["hit"] == 96


def test_a_request_whose_saves_are_over_gives_its_blocks_back_as_it_ends(start):
    toy = start(toy=LateToy)
    before = free(toy)
    toy.add("r", prompt(1, 100), count=4)
    toy.step()
    toy.save()
    toy.run()
    assert free(toy) == before


def day(toy, seed):
    """Requests come, go, are preempted and given up, while saves run at any time."""
    from vllm.v1.request import RequestStatus

    rng = random.Random(seed)
    heads = [prompt(100 + i, 96) for i in range(3)]
    for i in range(24):
        body = rng.choice(heads)[: rng.choice([32, 64, 96])] + prompt(i % 5, rng.randint(1, 60))
        toy.add(f"r{i}", body, count=rng.choice([1, 3, 40]))
        for _ in range(rng.randint(0, 6)):
            toy.step()
            toy.save(rng.choice([0, 0, 1, 3]))
        if rng.random() < 0.2 and toy.scheduler.has_unfinished_requests():
            name = rng.choice(list(toy.requests))
            toy.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            del toy.requests[name]
        if rng.random() < 0.1:
            kept = toy.scheduler.connector.has_pending_push_work()
            # vLLM raises where a request waits for its load.
            states = {request.status for request in toy.scheduler.requests.values()}
            kept = kept or RequestStatus.WAITING_FOR_REMOTE_KVS in states
            toy.scheduler.reset_prefix_cache(reset_running_requests=not kept)
    toy.run()
    while toy.tasks or toy.scheduler.has_requests():
        toy._rest()


def days(start, seeds):
    for seed in seeds:
        whole_day(start, seed)


def whole_day(start, seed, mode="sync"):
    """A day, and then every prompt of it again, without vLLM's own prefix cache."""
    blocks = 30
    toy = start(toy=LateToy, connector={"loading": mode}, blocks=blocks, budget=96)
    before = free(toy)
    day(toy, seed)
    check(toy)
    assert free(toy) == before, "each block is given back, and none twice"
    toy.forget()
    for name in list(toy.requests):
        request = toy.requests[name]
        toy.add(f"{name} again", request.prompt_token_ids, count=2)
        toy.run()
    check(toy)
    return toy


@pytest.mark.parametrize("mode", ["sync", *thorough("async", "layerwise")])
@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 8))])
def test_days_with_late_saves_end_well(start, mode, seed):
    toy = whole_day(start, seed, mode)
    assert toy.preempted


def test_the_toy_notices_blocks_that_are_saved_too_late(start, monkeypatch):
    """Neither kept nor voided: KV of another prompt is stored."""
    monkeypatch.setattr(BlocksRead, "keeps", lambda self, request: False)
    monkeypatch.setattr(PendingSave, "check", lambda self: None)
    with pytest.raises(AssertionError):
        days(start, range(6))
