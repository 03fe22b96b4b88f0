"""Stores that count in too few bits, take a head for the whole, tear frames, or leak."""

from __future__ import annotations

import contextlib

import pytest

from dict_store import CapableStore, DictContract, DictStore, WholeContract
from hexkv.contracts.doubles import deadline as any_deadline
from hexkv.ports import Hit, Miss, Reason, StoreUnreachable
from mutants.rows import Wrong, broken
from mutants.served.store_faults import ServedContract
from mutants.stores.store_rest import InTwoSteps

HEAD = 4096


class TestOverwritesEqualLengthsInPlace(DictContract):
    """A frame that is as long as the old one is written over it, a half at a time."""

    breaks = "L3.1"

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """It is not waited for long where nobody looks."""
        monkeypatch.setattr("mutants.meetings.PATIENCE", 5.0)

    class Make(InTwoSteps):
        def begin(self, name, frame):
            old, half = self.medium[name], len(frame) // 2
            self.medium[name] = frame[:half] + old[half:]

        def publish(self, name, frame):
            if len(self.medium.get(name, b"")) == len(frame):
                super().publish(name, frame)
            else:
                DictStore.publish(self, name, frame)


def reads_the_rest_later(self, index, key, sink, deadline):
    frame = self.fetch(key)
    if frame is None:
        return Miss()
    room = sink.room(index, len(frame))
    if room is None:
        return Miss(Reason.REFUSED)
    now = self.fetch(key)
    whole = frame[:HEAD] + now[HEAD:] if len(now) == len(frame) else frame
    room[:] = whole
    return Hit(len(frame))


def keeps_one_frame_for_each_head(self, real, medium):
    real(medium)
    self.heads = {}


def keeps_one_frame_for_each_head_publish(self, real, name, frame):
    alike = self.heads.setdefault((frame[:HEAD], len(frame)), frame)
    real(name, alike if len(frame) > HEAD else frame)


def does_not_write_what_looks_the_same(self, real, name, frame):
    old = self.medium.get(name, b"")
    same = [(one[:HEAD], one[-HEAD:], len(one)) for one in (old, frame)]
    if name not in self.medium or same[0] != same[1]:
        real(name, frame)


def lists_sizes_in32_bits(self, real):
    for entry in real():
        yield entry._replace(size=entry.size & 0xFFFF_FFFF)


def reads_ranges_in31_bits(self, real, key, start, into, deadline):
    if start >= 1 << 31:
        return Miss()
    return real(key, start, into, deadline)


class TestLeavesAFileOpenForAMiss(DictContract):
    """What was opened to look for a chunk is closed after it was read."""

    breaks = "L0.8"

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """It is waited for a little only."""
        monkeypatch.setattr("hexkv.contracts.store.faulty._lasting.GOING", 1.0)

    class Make(DictStore):
        opened = []  # noqa: RUF012 - it outlives the calls, that is what is wrong

        def fetch(self, key):
            found = super().fetch(key)
            if found is None:
                self.opened.append(open("/dev/null", "rb"))  # noqa: SIM115
            return found

        def close(self):
            super().close()
            while self.opened:
                self.opened.pop().close()


def keeps_what_was_refused(self, real, medium):
    real(medium)
    self.kept = []


def keeps_what_was_refused_read_one(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
    if outcome == Miss(Reason.REFUSED):
        self.kept.append(bytearray(self.fetch(key)))
    return outcome


def keeps_what_came_too_late(self, real, medium):
    real(medium)
    self.late = []


def keeps_what_came_too_late_write(self, real, items, deadline):
    if deadline.expired:
        self.late += [bytearray(item.frame) for item in items]
    return real(items, deadline)


def leaves_a_connection_for_a_failure(self, real, deadline):
    try:
        real(deadline)
    except StoreUnreachable:
        for _ in range(2):
            self.opened.append(open("/dev/null", "rb"))  # noqa: SIM115
        raise


def leaves_a_connection_for_a_failure_close(self, real):
    real()
    while self.opened:
        self.opened.pop().close()


def keeps_the_buffer_of_a_range(self, real, key, start, into, deadline):
    self.last = key, start, into
    return real(key, start, into, deadline)


def keeps_the_buffer_of_a_late_write(self, real, items, deadline):
    if deadline.expired:
        self.later = items
    elif self.later:
        with contextlib.suppress(ValueError):
            real(self.later, any_deadline())
    return real(items, deadline)


DICT_STORE = {
    "L3.1 reads the rest later": Wrong(
        "The head tells how much room there must be; the rest is read once there is room.",
        read_one=reads_the_rest_later,
    ),
    "L1.8 keeps one frame for each head": Wrong(
        "Frames that begin alike, and are as long, are kept once.",
        __init__=keeps_one_frame_for_each_head,
        publish=keeps_one_frame_for_each_head_publish,
    ),
    "L1.8 does not write what looks the same": Wrong(
        "A frame that begins and ends as the one that is there is taken for it.",
        publish=does_not_write_what_looks_the_same,
    ),
    "L0.8 keeps what was refused": Wrong(
        "What nobody had room for is kept for the next time.",
        __init__=keeps_what_was_refused,
        read_one=keeps_what_was_refused_read_one,
    ),
    "L0.8 keeps what came too late": Wrong(
        "What came after its deadline is kept, and looked at by nobody.",
        __init__=keeps_what_came_too_late,
        write=keeps_what_came_too_late_write,
    ),
    "L1.4 keeps the buffer of a late write": Wrong(
        "What came too late is written when there is time.",
        later=(),
        write=keeps_the_buffer_of_a_late_write,
    ),
}
globals().update(broken(__name__, DictContract, DictStore, DICT_STORE))


WHOLE_CONTRACT = {
    "L1.29 asks for room in32 bits": Wrong(
        "A frame of 4 GiB and some bytes is these bytes.",
        size=lambda self, frame: len(frame) & 0xFFFF_FFFF,
    ),
    "L1.29 lists sizes in32 bits": Wrong("Likewise, in a scan.", scan=lists_sizes_in32_bits),
    "L1.29 reads ranges in31 bits": Wrong(
        "What lies beyond 2 GiB is said not to be there.", read_range=reads_ranges_in31_bits
    ),
}
globals().update(broken(__name__, WholeContract, CapableStore, WHOLE_CONTRACT))


SERVED_CONTRACT = {
    "L4.6 leaves a connection for a failure": Wrong(
        "A connection that fails is forgotten, not closed.",
        opened=[],
        reach=leaves_a_connection_for_a_failure,
        close=leaves_a_connection_for_a_failure_close,
    ),
}
globals().update(broken(__name__, ServedContract, CapableStore, SERVED_CONTRACT))


DICT_CONTRACT = {
    "L1.4 keeps the buffer of a range": Wrong(
        "A range is remembered by the memory that it was read into.",
        read_range=keeps_the_buffer_of_a_range,
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, DICT_CONTRACT))
