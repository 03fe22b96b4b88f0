"""Stores that take longer than they are given, or lose more than a late write may."""

from __future__ import annotations

from threading import Event, Lock

from dict_store import CapableStore, DictContract, DictStore, PersistentContract
from hexkv.ports import StoreUnreachable, TimedOut
from mutants.rows import Wrong, broken
from mutants.served.store_faults import ServedContract

FOREVER = 600.0
"""Seconds that a mutant waits for what does not come, unless it is closed."""


def later(deadline, seconds=60.0):
    """Another deadline than the caller's."""
    return type(deadline).after(deadline.clock, seconds)


class WaitsForAnAnswer(CapableStore):
    """A part of it waits until it is closed."""

    def __init__(self, medium):
        super().__init__(medium)
        self.answer = Event()

    def close(self):
        self.answer.set()
        super().close()


def writes_to_the_end_of_its_batch(self, items, deadline):
    self.reach(deadline)
    return [self.write_one(item) for item in items]


def denies_when_late(self, real, keys, deadline):
    return [False] * len(keys) if deadline.expired else real(keys, deadline)


def denies_the_rest_when_late(self, real, keys, deadline):
    return [here and not deadline.expired for here in real(keys, deadline)]


def stops_amid_a_batch_in_a_mixture(self, real, items, deadline):
    outcomes = real(items, deadline)
    late = [i for i, outcome in enumerate(outcomes) if outcome == TimedOut()]
    if late and late[0]:
        key, frame = items[late[0]]
        half = len(frame) // 2
        self.medium[key] = bytes(frame[:half]) + self.medium.get(key, b"")[half:]
    return outcomes


def waits_for_a_range(self, real, key, start, into, deadline):
    if deadline.expired:
        self.answer.wait(FOREVER)
    return real(key, start, into, deadline)


def waits_to_set_aside(self, real, keys, deadline):
    if deadline.expired:
        self.answer.wait(FOREVER)
    real(keys, deadline)


def reads_under_its_lock(self, real, keys, sink, deadline):
    with self.lock:
        return real(keys, sink, deadline)


def reads_under_its_lock_contains(self, real, keys, deadline):
    with self.lock:
        return real(keys, deadline)


def closes_after_its_readers(self, real, index, key, sink, deadline):
    with self.lock:
        return real(index, key, sink, deadline)


def closes_after_its_readers_in_time(self, real, index, key, sink, deadline):
    if not self.lock.acquire(timeout=deadline.remaining()):
        raise StoreUnreachable("somebody else reads")
    self.lock.release()
    return real(index, key, sink, deadline)


def closes_after_its_readers_close(self, real):
    with self.lock:
        real()


def closes_in_a_while(self, real):
    if not self.closed:
        Event().wait(1.2)
    real()


def waits_behind_its_neighbour(self, real, medium):
    real(medium)
    self.one = Lock()


def waits_behind_its_neighbour_reach(self, real, deadline):
    with self.one:
        real(deadline)


def ranges_have_a_time_out_of_their_own(self, real, key, start, into, deadline):
    return real(key, start, into, later(deadline))


def sets_aside_in_its_own_time(self, real, keys, deadline):
    real(keys, later(deadline))


class TestAsksBeforeItLends(ServedContract):
    """Whether what it holds in memory is still valid, its service must say."""

    breaks = "L4.4"

    class Make(CapableStore):
        latest = None

        def reach(self, deadline):
            self.latest = later(deadline)
            super().reach(deadline)

        def get_lease(self, keys, owner):
            if self.latest is not None:
                super().reach(self.latest)
            return super().get_lease(keys, owner)


def gives_each_chunk_all_the_time(self, keys, deadline):
    for left in [deadline.remaining()] * len(keys):
        self.reach(later(deadline, left))
    return [self.has(key) for key in keys]


def sends_what_is_no_longer_theirs(self, real, items, deadline):
    try:
        outcomes = real(items, deadline)
    except StoreUnreachable:
        self.left = items
        raise
    for item in self.left:
        self.write_one(item)
    self.left = ()
    return outcomes


def loses_another_for_a_late_write(self, real, items, deadline):
    try:
        return real(items, deadline)
    except StoreUnreachable:
        mine = {item.key for item in items}
        if mine <= set(self.medium):  # room is made where there is something
            self.medium.pop(next(key for key in self.medium if key not in mine))
        raise


