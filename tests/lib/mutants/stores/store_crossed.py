"""Stores whose abilities do not know of each other."""

from __future__ import annotations

import re

from dict_store import CapableStore, DictContract, DictStore, WholeContract
from hexkv.contracts.doubles import HeapBlock
from hexkv.ports import PAGE, Hit, Miss, Reason
from mutants.rows import Wrong, broken


def range_reads_the_quarantined(self, real, key, start, into, deadline):
    if key in self.aside:
        into[:] = self.aside[key][start : start + len(into)]
        return Hit(len(into))
    return real(key, start, into, deadline)


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


def range_reads_the_cleared(self, real, name, frame):
    real(name, frame)
    self.opened[name] = frame


def range_reads_the_cleared_clear_prefix(self, prefix, deadline):
    return sum(CapableStore.forget(self, key) for key in self.starting(prefix))


def ranges_begin_within64_ki_b(self, real, key, start, into, deadline):
    return real(key, start & 0xFFFF, into, deadline)


def ranges_begin_within_a_mebibyte(self, real, key, start, into, deadline):
    frame = self.fetch(key) or b""
    if start + len(into) <= len(frame):
        start %= 1 << 20
    return real(key, start, into, deadline)


def ranges_begin_within4_gi_b(self, real, key, start, into, deadline):
    return real(key, start & 0xFFFF_FFFF, into, deadline)


class Log(CapableStore):
    """Frames are parts of one file, each behind the one written before."""

    def read_range(self, key, start, into, deadline):
        if key not in self.medium:
            return Miss()
        frames = list(self.medium.items())
        at = [name for name, _ in frames].index(key)
        rest = b"".join(bytes(frame) for _, frame in frames[at:])
        found = rest[start : start + len(into)]
        into[: len(found)] = found
        return Hit(len(into)) if len(found) == len(into) else Miss()


class TestRangeReadsTheNextFrame(DictContract):
    """A range that goes beyond the end of a frame goes on in the one behind it."""

    breaks = "range.2"
    Make = Log


def reads_nothing_of_nothing(self, real, key, start, into, deadline):
    return real(key, start, into, deadline) if len(into) else Hit(0)


def takes_back_for_a_quarantine(self, real, keys, deadline):
    for key in keys:
        for lease in self.lent.pop(key, ()):
            lease.release()
    real(keys, deadline)


def takes_back_for_a_clear(self, real, prefix, deadline):
    for key in self.starting(prefix):
        for lease in self.lent.pop(key, ()):
            lease.release()
    return real(prefix, deadline)


class RemembersLoans(CapableStore):
    """A store that knows what it has lent."""

    def __init__(self, medium):
        super().__init__(medium)
        self.lent = {}

    def get_lease(self, keys, owner):
        leases = super().get_lease(keys, owner)
        for key, lease in zip(keys, leases, strict=True):
            if lease is not None:
                self.lent.setdefault(key, []).append(lease)
        return leases


class Slots(DictStore):
    """A store with a table of slots, which are used again."""

    def __init__(self, medium):
        super().__init__(medium)
        self.slots, self.free, self.place = [], [], {}

    def publish(self, name, frame):
        super().publish(name, frame)
        if name not in self.place:
            if not self.free:
                self.free.append(len(self.slots))
                self.slots.append(b"")
            self.place[name] = self.free.pop()
        self.slots[self.place[name]] = frame

    def forget(self, key):
        place = self.place.pop(self.name(key), None)
        if place is not None:
            self.free.append(place)
        return super().forget(key)

    def read_one(self, index, key, sink, deadline):
        place, frame = self.place.get(self.name(key)), self.fetch(key)
        if place is None or frame is None:
            return super().read_one(index, key, sink, deadline)
        room = sink.room(index, len(frame))
        if room is None:
            return Miss(Reason.REFUSED)
        now = self.slots[place]
        room[:] = now if len(now) == len(frame) else frame
        return Hit(len(frame))


class TestCopiesFromAReusedSlot(DictContract):
    """A chunk is looked up, and its slot copied, with a wait for the buffer in between."""

    breaks = "L3.1"
    Make = Slots


def folds_patterns(self, real, key):
    found = real(key)
    if found is not None:
        return found
    pattern = re.escape(key.decode("latin-1")).replace("%", ".*").replace("_", ".")
    names = (
        name for name in self.medium if re.fullmatch(pattern, name.decode("latin-1"), re.DOTALL)
    )
    return next((self.medium[name] for name in names), None)


def lends_the_quarantined(self, keys, deadline):
    for key in keys:
        self.medium.pop(key, None)


def lends_the_cleared(self, prefix, deadline):
    return sum(DictStore.forget(self, key) for key in self.starting(prefix))


