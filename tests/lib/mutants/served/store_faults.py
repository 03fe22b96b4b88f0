"""Stores that cannot live with their service, or with others on it, or are slow."""

from __future__ import annotations

import base64
from threading import Lock
from typing import ClassVar

import pytest

from dict_store import CapableStore, WholeContract
from hexkv.ports import Failed, Hit, Stored, StoreError, StoreUnreachable
from media.breakable_dict import DictService
from mutants.rows import Wrong, broken


class ServedContract(WholeContract):
    """Those that do not come back are waited for a little only."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        monkeypatch.setattr("hexkv.contracts.store.faulty._enduring.RETURN", 4.0)
        monkeypatch.setattr("hexkv.contracts.store.faulty._faults.RETURN", 4.0)
        monkeypatch.setattr("hexkv.contracts.store.faulty._lasting.GOING", 1.0)
        monkeypatch.setattr("hexkv.contracts.store._speed.MOST_TURNS", 7)
        monkeypatch.setattr("hexkv.contracts.store._speed.PATIENCE", 0.0)


def lets_foreign_errors_through(self, real, deadline):
    try:
        real(deadline)
    except StoreUnreachable as error:
        raise ConnectionResetError("by peer") from error


def never_comes_back(self, real, deadline):
    if self.lost:
        raise StoreUnreachable("gave up")
    try:
        real(deadline)
    except StoreUnreachable:
        self.lost = True
        raise


def uses_the_old_connection(self, real, deadline):
    real(deadline)
    if self.wrote and not self.medium:
        self.wrote = False
        raise BrokenPipeError(32, "Broken pipe")


def uses_the_old_connection_publish(self, real, name, frame):
    real(name, frame)
    self.wrote = True


class TestCountsWhatCameAsWhole(ServedContract):
    """A read that the service's death cut short is a hit, with zeros for the rest."""

    breaks = "L4.3"

    class Make(CapableStore):
        sizes: ClassVar[dict[bytes, int]] = {}

        def publish(self, name, frame):
            self.sizes[name] = len(frame)
            super().publish(name, frame)

        def read(self, keys, sink, deadline):
            try:
                return super().read(keys, sink, deadline)
            except StoreUnreachable:
                sizes = [self.sizes[self.name(key)] for key in keys]
                for index, size in enumerate(sizes):
                    sink.room(index, size)[:] = bytes(size)
                return [Hit(size) for size in sizes]


def has_a_time_out_of_its_own(self, real, deadline):
    real(type(deadline).after(deadline.clock, 60.0))


def gives_up_early(self, real, deadline):
    real(type(deadline).after(deadline.clock, min(deadline.remaining(), 0.05)))


def puts_foreign_errors_into_outcomes(self, real, keys, sink, deadline):
    try:
        return real(keys, sink, deadline)
    except StoreUnreachable:
        return [Failed(ConnectionAbortedError("cut"))] * len(keys)


