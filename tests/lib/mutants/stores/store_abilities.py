"""Stores whose optional abilities are not what they seem: scans, ranges, quarantine, leases."""

from __future__ import annotations

import time

from dict_store import CapableStore, DictContract
from hexkv.contracts.doubles import HeapBlock
from hexkv.ports import PAGE, Entry, Hit
from mutants.rows import Wrong, broken


def scan_remembers_the_first_size(self, real, medium):
    real(medium)
    self.sizes = {}


def scan_remembers_the_first_size_publish(self, real, name, frame):
    real(name, frame)
    self.sizes.setdefault(name, len(frame))


def scan_remembers_the_first_size_scan(self, real):
    for entry in real():
        yield entry._replace(size=self.sizes.get(entry.key, entry.size))


def scan_tells_another_time(self, real):
    for entry in real():
        yield entry._replace(stored=time.monotonic())


def scan_stumbles(self):
    for key, frame in self.medium.items():
        yield Entry(key, len(frame), time.time())


def quarantines_for_good(self, real, keys, deadline):
    real(keys, deadline)
    self.banned = {*getattr(self, "banned", ()), *keys}


def quarantine_wants_a_chunk(self, keys, deadline):
    self.aside = {key: self.medium.pop(key) for key in keys}


def range_pads_the_end(self, real, key, start, into, deadline):
    found = (self.fetch(key) or b"")[start : start + len(into)]
    into[: len(found)] = found
    return Hit(len(into)) if self.has(key) else real(key, 0, into, deadline)


def range_of_nothing_is_empty(self, real, key, start, into, deadline):
    if not self.has(key):
        into[:] = bytes(len(into))
        return Hit(len(into))
    return real(key, start, into, deadline)


def keeps_out_of_sight(self, keys, leases):
    for key, lease in zip(keys, leases, strict=True):
        self.let_go(key)
        self.leases[key] = lease


def takes_back_what_it_lent(self, real, keys, owner):
    leases = real(keys, owner)
    self.lent = [lease for lease in leases if lease is not None]
    return leases


def takes_back_what_it_lent_let_go(self, real, key):
    for lease in getattr(self, "lent", ()):
        lease.release()
    return real(key)


def keeps_what_was_replaced(self, real, keys, leases):
    for key in keys:
        self.leases.pop(key, None)
    real(keys, leases)


def lends_a_part_of_what_was_written(self, real, keys, owner):
    found = zip(keys, real(keys, owner), strict=True)
    return [
        HeapBlock(self.medium[key][:PAGE]).lease(owner)
        if lease is None and key in self.medium
        else lease
        for key, lease in found
    ]


def evicts_to_its_limit(self, real, size):
    real(size)
    while self.medium and self.used_bytes() > size:
        self.medium.pop(next(iter(self.medium)))


def limits_the_next_bytes(self, real, size):
    real(self.used_bytes() + size)


def remembers_misses(self, real, key):
    if key in self.absent or not real(key):
        self.absent.add(key)
        return False
    return True


def remembers_misses_publish(self, real, name, frame):
    self.absent.discard(name)
    real(name, frame)


ROWS = {
    "quarantine.1 sets the first aside": Wrong(
        "Of several chunks the first is set aside.",
        quarantine=lambda self, real, keys, deadline: real(keys[:1], deadline),
    ),
    "limit.1 counts in kibibytes": Wrong(
        "A limit of bytes is taken for one of KiB.",
        limit=lambda self, size: setattr(self, "most", size * 1024),
    ),
    "sharing.3 remembers misses": Wrong(
        "A chunk that was absent once is until it is written as bytes.",
        __init__=lambda self, real, medium: (real(medium), setattr(self, "absent", set()))[0],
        has=remembers_misses,
        publish=remembers_misses_publish,
    ),
    "scan.2 scan remembers the first size": Wrong(
        "A chunk is listed with the size that it had when it was new.",
        __init__=scan_remembers_the_first_size,
        publish=scan_remembers_the_first_size_publish,
        scan=scan_remembers_the_first_size_scan,
    ),
    "scan.3 scan tells another time": Wrong(
        "The time is of a clock that starts with the machine.", scan=scan_tells_another_time
    ),
    "scan.4 scan stumbles": Wrong(
        "A scan walks over the index itself, which changes meanwhile.", scan=scan_stumbles
    ),
    "quarantine.2 quarantines for good": Wrong(
        "A key that was set aside once stays unreadable.",
        quarantine=quarantines_for_good,
        fetch=lambda self, real, key: None if key in getattr(self, "banned", ()) else real(key),
    ),
    "quarantine.3 quarantine wants a chunk": Wrong(
        "What is to be set aside must be there.", quarantine=quarantine_wants_a_chunk
    ),
    "range.2 range pads the end": Wrong(
        "What a frame does not have is left as it was, and counts as read.",
        read_range=range_pads_the_end,
    ),
    "range.3 range of nothing is empty": Wrong(
        "A chunk that is not there has as many bytes as are asked for.",
        read_range=range_of_nothing_is_empty,
    ),
    "limit.1 evicts to its limit": Wrong(
        "Chunks beyond the limit are dropped.", limit=evicts_to_its_limit
    ),
    "limit.1 limits what comes next": Wrong(
        "The limit counts the bytes that are written after it.", limit=limits_the_next_bytes
    ),
    "limit.1 never grows": Wrong(
        "A limit is a minimum of all limits.",
        limit=lambda self, size: setattr(self, "most", min(size, self.most or size)),
    ),
    "sharing.3 keeps out of sight": Wrong(
        "What is kept as a lease is lent, and neither read nor listed.",
        put_lease=keeps_out_of_sight,
    ),
    "sharing.4 lends the deleted": Wrong(
        "A delete looks at frames, not at leases.",
        forget=lambda self, key: self.medium.pop(key, None) is not None,
    ),
    "sharing.5 takes back what it lent": Wrong(
        "A delete ends the borrowers' leases as well.",
        get_lease=takes_back_what_it_lent,
        let_go=takes_back_what_it_lent_let_go,
    ),
    "sharing.6 lends its own lease": Wrong(
        "Every borrower of a chunk gets the same lease: the store's.",
        get_lease=lambda self, keys, owner: [self.leases.get(key) for key in keys],
    ),
    "sharing.7 keeps what was replaced": Wrong(
        "The lease on a block that another has replaced is forgotten, not released.",
        put_lease=keeps_what_was_replaced,
    ),
    "sharing.8 lends a part of what was written": Wrong(
        "What was written as bytes is lent as a page.", get_lease=lends_a_part_of_what_was_written
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, ROWS))
