"""A block is promised to vLLM's offloading only once its bytes are here and whole."""

import pytest
import torch

from hexkv.adapters.vllm.staging import WORDS, Staging, words
from hexkv.kernels.blocks import opaque_layout
from hexkv.plugins.compose import build
from hexkv.plugins.config import load
from hexkv.ports import InvalidRequest, Namespace

BLOCKS = 6
SIZES = ([64, 128], [32])
"""Bytes of a block in each tensor of each group."""


def tensors(seed):
    made = torch.Generator().manual_seed(seed)
    return [
        [torch.randint(0, 256, (BLOCKS, n), generator=made, dtype=torch.uint8) for n in sizes]
        for sizes in SIZES
    ]


class Rank:
    def __init__(self, root, limit=10_000):
        self.pages = tensors(1)
        groups = [
            (Namespace("toy", opaque_layout(WORDS, sizes), extra=(("group", str(i)),)), pages)
            for i, (sizes, pages) in enumerate(zip(SIZES, self.pages, strict=True))
        ]
        tiers = [{"store": "disk", "settings": {"root": str(root)}}]
        settings = {"chunk": {"size": WORDS}, "pool": {"bytes": "1MiB"}, "tiers": tiers}
        settings["deadlines"] = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0}
        self.engine = build(load(None, {}, settings), groups[0][0])
        self.staging = Staging(self.engine, dict(enumerate(groups)), limit)

    def store(self, name, group, block):
        copied = self.staging.store(name, group, block, 0)
        assert self.engine.flush(60)
        return copied

    def block(self, group, block):
        return b"".join(bytes(page[block].tolist()) for page in self.pages[group])


@pytest.fixture
def rank(tmp_path):
    rank = Rank(tmp_path / "cache")
    yield rank
    rank.staging.close()


@pytest.mark.parametrize("group", [0, 1])
def test_a_block_that_was_stored_is_put_aside_and_loaded_elsewhere(rank, group):
    before = rank.block(group, 2)
    assert rank.store(b"a", group, 2) == sum(SIZES[group])
    assert rank.store(b"a", group, 2) == 0
    assert rank.staging.stage(7, group, b"a")
    assert rank.staging.load(7, group, 4) == sum(SIZES[group])
    assert rank.block(group, 4) == before


def test_what_was_put_aside_survives_the_tiers(rank):
    before = rank.block(0, 2)
    rank.store(b"a", 0, 2)
    assert rank.staging.stage(7, 0, b"a")
    rank.engine.clear()
    assert not rank.staging.stage(8, 0, b"a")
    rank.staging.load(7, 0, 4)
    assert rank.block(0, 4) == before


def test_groups_share_no_names(rank):
    rank.store(b"a", 0, 2)
    assert not rank.staging.stage(7, 1, b"a")


def test_a_damaged_block_is_not_promised(rank, tmp_path):
    rank.store(b"a", 0, 2)
    (frame,) = (p for p in (tmp_path / "cache").rglob("*") if p.stat().st_size == 8192)
    with frame.open("r+b") as file:
        file.seek(4096 + 10)
        file.write(b"damage")
    assert not rank.staging.stage(7, 0, b"a")
    with pytest.raises(KeyError):
        rank.staging.load(7, 0, 4)


def test_no_more_is_put_aside_than_there_is_room_for(tmp_path):
    rank = Rank(tmp_path / "cache", limit=400)
    try:
        rank.store(b"a", 0, 2)
        assert [rank.staging.stage(i, 0, b"a") for i in range(3)] == [True, True, False]
        rank.staging.release([0, 0, 99])
        assert rank.staging.stage(3, 0, b"a")
        assert not rank.staging.stage(4, 0, b"a")
    finally:
        rank.staging.close()


def test_a_block_that_was_released_before_it_was_there_takes_no_room(tmp_path):
    rank = Rank(tmp_path / "cache", limit=200)
    try:
        rank.store(b"a", 0, 2)
        rank.staging.release([7])
        assert not rank.staging.stage(7, 0, b"a")
        assert rank.staging.stage(8, 0, b"a")
    finally:
        rank.staging.close()


def test_the_scheduler_asks_in_messages(rank):
    rank.store(b"a", 1, 2)
    ask = {"op": "stage", "ticket": 7, "group": 1}
    assert rank.staging(ask, memoryview(b"a")) == {"held": True}
    assert rank.staging(ask | {"ticket": 8}, memoryview(b"b")) == {"held": False}
    assert rank.staging({"op": "release", "tickets": [7, 8]}, memoryview(b"")) == {}
    assert rank.staging({"op": "give_up", "tickets": [9]}, memoryview(b"")) == {}
    assert rank.staging.gave_up(9)
    assert rank.staging({"op": "clear", "generation": 1}, memoryview(b"")) == {"chunks": 1}
    with pytest.raises(InvalidRequest):
        rank.staging({"op": "stage"}, memoryview(b""))


def test_nothing_from_before_it_was_emptied_comes_back(rank):
    """vLLM hands over what it named in the step before."""
    for name in (b"a", b"b", b"c"):
        rank.staging.store(name, 0, 2, 0)  # queued when the cache is emptied
    rank.staging.clear(1)
    assert rank.staging.store(b"d", 0, 2, 0) == 0
    assert not any(rank.staging.stage(i, 0, name) for i, name in enumerate((b"a", b"b", b"c")))
    assert not rank.staging.stage(4, 0, b"d")
    rank.staging.store(b"d", 0, 2, 1)
    assert rank.engine.flush(60)
    assert rank.staging.stage(5, 0, b"d")


def test_a_block_is_kept_as_it_was_when_it_was_handed_over(rank):
    """Its place may be another's a moment later."""
    before = rank.block(0, 2)
    rank.staging.store(b"a", 0, 2, 0)
    for page in rank.pages[0]:
        page[2] = 0
    assert rank.engine.flush(60)
    assert rank.staging.stage(7, 0, b"a")
    rank.staging.load(7, 0, 4)
    assert rank.block(0, 4) == before


def test_blocks_are_ready_when_all_are_aside(rank):
    rank.store(b"a", 0, 2)
    assert rank.staging.stage(7, 0, b"a")
    assert rank.staging.ready([7])
    assert not rank.staging.ready([7, 8])
    assert rank.staging.ready([])


def test_a_blocks_prompt_has_as_many_words_as_a_chunk_has_tokens():
    assert len(memoryview(words(b"any name")).cast("I")) == WORDS