def leaves_half_of_a_late_write(self, real, items, deadline):
    try:
        return real(items, deadline)
    except StoreUnreachable:
        key, frame = items[0]
        half = len(frame) // 2
        if key in self.medium:
            self.medium[key] = bytes(frame[:half]) + self.medium[key][half:]
        raise


def lists_nothing_that_is_gone(self, real):
    if self.medium.down:
        raise FileNotFoundError(2, "No such file or directory")
    return real()


def reads_no_range_of_what_is_gone(self, real, key, start, into, deadline):
    try:
        return real(key, start, into, deadline)
    except StoreUnreachable as error:
        raise FileNotFoundError(2, "No such file or directory") from error


DICT_STORE = {
    "L1.25 deletes nothing when late": Wrong(
        "What there is no time to delete was not there.", delete=denies_when_late
    ),
    "L1.25 denies when late": Wrong(
        "A chunk that there is no time to look for is absent.", contains=denies_when_late
    ),
    "L1.25 denies the rest when late": Wrong(
        "The same, amid a batch: the first chunks are found, and the next ones denied.",
        contains=denies_the_rest_when_late,
    ),
    "L1.30 reads to the end of its batch": Wrong(
        "The deadline is looked at once, before the first chunk.",
        in_time=lambda self, index, key, sink, deadline: self.read_one(index, key, sink, deadline),
    ),
    "L1.30 writes to the end of its batch": Wrong(
        "Likewise.", write=writes_to_the_end_of_its_batch
    ),
    "L1.30 stops amid a batch in a mixture": Wrong(
        "The chunk at which its time is over is half written.",
        write=stops_amid_a_batch_in_a_mixture,
    ),
    "L3.9 reads under its lock": Wrong(
        "The sink is asked for room under the lock that every call takes.",
        read=reads_under_its_lock,
        contains=reads_under_its_lock_contains,
    ),
    "L3.9 closes after its readers": Wrong(
        "Closing waits until nobody reads any more.",
        read_one=closes_after_its_readers,
        in_time=closes_after_its_readers_in_time,
        close=closes_after_its_readers_close,
    ),
}
globals().update(broken(__name__, DictContract, DictStore, DICT_STORE))


WAITS_FOR_AN_ANSWER = {
    "L1.24 waits for a range": Wrong(
        "A range is waited for whatever the deadline says.", read_range=waits_for_a_range
    ),
    "L1.24 waits to set aside": Wrong(
        "A quarantine waits whatever the deadline says.", quarantine=waits_to_set_aside
    ),
}
globals().update(broken(__name__, DictContract, WaitsForAnAnswer, WAITS_FOR_AN_ANSWER))


PERSISTENT_CONTRACT = {
    "L0.9 closes in a while": Wrong(
        "Closing waits a moment for an answer to its farewell.", close=closes_in_a_while
    ),
}
globals().update(broken(__name__, PersistentContract, CapableStore, PERSISTENT_CONTRACT))


SERVED_CONTRACT = {
    "L4.4 waits behind its neighbour": Wrong(
        "Calls take turns, and a turn lasts as long as the deadline of whoever has it.",
        __init__=waits_behind_its_neighbour,
        reach=waits_behind_its_neighbour_reach,
    ),
    "L4.4 ranges have a time out of their own": Wrong(
        "A range is waited for as long as ranges usually take.",
        read_range=ranges_have_a_time_out_of_their_own,
    ),
    "L4.4 sets aside in its own time": Wrong(
        "A quarantine has no hurry.", quarantine=sets_aside_in_its_own_time
    ),
    "L4.5 gives each chunk all the time": Wrong(
        "What was left of the time when the call began is left for each chunk.",
        contains=gives_each_chunk_all_the_time,
    ),
    "L4.10 sends what is no longer theirs": Wrong(
        "A write that was given up goes on, with memory that is the caller's again.",
        left=(),
        write=sends_what_is_no_longer_theirs,
    ),
    "L4.10 loses another for a late write": Wrong(
        "Room was made for what was then not written.", write=loses_another_for_a_late_write
    ),
    "L4.10 leaves half of a late write": Wrong(
        "What was written until the deadline stays, over what was there.",
        write=leaves_half_of_a_late_write,
    ),
    "L4.1 lists nothing that is gone": Wrong(
        "The directory that is to be listed is not there: so says the operating system.",
        scan=lists_nothing_that_is_gone,
    ),
    "L4.1 reads no range of what is gone": Wrong(
        "Likewise, of a range.", read_range=reads_no_range_of_what_is_gone
    ),
}
globals().update(broken(__name__, ServedContract, CapableStore, SERVED_CONTRACT))
