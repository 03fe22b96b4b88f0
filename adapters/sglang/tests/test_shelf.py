"""Pages by name on a real engine: runs, pieces, and what moved."""

import hashlib

import pytest
import torch

from hexkv.adapters.sglang.shelf import Shelf, digest_of_name
from hexkv.adapters.sglang.windows import StackedKV
from hexkv.plugins.compose import build
from hexkv.plugins.config import load
from hexkv.ports import DType, KVLayout, Namespace

PAGE = 4
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)


@pytest.fixture
def engine():
    settings = {"chunk": {"size": PAGE, "seeded": False}, "pool": {"bytes": "4MiB"}}
    with build(load(environ={}, overrides=settings), Namespace("m", LAYOUT)) as engine:
        yield engine


def names(*numbers):
    return [hashlib.sha256(bytes([number])).hexdigest() for number in numbers]


def window(count, seed=0):
    made = torch.Generator().manual_seed(seed)
    planes = [torch.randn(count, 2, PAGE, 1, 8, generator=made).half() for _ in "kv"]
    return StackedKV(LAYOUT, planes, range(count)), planes


def test_a_name_is_its_digest_and_any_other_name_has_one():
    [name] = names(1)
    assert digest_of_name(name).hex() == name
    others = {digest_of_name(text) for text in ("abcd", "ukv1-ab_L0-16", "x" * 64, "")}
    assert len(others) == 4
    assert {len(digest) for digest in others} == {32}


def test_holes_are_seen_by_presence_and_end_a_prefix(engine):
    shelf = Shelf(engine, PAGE)
    assert shelf.save(names(0, 1, 4), window(3)[0])
    assert shelf.find(names(0, 1, 2, 4)) == 2
    assert shelf.present(names(0, 1, 2, 3, 4, 5)) == [True, True, False, False, True, False]
    target, planes = window(4, seed=1)
    before = planes[0][2:].clone()
    assert shelf.load(names(0, 1, 2, 4), target) == 2
    assert torch.equal(planes[0][2:], before)
    assert torch.equal(planes[0][:2], window(3)[1][0][:2])


def test_a_page_in_pieces_is_there_only_as_a_whole(engine):
    shelf = Shelf(engine, PAGE, pieces=2)
    assert shelf.save(names(7, 8), window(4)[0])
    engine.clear(shelf.named(names(8)[:1]))
    assert shelf.find(names(7, 8)) == 1
    assert shelf.present(names(8, 7)) == [False, True]
    assert shelf.load(names(7, 8), window(4, seed=2)[0]) == 1


def test_traffic_is_told_once(engine):
    shelf = Shelf(engine, PAGE)
    shelf.save(names(0, 1), window(2)[0])
    shelf.load(names(0, 1, 2), window(3)[0])
    loaded, saved = shelf.traffic()
    assert (loaded[0], saved[0]) == ([2], [2])
    assert all(rate > 0 for rate in loaded[1] + saved[1])
    assert shelf.traffic() == (([], []), ([], []))