class TestTakesGarbageForAnAnswer(ServedContract):
    """What arrives on the connection is what was asked for."""

    breaks = "L4.7"

    class Make(CapableStore):
        def fill(self, room, frame):
            frame = b"\x15\x03" * (len(frame) // 2 + 1) if self.medium.garbled else frame
            room[:] = frame[: len(room)]

    @pytest.fixture
    def service(self, medium):
        medium.garbled = False

        class Garbling(DictService):
            def garbage(self):
                medium.garbled = True

            def mend(self):
                super().mend()
                medium.garbled = False

        return Garbling(medium)


def swallows_errors(self, real, item):
    outcome = real(item)
    return outcome if isinstance(outcome, Stored) else Stored(len(item.frame))


def counts_one_too_many(self, real, item):
    if self.medium.full and self.medium:
        del self.medium[next(iter(self.medium))]
    return real(item)


def closes_after_the_last_answer(self, real, medium):
    real(medium)
    self.one = Lock()


def closes_after_the_last_answer_reach(self, real, deadline):
    with self.one:
        real(deadline)


def closes_after_the_last_answer_close(self, real):
    with self.one:
        real()


class SharedContract(ServedContract):
    """Two stores on one shelf; what one of them writes should have a prefix."""

    @pytest.fixture
    def sibling(self, medium):
        store = self.Make(medium)
        store.prefix = b"sibling/"
        yield store
        store.close()


class PrefixStore(CapableStore):
    prefix = b""

    def name(self, key):
        return self.prefix + key

    def scan(self):
        for entry in super().scan():
            if not self.prefix:
                yield entry

    def quarantine(self, keys, deadline):
        super().quarantine([self.name(key) for key in keys], deadline)


def clears_the_service(self, real):
    self.medium.clear()
    real()


def lists_foreign_keys(self, real):
    yield from real()
    for entry in list(real())[:1]:
        for name in self.medium:
            if len(name) != len(entry.key):
                yield entry._replace(key=name)


def sweeps_strangers_away(self, real, keys, deadline):
    for name in [name for name in self.medium if len(name) != len(keys[0])]:
        del self.medium[name]
    return real(keys, deadline)


def writes_text(self, real, name, frame):
    text = base64.b64encode(frame)
    if base64.b64decode(text) != frame:
        raise StoreError("not what was written")
    real(name, frame)


def reads_text(self, room, frame):
    room[:] = base64.b64decode(base64.b64encode(frame))


def says_that_it_deleted(self, real, keys, deadline):
    try:
        return real(keys, deadline)
    except StoreError:
        if self.closed:
            raise
        return [True] * len(keys)


CAPABLE_STORE = {
    "L4.6 says that it deleted": Wrong(
        "A delete that does not reach the service answers True.", delete=says_that_it_deleted
    ),
    "L4.1 lets foreign errors through": Wrong(
        "A service that is down is an error of the operating system.",
        reach=lets_foreign_errors_through,
    ),
    "L4.1 never comes back": Wrong(
        "A connection that failed once is not tried again.", lost=False, reach=never_comes_back
    ),
    "L4.2 uses the old connection": Wrong(
        "The first call after a restart goes where nobody listens any more.",
        wrote=False,
        reach=uses_the_old_connection,
        publish=uses_the_old_connection_publish,
    ),
    "L4.4 has a time out of its own": Wrong(
        "Calls wait for a minute, whatever their deadline says.", reach=has_a_time_out_of_its_own
    ),
    "L4.5 gives up early": Wrong(
        "Nobody waits for longer than 50 ms, however much time there is.", reach=gives_up_early
    ),
    "L4.6 puts foreign errors into outcomes": Wrong(
        "What the client raised is the outcome of each chunk.",
        read=puts_foreign_errors_into_outcomes,
    ),
    "L4.8 swallows errors": Wrong(
        "A write that failed is logged, and nothing else.", write_one=swallows_errors
    ),
    "L4.8 counts one too many": Wrong(
        "The budget is looked at before the new frame is counted; another one has to go for it.",
        write_one=counts_one_too_many,
    ),
    "L4.9 closes after the last answer": Wrong(
        "Closing waits for the lock that a call holds while it waits.",
        __init__=closes_after_the_last_answer,
        reach=closes_after_the_last_answer_reach,
        close=closes_after_the_last_answer_close,
    ),
    "L5.1 shortens the namespace": Wrong(
        "Four bits of a namespace should be enough for everybody.",
        name=lambda self, key: bytes([key[0] & 0x0F]) + key[1:1] + bytes(15) + key[16:],
    ),
    "L5.4 lists foreign keys": Wrong(
        "Every name on the medium is taken for a chunk's.", scan=lists_foreign_keys
    ),
    "L5.4 sweeps strangers away": Wrong(
        "What does not look like a chunk is rubbish.", delete=sweeps_strangers_away
    ),
    "L6.1 writes text": Wrong(
        "Frames are stored as text, and checked by reading them back.", publish=writes_text
    ),
    "L6.2 reads text": Wrong("Frames go through text when they are read.", fill=reads_text),
}
globals().update(broken(__name__, ServedContract, CapableStore, CAPABLE_STORE))


PREFIX_STORE = {
    "L5.2 reads without the prefix": Wrong(
        "The prefix is put before a key when it is written, and forgotten when it is read.",
        fetch=lambda self, key: self.medium.get(key),
    ),
    "L5.3 clears the service": Wrong(
        "Closing cleans up: everything on the service.", close=clears_the_service
    ),
}
globals().update(broken(__name__, SharedContract, PrefixStore, PREFIX_STORE))
