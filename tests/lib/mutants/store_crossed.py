"""Stores whose abilities do not know of each other."""

from __future__ import annotations

from dict_store import CapableStore, DictContract, DictStore, WholeContract
from hexkv.contracts.doubles import HeapBlock
from hexkv.ports import PAGE, Hit


class TestRangeReadsTheQuarantined(DictContract):
    """What was set aside can still be read in parts."""

    breaks = "range.3"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            if key in self.aside:
                into[:] = self.aside[key][start : start + len(into)]
                return Hit(len(into))
            return super().read_range(key, start, into, deadline)


class RemembersForRanges(CapableStore):
    """What is read in parts is kept open, as it was when it was written."""

    def __init__(self, medium):
        super().__init__(medium)
        self.opened = {}

    def publish(self, name, frame):
        super().publish(name, frame)
        self.opened.setdefault(name, frame)

    def forget(self, key):
        self.opened.pop(key, None)
        return super().forget(key)

    def quarantine(self, keys, deadline):
        super().quarantine(keys, deadline)
        for key in keys:
            self.opened.pop(key, None)

    def read_range(self, key, start, into, deadline):
        found = self.opened.get(key)
        if found is None or start + len(into) > len(found):
            return super().read_range(key, start, into, deadline)
        into[:] = found[start : start + len(into)]
        return Hit(len(into))


class TestRangeReadsTheReplaced(DictContract):
    """A file that is open for ranges is the old one after another took its place."""

    breaks = "range.1"
    Make = RemembersForRanges


class TestRangeReadsTheCleared(DictContract):
    """A clear does not know what is open for ranges."""

    breaks = "range.3"

    class Make(RemembersForRanges):
        def publish(self, name, frame):
            super().publish(name, frame)
            self.opened[name] = frame

        def clear_prefix(self, prefix, deadline):
            return sum(CapableStore.forget(self, key) for key in self.starting(prefix))


class TestRangesBeginWithin64KiB(DictContract):
    """Where a range begins is sent in 16 bits."""

    breaks = "range.1"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            return super().read_range(key, start & 0xFFFF, into, deadline)


class TestRangesBeginWithinAMebibyte(DictContract):
    """Frames are kept in parts of 1 MiB, and a range is read from the first."""

    breaks = "range.1"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            frame = self.fetch(key) or b""
            if start + len(into) <= len(frame):
                start %= 1 << 20
            return super().read_range(key, start, into, deadline)


class TestRangesBeginWithin4GiB(DictContract):
    """Where a range begins is handed to C as an int."""

    breaks = "range.2"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            return super().read_range(key, start & 0xFFFF_FFFF, into, deadline)


class TestLendsTheQuarantined(DictContract):
    """A quarantine looks at frames, not at leases."""

    breaks = "sharing.4"

    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            for key in keys:
                self.medium.pop(key, None)


class TestLendsTheCleared(DictContract):
    """So does a clear."""

    breaks = "sharing.4"

    class Make(CapableStore):
        def clear_prefix(self, prefix, deadline):
            return sum(DictStore.forget(self, key) for key in self.starting(prefix))


class TestOverwritesWhatItLent(DictContract):
    """A frame that is as long as the old one is written into the same memory."""

    breaks = "sharing.5"

    class Make(CapableStore):
        def publish(self, name, frame):
            lease = self.leases.get(name)
            if lease is None or len(lease.frame) != len(frame):
                super().publish(name, frame)
            else:
                lease.frame[:] = frame
                self.medium[name] = frame


class TestKeepsOnceClosed(DictContract):
    """Nobody will ever release what is kept then."""

    breaks = "L0.6"

    class Make(CapableStore):
        def put_lease(self, keys, leases):
            if self.closed:
                shares = [lease.share("store") for lease in leases]
                self.leases.update(zip(keys, shares, strict=True))
            else:
                super().put_lease(keys, leases)


class TestLendsOnceClosed(DictContract):
    """What it had is lent on from a copy that nobody closed."""

    breaks = "L0.6"

    class Make(CapableStore):
        def get_lease(self, keys, owner):
            if not self.closed:
                return super().get_lease(keys, owner)
            return [HeapBlock(bytes(2 * PAGE)).lease(owner) for _ in keys]


class TestReadsRangesOnceClosed(DictContract):
    """Only whole chunks are refused."""

    breaks = "L0.6"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            if not self.closed:
                return super().read_range(key, start, into, deadline)
            into[:] = self.medium[key][start : start + len(into)]
            return Hit(len(into))


class TestListsOnceClosed(DictContract):
    """What close() took away is missed by a scan."""

    breaks = "L0.6"

    class Make(CapableStore):
        def scan(self):
            if self.closed:
                raise ValueError("I/O operation on closed file")
            return super().scan()


class TestClearsOnceClosed(DictContract):
    """A clear needs no more than the medium."""

    breaks = "L0.6"

    class Make(CapableStore):
        def clear_prefix(self, prefix, deadline):
            return sum(self.medium.pop(key) is not None for key in self.starting(prefix))


class TestQuarantineFillsUp(WholeContract):
    """Everything that was ever set aside is kept."""

    breaks = "quarantine.4"

    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            kept = self.aside
            super().quarantine(keys, deadline)
            self.aside = kept | self.aside
