"""Hundreds of requests are handed over while clients hang up and everything dies."""

import functools

import pytest

from engines.vllm.toy_crowd import Crowd
from engines.vllm.vllm_ranks import RankedToy, Ranks
from nodes import NodeProcess

pytestmark = pytest.mark.thorough

REQUESTS, FEWER = 500, 100
"""The toy of several ranks takes longer: it computes each head of each layer."""


@pytest.mark.parametrize("seed", range(3))
def test_every_request_is_answered_right_whatever_dies(start, tmp_path, seed):
    with NodeProcess(tmp_path, slots=1024, memory=256, disk=False) as node:
        settings = {"wait_seconds": 2.0, "remove_after_load": bool(seed % 2), "hold_seconds": 5.0}
        crowd = Crowd(lambda: start(node=node.path, connector=settings, budget=64), seed)
        live(crowd, node, REQUESTS)


@pytest.mark.parametrize("ranks", [(Ranks(2), Ranks(1)), (Ranks(1), Ranks(1, 2))], ids=str)
def test_so_it_is_where_the_decoder_has_other_ranks(start, tmp_path, ranks):
    with NodeProcess(tmp_path, slots=2048, memory=512, frame=65_536, disk=False) as node:
        settings = {"wait_seconds": 2.0, "remove_after_load": True, "hold_seconds": 5.0}
        settings["shards"] = {"heads": 2, "layers": 2}
        begin = functools.partial(start, node=node.path, connector=settings, budget=64)
        prefill, decode = (functools.partial(begin, toy=RankedToy, ranks=each) for each in ranks)
        live(Crowd(prefill, 7, decode=decode), node, FEWER)


def live(crowd, node, requests):
    """Requests come, and whatever can end ends; then nothing is left of it."""
    free = crowd.decode.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    dice = crowd.dice
    for number in range(requests):
        crowd.ask(str(number))
        for _ in range(dice.randrange(8)):
            crowd.step()
        if dice.random() < 0.1:
            crowd.give_up()
        if number % 100 == 30:
            crowd.kill_prefill()
        if number % 100 == 60:
            crowd.kill_decode()
        if number % 100 == 75:
            crowd.kill_proxy()
        if number % 250 == 80:
            node.kill()
        if number % 250 == 95:
            node.start()
    crowd.finish()
    assert crowd.answered > requests * 0.8
    assert crowd.whole > crowd.answered * 0.3, "most of them were handed over"
    for toy in (crowd.prefill, crowd.decode):
        toy.forget()  # nothing of it is in use any more
        assert toy.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
        assert not toy.scheduler.requests
        assert not toy.scheduler.connector._scheduler._requests
        toy.close()
    node.at_rest()
