"""Stores that do not give back what was written, or not under the key it was written under."""

from __future__ import annotations

from threading import Event

from dict_store import DictContract, DictStore
from hexkv.ports import NAMESPACE_BYTES, Miss, Reason, Stored, StoreFull
from mutants.rows import Wrong, broken


def gives_another_chunk(self, real, key):
    found = real(key)
    return next(iter(self.medium.values()), None) if found is None else found


def hides_behind_its_own_reading(self, real, name, frame):
    real(name, bytes(b ^ 0xFF for b in frame[:10_000]) + frame[10_000:])


def hides_behind_its_own_reading_fetch(self, real, key):
    frame = real(key)
    if frame is None:
        return None
    return bytes(b ^ 0xFF for b in frame[:10_000]) + frame[10_000:]


def keeps_the_callers_buffer(self, item):
    self.medium[item.key] = item.frame
    return Stored(len(item.frame))


def fills_rooms_out_of_order(self, keys, sink, deadline):
    self._check()
    hits = iter(range(len(keys)))
    return [
        self.read_one(next(hits), key, sink, deadline) if self.has(key) else Miss() for key in keys
    ]


def delete_always_says_true(self, real, key):
    real(key)
    return True


def overwrites_in_place(self, real, name, frame):
    real(name, frame + self.medium.get(name, b"")[len(frame) :])


def asks_for_a_wrong_size_fill(self, room, frame):
    room[: len(frame)] = frame


def fills_half_the_room(self, room, frame):
    half = len(frame) // 2
    room[:half] = frame[:half]


def ignores_a_refusal(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
    if outcome == Miss(Reason.REFUSED):
        raise StoreFull("no room")
    return outcome


def hangs_past_the_deadline(self, real, medium):
    real(medium)
    self.answer = Event()


def hangs_past_the_deadline_in_time(self, real, index, key, sink, deadline):
    if deadline.expired:
        self.answer.wait(600)
    return real(index, key, sink, deadline)


def hangs_past_the_deadline_close(self, real):
    self.answer.set()
    real()


def merges_duplicates(self, keys, sink, deadline):
    self._check()
    seen = {}
    for i, key in enumerate(keys):
        if key not in seen:
            seen[key] = self.read_one(i, key, sink, deadline)
    return [seen[key] for key in keys]


ROWS = {
    "L1.20 gives another chunk": Wrong(
        "A miss is answered with whatever else is there.", fetch=gives_another_chunk
    ),
    "L1.1 drops the last byte": Wrong(
        "A fencepost on the way in.", publish=lambda self, real, name, frame: real(name, frame[:-1])
    ),
    "L1.13 hides behind its own reading": Wrong(
        "Bytes are inverted on the way in and out: only the back door sees it.",
        publish=hides_behind_its_own_reading,
        fetch=hides_behind_its_own_reading_fetch,
    ),
    "L1.4 keeps the callers buffer": Wrong("No copy is made.", write_one=keeps_the_callers_buffer),
    "L1.20 answers out of order": Wrong(
        "Outcomes come in the order of the sorted keys.",
        contains=lambda self, real, keys, deadline: real(sorted(keys), deadline),
    ),
    "L1.20 fills rooms out of order": Wrong(
        "Hits are compacted: the index given to the sink counts hits, not keys.",
        read=fills_rooms_out_of_order,
    ),
    "L1.6 says stored and did not": Wrong(
        "Writes are acknowledged and dropped.", write_one=lambda self, item: Stored(len(item.frame))
    ),
    "L1.23 drops the namespace": Wrong(
        "Chunks are filed under their digest alone.", name=lambda self, key: key[NAMESPACE_BYTES:]
    ),
    "L1.23 folds case": Wrong(
        "File names on a file system that folds case.", name=lambda self, key: key.upper()
    ),
    "L1.23 stops at a zero byte": Wrong(
        "Keys go through a C string.", name=lambda self, key: key.partition(b"\0")[0]
    ),
    "L1.9 contains lies": Wrong("A Bloom filter with no second look.", has=lambda self, key: True),
    "L1.10 delete always says true": Wrong(
        "What was never there is said to have been deleted.", forget=delete_always_says_true
    ),
    "L1.11 delete does not delete": Wrong(
        "Deleted chunks are marked in a set, which reading does not look at.",
        forget=lambda self, key: self.name(key) in self.medium,
    ),
    "L1.8 overwrites in place": Wrong(
        "A shorter frame leaves the tail of the longer one: no truncation.",
        publish=overwrites_in_place,
    ),
    "L1.5 asks for a wrong size": Wrong(
        "Room is taken in whole pages.",
        size=lambda self, frame: -(-len(frame) // 4096) * 4096,
        fill=asks_for_a_wrong_size_fill,
    ),
    "L1.5 fills half the room": Wrong(
        "A short read is taken for the whole.", fill=fills_half_the_room
    ),
    "L1.2 short reads of large frames": Wrong(
        "One system call moves at most 16 MiB, and nobody loops.",
        publish=lambda self, real, name, frame: real(name, frame[: 16 << 20]),
    ),
    "L1.7 raises on a miss": Wrong(
        "A chunk that is not there is an exception.", fetch=lambda self, key: self.medium[key]
    ),
    "L1.12 ignores a refusal": Wrong(
        "A refused room fails the whole batch.", read_one=ignores_a_refusal
    ),
    "L1.24 hangs past the deadline": Wrong(
        "Waits for an answer that does not come, whatever the deadline says.",
        __init__=hangs_past_the_deadline,
        in_time=hangs_past_the_deadline_in_time,
        close=hangs_past_the_deadline_close,
    ),
    "L1.21 merges duplicates": Wrong(
        "Equal keys of a batch are read once, and only the first one's room is filled.",
        read=merges_duplicates,
    ),
}
globals().update(broken(__name__, DictContract, DictStore, ROWS))
