"""Keyed caches that mix chunks up, lose them, or keep what they lent."""

from __future__ import annotations

import pytest

from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache._base import soon, spec
from hexkv.contracts.chunk_cache.double import HeapChunkCache, HeapHold
from hexkv.ports import InvalidRequest, Reason

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


class TestAnswersOutOfOrder(HeapCacheContract):
    """Answers for the chunks that are there come first."""

    breaks = "chunks.1"

    class Make(HeapChunkCache):
        def match(self, keys, deadline):
            return sorted(super().match(keys, deadline), key=lambda tier: tier is None)


class TestForgetsNamespaces(HeapCacheContract):
    """Digests alone are the keys."""

    breaks = "chunks.2"

    class Make(HeapChunkCache):
        def match(self, keys, deadline):
            known = {key[16:] for key in self._chunks}
            self._check()
            return ["heap" if key[16:] in known else None for key in keys]


class TestNamesTiersThatHoldNothing(HeapCacheContract):
    """What was published is on a tier that answers for the first chunk only."""

    breaks = "chunks.3"

    class Make(HeapChunkCache):
        def publish(self, leases, after, deadline):
            publishing = super().publish(leases, after, deadline)
            publishing.tiers = {"heap": [True] * min(1, len(leases))}
            return publishing


class TestLeasesSayNothing(HeapCacheContract):
    """An allocated lease does not say what it is for."""

    breaks = "chunks.4"

    class Make(HeapChunkCache):
        def allocate(self, wanted, owner, deadline):
            leases = super().allocate(wanted, owner, deadline)
            for lease in leases:
                lease._block.spec = lease._block.spec._replace(tokens=1)
            return leases


class TestForgetsTheFirstOnly(HeapCacheContract):
    """Of several chunks it forgets one, and says all."""

    breaks = "chunks.5"

    class Make(HeapChunkCache):
        def forget(self, keys, deadline):
            super().forget(keys[:1], deadline)
            return len(keys)


class TestCountsPinsTwice(HeapCacheContract):
    """An absent chunk counts as pinned."""

    breaks = "chunks.6"

    class Make(HeapChunkCache):
        def pin(self, owner, keys, seconds=None):
            super().pin(owner, keys, seconds)
            return len(keys)


class TestAllocatesWhatFitsNowhere(HeapCacheContract):
    """A chunk that is too large is a chunk without memory."""

    breaks = "chunks.7"

    class Make(HeapChunkCache):
        def hold(self, wanted, owner, deadline):
            try:
                return super().hold(wanted, owner, deadline)
            except InvalidRequest:
                return HeapHold([None] * len(wanted), [Reason.REFUSED] * len(wanted))


class TestAnswersAfterTheEnd(HeapCacheContract):
    """Pins are ended also after it was closed."""

    breaks = "chunks.8"

    class Make(HeapChunkCache):
        def unpin(self, owner):
            return len(self._pins.pop(owner, ()))


class TestBringsBackWhatWasForgotten(HeapCacheContract):
    """A chunk that is forgotten a second time is there again."""

    breaks = "chunks.9"

    class Make(HeapChunkCache):
        def __init__(self, blocks):
            super().__init__(blocks)
            self.bin = {}

        def forget(self, keys, deadline):
            known = {key: self._chunks.get(key) for key in keys}
            count = super().forget(keys, deadline)
            for key, kept in known.items():
                if kept is not None and key in self.bin:
                    self._chunks[key] = kept
                self.bin[key] = True
            return count


class TestHoldsInOrderOfKeys(HeapCacheContract):
    """Chunks come sorted, whatever order they were asked for in."""

    breaks = "holds.1"

    class Make(HeapChunkCache):
        def hold(self, wanted, owner, deadline):
            return super().hold(sorted(wanted, key=lambda spec: spec.key), owner, deadline)


