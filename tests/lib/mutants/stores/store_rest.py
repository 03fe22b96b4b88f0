"""Stores that break at the edges: closing, damage, threads, and what they need not offer."""

from __future__ import annotations

import time

from dict_store import CapableStore, DictContract, DictStore, PersistentContract, ScanningStore
from hexkv.contracts.doubles import HeapBlock, ManualClock
from hexkv.contracts.doubles.own_memory import OwnMemoryStore
from hexkv.ports import Entry
from mutants.meetings import HalfDone
from mutants.rows import Wrong, broken


class InTwoSteps(DictStore):
    """A frame is published in two steps, and somebody looks in between."""

    def __init__(self, medium):
        super().__init__(medium)
        self.half_done = HalfDone()

    def begin(self, name, frame):
        raise NotImplementedError

    def publish(self, name, frame):
        self.begin(name, frame)
        self.half_done.show()
        super().publish(name, frame)

    def fetch(self, key):
        self.half_done.find()
        found = super().fetch(key)
        self.half_done.seen()
        return found


def tears_under_threads(self, name, frame):
    self.medium[name] = frame[:16] + self.medium.get(name, b"")[16:]


def publishes_before_writing(self, name, frame):
    self.medium[name] = bytes(len(frame))


def leaves_a_gap_while_overwriting(self, name, frame):
    self.medium.pop(name, None)


def close_raises_the_second_time(self, real):
    self._check()
    real()


def crashes_once_closed_close(self):
    self.closed = True
    self.medium = None


def mends_damage(self, real, medium):
    real(medium)
    self.good = {}


def mends_damage_publish(self, real, name, frame):
    real(name, frame)
    self.good[name] = frame


def mends_damage_fetch(self, real, key):
    frame = real(key)
    return frame if frame is None else self.good.get(key, frame)


def falls_over_damage(self, real, medium):
    real(medium)
    self.sizes = {}


def falls_over_damage_publish(self, real, name, frame):
    real(name, frame)
    self.sizes[name] = len(frame)


def falls_over_damage_fetch(self, real, key):
    frame = real(key)
    if frame is not None and len(frame) < self.sizes.get(key, 0):
        raise IndexError("the frame is shorter than it was")
    return frame


def scan_forgets_one(self, real):
    yield from list(real())[1:]


def scan_lists_strangers(self, real):
    yield from real()
    if self.medium:
        yield Entry(b"temporary", 0, time.time())


def misspells_an_ability(self, keys, leases): ...


def quarantine_keeps_reading(self, keys, deadline):
    self.aside = {key: self.medium.get(key) for key in keys}


def leaks_a_lease(self):
    self.closed = True


def lends_a_copy(self, keys, owner):
    frames = [self.fetch(key) for key in keys]
    return [f if f is None else HeapBlock(f).lease(owner) for f in frames]


def copies_each_loan_get_lease(self, real, keys, owner):
    return [lease and self.copy(lease, owner) for lease in real(keys, owner)]


def copies_each_loan_copy(self, lease, owner):
    with lease:
        return HeapBlock(bytes(lease.frame), lease.spec).lease(owner)


def forgets_the_lease_it_was_given(self, real, keys, leases):
    real(keys, [lease.share(lease.owner) for lease in leases])
    self.forgotten = [*getattr(self, "forgotten", ()), *leases]


def reopens_empty_frames(self, real):
    real()
    for key in self.medium:
        self.medium[key] = b""


def resurrects(self, real, medium):
    real(medium)
    self.deleted = {}


def resurrects_forget(self, real, key):
    self.deleted[key] = self.medium.get(key)
    return real(key)


def resurrects_close(self, real):
    real()
    self.medium.update(self.deleted)


IN_TWO_STEPS = {
    "L3.1 tears under threads": Wrong(
        "The new frame is published in two steps: new head and old tail, then all of it.",
        begin=tears_under_threads,
    ),
    "L3.1 publishes before writing": Wrong(
        "Room is made under the key, and then the bytes are written to it.",
        begin=publishes_before_writing,
    ),
    "L3.1 leaves a gap while overwriting": Wrong(
        "The old frame is deleted before the new one is written.",
        begin=leaves_a_gap_while_overwriting,
    ),
}
globals().update(broken(__name__, DictContract, InTwoSteps, IN_TWO_STEPS))


DICT_STORE = {
    "L0.5 close raises the second time": Wrong(
        "The second close uses what the first one has thrown away.",
        close=close_raises_the_second_time,
    ),
    "L0.6 crashes once closed": Wrong(
        "Uses what close() has thrown away.",
        _check=lambda self: None,
        close=crashes_once_closed_close,
    ),
    "L2.3 mends damage": Wrong(
        "A frame that looks damaged is replaced by the last good one that was seen.",
        __init__=mends_damage,
        publish=mends_damage_publish,
        fetch=mends_damage_fetch,
    ),
    "L2.1 falls over damage": Wrong(
        "Trusts the length that it remembers.",
        __init__=falls_over_damage,
        publish=falls_over_damage_publish,
        fetch=falls_over_damage_fetch,
    ),
    "L0.2 misspells an ability": Wrong(
        "One method of an ability is there, the other is spelt in another way.",
        put_lease=misspells_an_ability,
    ),
}
globals().update(broken(__name__, DictContract, DictStore, DICT_STORE))


SCANNING_STORE = {
    "scan.1 scan forgets one": Wrong("A scan leaves the first chunk out.", scan=scan_forgets_one),
    "scan.1 scan lists strangers": Wrong(
        "A temporary file is listed as a chunk.", scan=scan_lists_strangers
    ),
}
globals().update(broken(__name__, DictContract, ScanningStore, SCANNING_STORE))


DICT_CONTRACT = {
    "quarantine.1 quarantine keeps reading": Wrong(
        "What is set aside is copied, and stays readable.", quarantine=quarantine_keeps_reading
    ),
    "sharing.9 leaks a lease": Wrong(
        "Forgets the leases that it keeps when it is closed.", close=leaks_a_lease
    ),
    "sharing.1 lends a copy": Wrong(
        "A lease is lent on a copy of the block.", get_lease=lends_a_copy
    ),
    "sharing.2 forgets the lease it was given": Wrong(
        "Keeps a share, and never releases the lease itself.",
        put_lease=forgets_the_lease_it_was_given,
    ),
    "range.1 range forgets the start": Wrong(
        "A range is read from the frame's beginning.",
        read_range=lambda self, real, key, start, into, deadline: real(key, 0, into, deadline),
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, DICT_CONTRACT))


OWN_MEMORY_STORE = {
    "sharing.1 copies each loan": Wrong(
        "It keeps chunks in memory of its own, and copies them once more for each borrower.",
        __init__=lambda self, real, medium: real(ManualClock()),
        get_lease=copies_each_loan_get_lease,
        copy=copies_each_loan_copy,
    ),
}
globals().update(broken(__name__, DictContract, OwnMemoryStore, OWN_MEMORY_STORE))


PERSISTENT_CONTRACT = {
    "L3.4 reopens empty frames": Wrong(
        "What was not flushed comes back as empty frames.", close=reopens_empty_frames
    ),
    "L3.5 resurrects": Wrong(
        "A journal is replayed without its deletions.",
        __init__=resurrects,
        forget=resurrects_forget,
        close=resurrects_close,
    ),
}
globals().update(broken(__name__, PersistentContract, CapableStore, PERSISTENT_CONTRACT))
