"""Keyed caches that mix chunks up, lose them, or keep what they lent."""

from __future__ import annotations

from time import monotonic

import pytest

from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache._base import soon, spec
from hexkv.contracts.chunk_cache.double import HeapChunkCache, HeapHold
from hexkv.ports import InvalidRequest, Reason
from mutants.rows import Wrong, broken

BLOCKS = 16


class HeapCacheContract(ChunkCacheContract):
    Make = HeapChunkCache

    @pytest.fixture
    def cache(self):
        return self.Make(BLOCKS)

    @pytest.fixture
    def ledger(self, cache):
        return cache.ledger

    @pytest.fixture
    def crowd(self, cache):
        def lease_all():
            some = [spec(f"crowd{i}") for i in range(BLOCKS)]
            leases = cache.allocate(some, "crowd", soon())
            return lambda: [lease.release() for lease in leases]

        return lease_all

    @pytest.fixture
    def closed(self, cache):
        cache.close()
        return cache


def answers_out_of_order(self, real, keys, deadline):
    return sorted(real(keys, deadline), key=lambda tier: tier is None)


def forgets_namespaces(self, keys, deadline):
    known = {key[16:] for key in self._chunks}
    self._check()
    return ["heap" if key[16:] in known else None for key in keys]


def names_tiers_that_hold_nothing(self, real, leases, after, deadline):
    publishing = real(leases, after, deadline)
    publishing.tiers = {"heap": [True] * min(1, len(leases))}
    return publishing


def leases_say_nothing(self, real, wanted, owner, deadline):
    leases = real(wanted, owner, deadline)
    for lease in leases:
        lease._block.spec = lease._block.spec._replace(tokens=1)
    return leases


def forgets_the_first_only(self, real, keys, deadline):
    real(keys[:1], deadline)
    return len(keys)


def takes_the_leases(self, real, leases, after, deadline):
    publishing = real(leases, after, deadline)
    for lease in leases:
        lease.release()
    return publishing


def loses_what_does_not_fit(self, real, wanted, owner, deadline):
    leases = real(wanted, owner, deadline)
    if len(leases) < len(wanted):
        self.lost = [*getattr(self, "lost", ()), leases[-1]]
        return leases[:-1]
    return leases


def counts_pins_twice(self, real, owner, keys, seconds=None):
    real(owner, keys, seconds)
    return len(keys)


def allocates_what_fits_nowhere(self, real, wanted, owner, deadline):
    try:
        return real(wanted, owner, deadline)
    except InvalidRequest:
        return HeapHold([None] * len(wanted), [Reason.REFUSED] * len(wanted))


def brings_back_what_was_forgotten(self, real, blocks):
    real(blocks)
    self.bin = {}


def brings_back_what_was_forgotten_forget(self, real, keys, deadline):
    known = {key: self._chunks.get(key) for key in keys}
    count = real(keys, deadline)
    for key, kept in known.items():
        if kept is not None and key in self.bin:
            self._chunks[key] = kept
        self.bin[key] = True
    return count


def holds_in_order_of_keys(self, real, wanted, owner, deadline):
    return real(sorted(wanted, key=lambda spec: spec.key), owner, deadline)


def stops_at_the_first_gap(self, real, spec, owner):
    self.gap = getattr(self, "gap", False) or spec.key not in self._chunks
    return (None, Reason.ABSENT) if self.gap else real(spec, owner)


def holds_views_of_the_tier(self, real, keys, deadline):
    for block in self._blocks:
        if block.spec.key in keys:
            block.memory[:] = bytes(len(block.memory))
    return real(keys, deadline)


def keeps_what_an_error_left(self, real, wanted, owner, deadline):
    hold = real(wanted, owner, deadline)

    class Kept(HeapHold):
        def __exit__(self, kind, error, trace):
            if kind is None:
                self.release()

    return Kept(hold._leases, list(hold.reasons))


def shares_end_with_the_hold(self, real, wanted, owner, deadline):
    hold = real(wanted, owner, deadline)

    class Short(HeapHold):
        def release(self):
            for lease in self._leases:
                if lease is not None:
                    lease._block.memory[:] = bytes(len(lease._block.memory))
            self.release()

    return Short(hold._leases, list(hold.reasons))


def says_nothing_without_memory(self, real, spec, owner):
    lease, reason = real(spec, owner)
    return lease, None if reason is Reason.REFUSED else reason


def one_hold_for_all(self, real, wanted, owner, deadline):
    holds = self.__dict__.setdefault("holds", {})
    name = tuple(spec.key for spec in wanted)
    if name not in holds or not holds[name].leases:
        holds[name] = real(wanted, owner, deadline)
    return holds[name]


def takes_any_length(self, real, spec, owner):
    kept = self._chunks.get(spec.key)
    return real(spec if kept is None else kept[0], owner)


def loads_in_order_of_keys(self, real, wanted, device, deadline):
    return real(sorted(wanted, key=lambda spec: spec.key), device, deadline)


def loads_past_gaps(self, real, wanted, device, deadline):
    got = real(wanted, device, deadline)
    there = [spec for spec in wanted if spec.key in self._chunks]
    rest = [spec for spec in wanted if spec.key not in self._chunks]
    real([*there, *rest], device, deadline)
    return got


def takes_any_window(self, wanted, device):
    self._check(wanted)
    while wanted and sum(spec.tokens for spec in wanted) > device.tokens:
        wanted.pop()
    return device.tokens


def keeps_its_first_end(self, real, owner, keys, seconds=None):
    first = self._ends.get(owner)
    count = real(owner, keys, seconds)
    if first is not None:
        self._ends[owner] = first
    return count