def overwrites_what_it_lent(self, real, name, frame):
    lease = self.leases.get(name)
    if lease is None or len(lease.frame) != len(frame):
        real(name, frame)
    else:
        lease.frame[:] = frame
        self.medium[name] = frame


def keeps_once_closed(self, real, keys, leases):
    if self.closed:
        shares = [lease.share("store") for lease in leases]
        self.leases.update(zip(keys, shares, strict=True))
    else:
        real(keys, leases)


def lends_once_closed(self, real, keys, owner):
    if not self.closed:
        return real(keys, owner)
    return [HeapBlock(bytes(2 * PAGE)).lease(owner) for _ in keys]


def reads_ranges_once_closed(self, real, key, start, into, deadline):
    if not self.closed:
        return real(key, start, into, deadline)
    into[:] = self.medium[key][start : start + len(into)]
    return Hit(len(into))


def lists_once_closed(self, real):
    if self.closed:
        raise ValueError("I/O operation on closed file")
    return real()


def clears_once_closed(self, prefix, deadline):
    return sum(self.medium.pop(key) is not None for key in self.starting(prefix))


def quarantine_fills_up(self, real, keys, deadline):
    kept = self.aside
    real(keys, deadline)
    self.aside = kept | self.aside


DICT_CONTRACT = {
    "range.3 range reads the quarantined": Wrong(
        "What was set aside can still be read in parts.", read_range=range_reads_the_quarantined
    ),
    "range.1 ranges begin within64 ki b": Wrong(
        "Where a range begins is sent in 16 bits.", read_range=ranges_begin_within64_ki_b
    ),
    "range.1 ranges begin within a mebibyte": Wrong(
        "Frames are kept in parts of 1 MiB, and a range is read from the first.",
        read_range=ranges_begin_within_a_mebibyte,
    ),
    "range.2 ranges begin within4 gi b": Wrong(
        "Where a range begins is handed to C as an int.", read_range=ranges_begin_within4_gi_b
    ),
    "range.3 reads nothing of nothing": Wrong(
        "A range of no bytes is there.", read_range=reads_nothing_of_nothing
    ),
    "sharing.4 lends the quarantined": Wrong(
        "A quarantine looks at frames, not at leases.", quarantine=lends_the_quarantined
    ),
    "sharing.4 lends the cleared": Wrong("So does a clear.", clear_prefix=lends_the_cleared),
    "sharing.5 overwrites what it lent": Wrong(
        "A frame that is as long as the old one is written into the same memory.",
        publish=overwrites_what_it_lent,
    ),
    "L0.6 keeps once closed": Wrong(
        "Nobody will ever release what is kept then.", put_lease=keeps_once_closed
    ),
    "L0.6 lends once closed": Wrong(
        "What it had is lent on from a copy that nobody closed.", get_lease=lends_once_closed
    ),
    "L0.6 reads ranges once closed": Wrong(
        "Only whole chunks are refused.", read_range=reads_ranges_once_closed
    ),
    "L0.6 lists once closed": Wrong(
        "What close() took away is missed by a scan.", scan=lists_once_closed
    ),
    "L0.6 clears once closed": Wrong(
        "A clear needs no more than the medium.", clear_prefix=clears_once_closed
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, DICT_CONTRACT))


REMEMBERS_LOANS = {
    "sharing.5 takes back for a quarantine": Wrong(
        "A quarantine ends the leases of borrowers.", quarantine=takes_back_for_a_quarantine
    ),
    "sharing.5 takes back for a clear": Wrong(
        "A clear ends the leases of borrowers.", clear_prefix=takes_back_for_a_clear
    ),
}
globals().update(broken(__name__, DictContract, RemembersLoans, REMEMBERS_LOANS))


PATTERNS = {
    "L1.23 looks keys up by patterns": Wrong("A key is compared by ``LIKE``.", fetch=folds_patterns)
}
globals().update(broken(__name__, DictContract, DictStore, PATTERNS))


REMEMBERS_FOR_RANGES = {
    "range.3 range reads the cleared": Wrong(
        "A clear does not know what is open for ranges.",
        publish=range_reads_the_cleared,
        clear_prefix=range_reads_the_cleared_clear_prefix,
    ),
}
globals().update(broken(__name__, DictContract, RemembersForRanges, REMEMBERS_FOR_RANGES))


WHOLE_CONTRACT = {
    "quarantine.4 quarantine fills up": Wrong(
        "Everything that was ever set aside is kept.", quarantine=quarantine_fills_up
    ),
}
globals().update(broken(__name__, WholeContract, CapableStore, WHOLE_CONTRACT))
