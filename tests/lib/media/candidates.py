"""Functions for ``hexkv check module:function``, for kinds that no plugin offers."""

from __future__ import annotations

from devices.slot_kv import RawSlots
from hexkv.contracts.check import Candidate
from hexkv.contracts.chunk_cache.double import HeapChunkCache, HeapService
from hexkv.contracts.observer import Reading
from hexkv.peers.pushing.announced import Announced
from hexkv.plugins.threads import Threads
from media.plain_serde import PlainSerde
from mutants.caches.encodings import DecodingContract, DecodingKV
from mutants.caches.segment_finders import PlainFinder
from mutants.fleet.announcings import LateClock
from mutants.fleet.collectives import Circle, LocalMember
from mutants.fleet.hand_overs import LeavingStore
from mutants.observing.observers import Board


def announcing():
    known = Announced(LateClock(), Threads())
    given = {"seen": known.of, "publish": lambda name, keys: known.published(keys)}
    return Candidate(known.of("ada"), fixtures=given)


def chunk_cache():
    cache = HeapChunkCache(16)
    return Candidate(cache, contract="chunk cache", fixtures={"ledger": cache.ledger})


def chunk_service():
    return Candidate(HeapService(16), contract="chunk service")


def collective():
    def members(size):
        circle = Circle(size)
        return [LocalMember(circle, rank) for rank in range(size)]

    return Candidate(members(2)[0], fixtures={"members": members})


def observer():
    board = Board()
    return Candidate(board, fixtures={"reading": Reading(board.metrics, board.unready)})


def encoded():
    layout, slots = DecodingContract.layout, DecodingContract.slots
    device = DecodingKV(layout, list(slots))
    given = {"raw": RawSlots(layout, device, slots), "serde": PlainSerde()}
    return Candidate(device, contract="encoded", fixtures=given)


def hand_over():
    return Candidate(LeavingStore(), contract="hand over", fixtures={"make": LeavingStore})


def segment_finder():
    return Candidate(PlainFinder(), contract="segment finder")


def unknown():
    return Candidate(PlainFinder(), contract="segment finders")