class TestStopsAtTheFirstGap(HeapCacheContract):
    """What lies behind a missing chunk is missing, too."""

    breaks = "holds.2"

    class Make(HeapChunkCache):
        def _read(self, spec, owner):
            self.gap = getattr(self, "gap", False) or spec.key not in self._chunks
            return (None, Reason.ABSENT) if self.gap else super()._read(spec, owner)


class TestHoldsViewsOfTheTier(HeapCacheContract):
    """A hold looks at the tier: what is forgotten there is zero here."""

    breaks = "holds.3"

    class Make(HeapChunkCache):
        def forget(self, keys, deadline):
            for block in self._blocks:
                if block.spec.key in keys:
                    block.memory[:] = bytes(len(block.memory))
            return super().forget(keys, deadline)


class TestKeepsWhatAnErrorLeft(HeapCacheContract):
    """A hold that is left by an error is not released."""

    breaks = "holds.4"

    class Make(HeapChunkCache):
        def hold(self, wanted, owner, deadline):
            hold = super().hold(wanted, owner, deadline)

            class Kept(HeapHold):
                def __exit__(self, kind, error, trace):
                    if kind is None:
                        self.release()

            return Kept(hold._leases, list(hold.reasons))


class TestSharesEndWithTheHold(HeapCacheContract):
    """The memory goes when the hold does."""

    breaks = "holds.5"

    class Make(HeapChunkCache):
        def hold(self, wanted, owner, deadline):
            hold = super().hold(wanted, owner, deadline)

            class Short(HeapHold):
                def release(self):
                    for lease in self._leases:
                        if lease is not None:
                            lease._block.memory[:] = bytes(len(lease._block.memory))
                    super().release()

            return Short(hold._leases, list(hold.reasons))


class TestSaysNothingWithoutMemory(HeapCacheContract):
    """A chunk that there is no memory for is missing without a reason."""

    breaks = "holds.6"

    class Make(HeapChunkCache):
        def _read(self, spec, owner):
            lease, reason = super()._read(spec, owner)
            return lease, None if reason is Reason.REFUSED else reason


class TestOneHoldForAll(HeapCacheContract):
    """Holds of one chunk are one hold: the first to go releases it."""

    breaks = "holds.7"

    class Make(HeapChunkCache):
        def hold(self, wanted, owner, deadline):
            holds = self.__dict__.setdefault("holds", {})
            name = tuple(spec.key for spec in wanted)
            if name not in holds or not holds[name].leases:
                holds[name] = super().hold(wanted, owner, deadline)
            return holds[name]


class TestTakesAnyLength(HeapCacheContract):
    """A chunk of another length arrives as it is."""

    breaks = "holds.8"

    class Make(HeapChunkCache):
        def _read(self, spec, owner):
            kept = self._chunks.get(spec.key)
            return super()._read(spec if kept is None else kept[0], owner)


class TestLoadsInOrderOfKeys(HeapCacheContract):
    """A window is filled in the order of the keys."""

    breaks = "windows.1"

    class Make(HeapChunkCache):
        def load(self, wanted, device, deadline):
            return super().load(sorted(wanted, key=lambda spec: spec.key), device, deadline)


class TestLoadsPastGaps(HeapCacheContract):
    """A missing chunk is left out, and the next one takes its place."""

    breaks = "windows.2"

    class Make(HeapChunkCache):
        def load(self, wanted, device, deadline):
            got = super().load(wanted, device, deadline)
            there = [spec for spec in wanted if spec.key in self._chunks]
            rest = [spec for spec in wanted if spec.key not in self._chunks]
            super().load([*there, *rest], device, deadline)
            return got


class TestTakesAnyWindow(HeapCacheContract):
    """Chunks that the window has no positions for are left out."""

    breaks = "windows.3"

    class Make(HeapChunkCache):
        def _check_window(self, wanted, device):
            self._check(wanted)
            while wanted and sum(spec.tokens for spec in wanted) > device.tokens:
                wanted.pop()
            return device.tokens
