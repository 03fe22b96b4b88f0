"""Adapters that keep every promise, and test classes that drop or waive one."""

from __future__ import annotations

import pytest

from devices.slot_kv import BlockwiseContract, SlotContract
from dict_store import DictContract, DictStore, WholeContract
from hexkv.contracts.kit.whole import waive
from hexkv.ports import DType
from media.plain_serde import CutSerde, PlainContract, PlainSerde
from mutants.bytes.memories import PlainMemoryContract
from mutants.caches.chunk_caches import HeapCacheContract
from mutants.caches.chunkers import PlainChunkerContract
from mutants.caches.encodings import DecodingContract
from mutants.caches.prefix_caches import EngineContract
from mutants.caches.segment_caches import SegmentsContract
from mutants.caches.segment_finders import PlainFinderContract
from mutants.fleet.channels import LocalContract
from mutants.fleet.collectives import LocalContract as LocalCollectiveContract
from mutants.fleet.hand_overs import LeavingContract
from mutants.observing.event_sinks import ContentsContract
from mutants.observing.observers import BoardContract
from mutants.observing.telemetries import SumsContract
from mutants.plugins import GramophoneContract
from mutants.policies import ListContract
from mutants.stores.store_filling import TellingStore


class TestCapableStore(WholeContract):
    Make = TellingStore


class TestHeapChunkCache(HeapCacheContract):
    pass


class TestLocalChannel(LocalContract):
    pass


class TestLocalCollective(LocalCollectiveContract):
    pass


class TestCacheEngine(EngineContract):
    pass


class TestPlainStore(DictContract):
    Make = DictStore


class TestPlainSerde(PlainContract):
    pass


class TestLossySerde(PlainContract):
    """Bfloat16 without its lower byte, and no layers of its own."""

    class Make(PlainSerde):
        lossless = False
        per_layer = False

        def encode(self, chunk, layout, tokens, into):
            cut = bytearray(chunk)
            cut[::2] = bytes(len(cut) // 2)
            return super().encode(cut, layout, tokens, into)

    @pytest.fixture
    def dtypes(self):
        return {DType.BFLOAT16}

    @pytest.fixture
    def close(self):
        return lambda raw, back, layout: raw[1::2] == back[1::2]


class TestBoundedSerde(PlainContract):
    """It says how much is lost, so that nobody needs to say what is near."""

    Make = CutSerde


class TestSlotKV(SlotContract):
    pass


class TestBlockwiseKV(BlockwiseContract):
    pass


class TestDecodingKV(DecodingContract):
    pass


class TestBoard(BoardContract):
    pass


class TestSums(SumsContract):
    pass


class TestContents(ContentsContract):
    pass


class TestLeavingStore(LeavingContract):
    pass


class TestPlainMemory(PlainMemoryContract):
    pass


class TestPlainChunker(PlainChunkerContract):
    pass


class TestPlainFinder(PlainFinderContract):
    pass


class TestSegments(SegmentsContract):
    pass


class TestListPolicy(ListContract):
    pass


class TestGramophone(GramophoneContract):
    pass


class TestDropsAPromise(DictContract):
    """The store is correct; its test class is not."""

    def test_a_miss_is_a_value(self): ...


class TestWaivesAPromise(DictContract):
    """Allowed: the reason shows in the report."""

    test_a_miss_is_a_value = waive("misses are not known here")
