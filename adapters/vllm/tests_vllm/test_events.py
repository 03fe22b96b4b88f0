"""What the tiers hold reaches vLLM's publisher, under vLLM's names."""

import random

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

PROMPT = random.Random(3).choices(range(1000), k=100)
BLOCK = 16


class Heard:
    """Every event that vLLM publishes, in order."""

    def __init__(self, toy):
        self.events = []
        publisher = toy.scheduler.kv_event_publisher
        publisher.publish = lambda batch: self.events.extend(batch.events)

    def of(self, kind, medium):
        return [e for e in self.events if isinstance(e, kind) and e.medium == medium]


def test_chunks_are_told_when_they_are_stored_and_when_they_go(start, tmp_path):
    disk = {"store": "disk", "settings": {"root": str(tmp_path / "cache")}}
    toy = start(tiers=[{"store": "memory"}, disk], events=True)
    heard = Heard(toy)
    toy.add("first", PROMPT)
    toy.run()
    hashes = [maybe_convert_block_hash(h) for h in toy.requests["first"].block_hashes]
    assert toy.engine.flush(60)
    toy.add("second", [1] * 40)  # events travel with steps
    toy.run()
    for medium in ("CPU", "STORAGE"):
        stored = [e for e in heard.of(BlockStored, medium) if e.token_ids[0] != 1]
        assert [h for e in stored for h in e.block_hashes] == hashes[:6]
        assert [t for e in stored for t in e.token_ids] == PROMPT[:96]
        assert [e.parent_block_hash for e in stored] == [None, hashes[1], hashes[3]]
        assert {e.block_size for e in stored} == {BLOCK}
    toy.engine.clear()
    toy.add("third", [2] * 40)
    toy.run()
    for medium in ("CPU", "STORAGE"):
        gone = {h for e in heard.of(BlockRemoved, medium) for h in e.block_hashes}
        assert set(hashes[:6]) <= gone


def test_nobody_is_told_where_nobody_listens(start):
    toy = start()
    toy.add("first", PROMPT)
    toy.run()
    assert list(toy.scheduler.connector.take_events()) == []
