"""Hundreds of requests go from one node to another while clients hang up and everything dies."""

from contextlib import closing

import pytest

from engines.vllm.toy_crowd import Crowd
from hexkv.contracts.chunk_cache._base import soon
from nodes import MEMORY, NodeProcess
from peers.pushing import DECODE, nodes
from processes import until

pytestmark = pytest.mark.thorough

REQUESTS = 500
FRAME = 12_288


def unpinned(node):
    """Whether no hold is left."""
    with closing(node.client()) as client:
        told = client.health(soon())
        return told is not None and not told.pins and set(told.leases) <= {MEMORY}


@pytest.mark.parametrize("seed", range(3))
def test_every_request_is_answered_right_whatever_dies(start, tmp_path, seed):
    with nodes(tmp_path, NodeProcess, slots=1024, memory=512, frame=FRAME) as machines:
        settings = {"wait_seconds": 2.0, "remove_after_load": bool(seed % 2), "hold_seconds": 5.0}

        def at(node):
            return lambda: start(node=node.path, connector=settings, budget=64)

        prefill, decode = machines
        crowd = Crowd(at(prefill), seed, decode=at(decode), told={"decode_node": DECODE})
        free = crowd.decode.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        dice = crowd.dice
        for number in range(REQUESTS):
            crowd.ask(str(number))
            for _ in range(dice.randrange(8)):
                crowd.step()
            if dice.random() < 0.1:
                crowd.give_up()
            match number % 250:
                case 30 | 155:
                    crowd.kill_prefill()
                case 60 | 185:
                    crowd.kill_decode()
                case 75 | 200:
                    crowd.kill_proxy()
                case 90:
                    decode.kill()
                case 110:
                    decode.start()
                case 215:
                    prefill.kill()
                case 235:
                    prefill.start()
        crowd.finish()
        assert crowd.answered > REQUESTS * 0.7
        assert crowd.whole > crowd.answered * 0.2, "many of them were handed over"
        for toy in (crowd.prefill, crowd.decode):
            toy.forget()  # nothing of it is in use any more
            assert toy.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
            assert not toy.scheduler.requests
            assert not toy.scheduler.connector._scheduler._requests
            toy.close()
        for node in machines:
            until(lambda node=node: unpinned(node))
