"""Stores that go wrong once they are opened again, or when a batch has a key twice."""

from __future__ import annotations

from dict_store import CapableStore, DictContract, DictStore, PersistentContract
from hexkv.ports import Entry, Failed, Hit, Miss, Reason, StoreFull
from mutants.rows import Wrong, broken

CAPACITY = 128 << 20


def restores_the_quarantined(self, real):
    real()
    self.medium.update(self.aside)


def clears_in_memory(self, prefix, deadline):
    self.cleared = {key: self.medium[key] for key in self.starting(prefix)}
    return sum(self.forget(key) for key in self.cleared)


def clears_in_memory_close(self, real):
    real()
    self.medium.update(getattr(self, "cleared", {}))


class Young(CapableStore):
    """A store with an index of the chunks that it has written since it was opened."""

    def __init__(self, medium):
        super().__init__(medium)
        self.mine = set()

    def publish(self, name, frame):
        super().publish(name, frame)
        self.mine.add(name)


def clears_its_own_life(self, real, prefix):
    return [key for key in real(prefix) if key in self.mine]


def quarantines_its_own_life(self, real, keys, deadline):
    real([key for key in keys if key in self.mine], deadline)


def ranges_of_its_own_life(self, real, key, start, into, deadline):
    return real(key, start, into, deadline) if key in self.mine else Miss()


def leaves_the_older_version(self, real, name, frame):
    if name in self.medium and name not in self.mine:
        self.older = {**getattr(self, "older", {}), name: self.medium[name]}
    real(name, frame)


def leaves_the_older_version_close(self, real):
    real()
    self.medium.update(getattr(self, "older", {}))


def reads_a_batch_of_sets(self, keys, sink, deadline):
    """Read each key once; copy it to the buffers of the others."""
    self.reach(deadline)
    first = {}
    for index, key in enumerate(keys):
        first.setdefault(key, index)
    found = {key: self.in_time(index, key, sink, deadline) for key, index in first.items()}
    for index, key in enumerate(keys):
        if isinstance(found[key], Hit) and index != first[key]:
            frame = self.fetch(key)
            sink.room(index, len(frame))[:] = frame
    return [found[key] for key in keys]


def quarantines_what_was_there(self, keys, deadline):
    for key in [key for key in keys if self.has(key)]:
        self.let_go(key)
        self.aside = {key: self.medium.pop(key)}


def keeps_leases_by_key(self, real, keys, leases):
    last = dict(zip(keys, leases, strict=True))
    real([*last], [*last.values()])


def asks_for_room_first(self, index, key, sink, deadline):
    frame = self.fetch(key)
    room = sink.room(index, 0 if frame is None else self.size(frame))
    if frame is None or room is None:
        return Miss() if frame is None else Miss(Reason.REFUSED)
    self.fill(room, frame)
    return Hit(len(frame))


class Budgeted(CapableStore):
    """A store that counts its bytes."""

    used = 0

    def write_one(self, item):
        if self.used + len(item.frame) > CAPACITY:
            return Failed(StoreFull("no room"))
        return super().write_one(item)

    def publish(self, name, frame):
        self.used += len(frame) - len(self.medium.get(name, b""))
        super().publish(name, frame)

    def forget(self, key):
        self.used -= len(self.medium.get(key, b""))
        return super().forget(key)


def counts_what_it_replaced(self, real, name, frame):
    replaced = len(self.medium.get(name, b""))
    real(name, frame)
    self.used += replaced


def counts_what_it_deleted(self, real, keys, deadline):
    used = self.used
    gone = real(keys, deadline)
    self.used = used
    return gone


def counts_what_it_cleared(self, real, prefix, deadline):
    used = self.used
    count = real(prefix, deadline)
    self.used = used
    return count


def has_ghosts(self, real, medium):
    real(medium)
    self.ghosts = {}


def lists_what_it_cleared(self, prefix, deadline):
    gone = self.starting(prefix)
    for key in gone:
        self.ghosts[key] = self.medium.pop(key)
    return len(gone)


def lists_what_is_gone(self, real):
    yield from real()
    for key, frame in self.ghosts.items():
        yield Entry(key, len(frame), self.born)


PERSISTENT = {
    "L3.5 restores the quarantined": Wrong(
        "The list of what is set aside is in memory.", close=restores_the_quarantined
    ),
    "L3.5 restores the cleared": Wrong(
        "A clear is not in the journal.",
        clear_prefix=clears_in_memory,
        close=clears_in_memory_close,
    ),
}
globals().update(broken(__name__, PersistentContract, CapableStore, PERSISTENT))


YOUNG = {
    "L3.6 clears its own life": Wrong(
        "A clear goes through the index, which begins empty.", starting=clears_its_own_life
    ),
    "L3.6 quarantines its own life": Wrong(
        "So does a quarantine.", quarantine=quarantines_its_own_life
    ),
    "L3.6 ranges of its own life": Wrong(
        "A range is read from a file that is open since it was written.",
        read_range=ranges_of_its_own_life,
    ),
    "L3.6 leaves the older version": Wrong(
        "A chunk of an earlier life stays beside the one that replaces it, and wins.",
        publish=leaves_the_older_version,
        close=leaves_the_older_version_close,
    ),
}
globals().update(broken(__name__, PersistentContract, Young, YOUNG))


TWICE = {
    "L1.21 reads a batch of sets": Wrong(
        "Equal keys are read once: a refused buffer is refused for all of them.",
        read=reads_a_batch_of_sets,
    ),
    "L1.7 asks for room first": Wrong(
        "The sink is asked for a buffer of no bytes for a miss.", read_one=asks_for_room_first
    ),
}
globals().update(broken(__name__, DictContract, DictStore, TWICE))


CAPABLE = {
    "quarantine.3 quarantines what was there": Wrong(
        "It looks for all keys first, and misses the second of two equal ones.",
        quarantine=quarantines_what_was_there,
    ),
    "sharing.2 keeps leases by key": Wrong(
        "Of two leases of one key the first is forgotten.", put_lease=keeps_leases_by_key
    ),
    "clear.1 lists what it cleared": Wrong(
        "A clear leaves the index that a scan goes through.",
        __init__=has_ghosts,
        clear_prefix=lists_what_it_cleared,
        scan=lists_what_is_gone,
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, CAPABLE))


BUDGETED = {
    "L1.32 counts what it replaced": Wrong(
        "The bytes of an overwritten frame stay in use.", publish=counts_what_it_replaced
    ),
    "L1.32 counts what it deleted": Wrong(
        "The bytes of a deleted frame stay in use.", delete=counts_what_it_deleted
    ),
    "L1.32 counts what it cleared": Wrong(
        "The bytes of a cleared namespace stay in use.", clear_prefix=counts_what_it_cleared
    ),
}
globals().update(broken(__name__, DictContract, Budgeted, BUDGETED))
