"""Stores whose optional abilities are not what they seem: scans, ranges, quarantine, leases."""

from __future__ import annotations

import time

from dict_store import CapableStore, DictContract
from hexkv.contracts.doubles import HeapBlock
from hexkv.ports import PAGE, Entry, Hit


class TestScanRemembersTheFirstSize(DictContract):
    """A chunk is listed with the size that it had when it was new."""

    breaks = "scan.2"

    class Make(CapableStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.sizes = {}

        def publish(self, name, frame):
            super().publish(name, frame)
            self.sizes.setdefault(name, len(frame))

        def scan(self):
            for entry in super().scan():
                yield entry._replace(size=self.sizes.get(entry.key, entry.size))


class TestScanTellsAnotherTime(DictContract):
    """The time is of a clock that starts with the machine."""

    breaks = "scan.3"

    class Make(CapableStore):
        def scan(self):
            for entry in super().scan():
                yield entry._replace(stored=time.monotonic())


class TestScanStumbles(DictContract):
    """A scan walks over the index itself, which changes meanwhile."""

    breaks = "scan.4"

    class Make(CapableStore):
        def scan(self):
            for key, frame in self.medium.items():
                yield Entry(key, len(frame), time.time())


class TestQuarantinesForGood(DictContract):
    """A key that was set aside once stays unreadable."""

    breaks = "quarantine.2"

    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            super().quarantine(keys, deadline)
            self.banned = {*getattr(self, "banned", ()), *keys}

        def fetch(self, key):
            return None if key in getattr(self, "banned", ()) else super().fetch(key)


class TestQuarantineWantsAChunk(DictContract):
    """What is to be set aside must be there."""

    breaks = "quarantine.3"

    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            self.aside = {key: self.medium.pop(key) for key in keys}


class TestRangePadsTheEnd(DictContract):
    """What a frame does not have is left as it was, and counts as read."""

    breaks = "range.2"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            found = (self.fetch(key) or b"")[start : start + len(into)]
            into[: len(found)] = found
            return Hit(len(into)) if self.has(key) else super().read_range(key, 0, into, deadline)


class TestRangeOfNothingIsEmpty(DictContract):
    """A chunk that is not there has as many bytes as are asked for."""

    breaks = "range.3"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            if not self.has(key):
                into[:] = bytes(len(into))
                return Hit(len(into))
            return super().read_range(key, start, into, deadline)


class TestKeepsOutOfSight(DictContract):
    """What is kept as a lease is lent, and neither read nor listed."""

    breaks = "sharing.3"

    class Make(CapableStore):
        def put_lease(self, keys, leases):
            for key, lease in zip(keys, leases, strict=True):
                self.let_go(key)
                self.leases[key] = lease


class TestLendsTheDeleted(DictContract):
    """A delete looks at frames, not at leases."""

    breaks = "sharing.4"

    class Make(CapableStore):
        def forget(self, key):
            return self.medium.pop(key, None) is not None


class TestTakesBackWhatItLent(DictContract):
    """A delete ends the borrowers' leases as well."""

    breaks = "sharing.5"

    class Make(CapableStore):
        def get_lease(self, keys, owner):
            leases = super().get_lease(keys, owner)
            self.lent = [lease for lease in leases if lease is not None]
            return leases

        def let_go(self, key):
            for lease in getattr(self, "lent", ()):
                lease.release()
            return super().let_go(key)


class TestLendsItsOwnLease(DictContract):
    """Every borrower of a chunk gets the same lease: the store's."""

    breaks = "sharing.6"

    class Make(CapableStore):
        def get_lease(self, keys, owner):
            return [self.leases.get(key) for key in keys]


class TestKeepsWhatWasReplaced(DictContract):
    """The lease on a block that another has replaced is forgotten, not released."""

    breaks = "sharing.7"

    class Make(CapableStore):
        def put_lease(self, keys, leases):
            for key in keys:
                self.leases.pop(key, None)
            super().put_lease(keys, leases)


class TestLendsAPartOfWhatWasWritten(DictContract):
    """What was written as bytes is lent as a page."""

    breaks = "sharing.8"

    class Make(CapableStore):
        def get_lease(self, keys, owner):
            found = zip(keys, super().get_lease(keys, owner), strict=True)
            return [
                HeapBlock(self.medium[key][:PAGE]).lease(owner)
                if lease is None and key in self.medium
                else lease
                for key, lease in found
            ]