def ends_what_has_no_end(self, real, owner, keys, seconds=None):
    return real(owner, keys, 0.0 if seconds is None else seconds)


def holds_a_key_once(self, real, wanted, owner, deadline):
    hold = real(wanted, owner, deadline)
    seen = set()
    for place, chunk in enumerate(wanted):
        lease = hold._leases[place]
        if chunk.key in seen and lease is not None:
            lease.release()
            hold._leases[place], hold.reasons[place] = None, Reason.ABSENT
        seen.add(chunk.key)
    return hold


def unpins_by_beginnings(self, real, owner):
    return sum(real(one) for one in list(self._pins) if one.startswith(owner))


def forgets_pins_too(self, real, keys, deadline):
    self._pins.clear()
    return real(keys, deadline)


def wants_something_to_allocate(self, real, wanted, owner, deadline):
    if not wanted:
        raise InvalidRequest("nothing")
    return real(wanted, owner, deadline)


ROWS = {
    "holds.1 holds a key once": Wrong(
        "A key that is asked for twice is held once.", hold=holds_a_key_once
    ),
    "chunks.6 unpins by beginnings": Wrong(
        "The pins of every owner end whose name begins so.", unpin=unpins_by_beginnings
    ),
    "chunks.6 forgets pins too": Wrong("A forget ends all pins.", forget=forgets_pins_too),
    "chunks.1 wants something to allocate": Wrong(
        "Memory for no chunk is refused.", allocate=wants_something_to_allocate
    ),
    "chunks.11 pins for ever": Wrong(
        "A pin lasts until it is ended, whatever its seconds are.",
        pin=lambda self, real, owner, keys, seconds=None: real(owner, keys),
    ),
    "chunks.11 pins for milliseconds": Wrong(
        "The seconds of a pin are taken for milliseconds.",
        _end=staticmethod(lambda seconds: monotonic() + seconds / 1000),
    ),
    "chunks.11 pins for minutes": Wrong(
        "The seconds of a pin are taken for minutes.",
        _end=staticmethod(lambda seconds: monotonic() + seconds * 60),
    ),
    "chunks.11 keeps its first end": Wrong(
        "A renewed pin ends when the first one would have.", pin=keeps_its_first_end
    ),
    "chunks.11 ends what has no end": Wrong(
        "A pin without seconds ends at once.", pin=ends_what_has_no_end
    ),
    "chunks.1 answers out of order": Wrong(
        "Answers for the chunks that are there come first.", match=answers_out_of_order
    ),
    "chunks.2 forgets namespaces": Wrong("Digests alone are the keys.", match=forgets_namespaces),
    "chunks.3 names tiers that hold nothing": Wrong(
        "What was published is on a tier that answers for the first chunk only.",
        publish=names_tiers_that_hold_nothing,
    ),
    "chunks.4 leases say nothing": Wrong(
        "An allocated lease does not say what it is for.", allocate=leases_say_nothing
    ),
    "chunks.5 forgets the first only": Wrong(
        "Of several chunks it forgets one, and says all.", forget=forgets_the_first_only
    ),
    "chunks.3 takes the leases": Wrong(
        "What is published is released, too.", publish=takes_the_leases
    ),
    "chunks.10 loses what does not fit": Wrong(
        "Of an allocation in part one block is lost.", allocate=loses_what_does_not_fit
    ),
    "chunks.6 counts pins twice": Wrong("An absent chunk counts as pinned.", pin=counts_pins_twice),
    "chunks.7 allocates what fits nowhere": Wrong(
        "A chunk that is too large is a chunk without memory.", hold=allocates_what_fits_nowhere
    ),
    "chunks.8 answers after the end": Wrong(
        "Pins are ended also after it was closed.",
        unpin=lambda self, owner: len(self._pins.pop(owner, ())),
    ),
    "chunks.9 brings back what was forgotten": Wrong(
        "A chunk that is forgotten a second time is there again.",
        __init__=brings_back_what_was_forgotten,
        forget=brings_back_what_was_forgotten_forget,
    ),
    "holds.1 holds in order of keys": Wrong(
        "Chunks come sorted, whatever order they were asked for in.", hold=holds_in_order_of_keys
    ),
    "holds.2 stops at the first gap": Wrong(
        "What lies behind a missing chunk is missing, too.", _read=stops_at_the_first_gap
    ),
    "holds.3 holds views of the tier": Wrong(
        "A hold looks at the tier: what is forgotten there is zero here.",
        forget=holds_views_of_the_tier,
    ),
    "holds.4 keeps what an error left": Wrong(
        "A hold that is left by an error is not released.", hold=keeps_what_an_error_left
    ),
    "holds.5 shares end with the hold": Wrong(
        "The memory goes when the hold does.", hold=shares_end_with_the_hold
    ),
    "holds.6 says nothing without memory": Wrong(
        "A chunk that there is no memory for is missing without a reason.",
        _read=says_nothing_without_memory,
    ),
    "holds.7 one hold for all": Wrong(
        "Holds of one chunk are one hold: the first to go releases it.", hold=one_hold_for_all
    ),
    "holds.8 takes any length": Wrong(
        "A chunk of another length arrives as it is.", _read=takes_any_length
    ),
    "windows.1 loads in order of keys": Wrong(
        "A window is filled in the order of the keys.", load=loads_in_order_of_keys
    ),
    "windows.2 loads past gaps": Wrong(
        "A missing chunk is left out, and the next one takes its place.", load=loads_past_gaps
    ),
    "windows.3 takes any window": Wrong(
        "Chunks that the window has no positions for are left out.", _check_window=takes_any_window
    ),
}
globals().update(broken(__name__, HeapCacheContract, HeapChunkCache, ROWS))
