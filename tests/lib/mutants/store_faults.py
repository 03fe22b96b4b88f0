"""Stores that cannot live with their service, or with others on it, or are slow."""

from __future__ import annotations

import base64
from threading import Lock
from typing import ClassVar

import pytest

from breakable_dict import DictService
from dict_store import CapableStore, WholeContract
from hexkv.ports import Failed, Hit, Stored, StoreError, StoreUnreachable


class ServedContract(WholeContract):
    """Those that do not come back are waited for a little only."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        monkeypatch.setattr("hexkv.contracts.store.faulty._enduring.RETURN", 4.0)
        monkeypatch.setattr("hexkv.contracts.store.faulty._faults.RETURN", 4.0)
        monkeypatch.setattr("hexkv.contracts.store.faulty._lasting.GOING", 1.0)
        monkeypatch.setattr("hexkv.contracts.store._speed.MOST_TURNS", 7)
        monkeypatch.setattr("hexkv.contracts.store._speed.PATIENCE", 0.0)


class TestLetsForeignErrorsThrough(ServedContract):
    """A service that is down is an error of the operating system."""

    breaks = "L4.1"

    class Make(CapableStore):
        def reach(self, deadline):
            try:
                super().reach(deadline)
            except StoreUnreachable as error:
                raise ConnectionResetError("by peer") from error


class TestNeverComesBack(ServedContract):
    """A connection that failed once is not tried again."""

    breaks = "L4.1"

    class Make(CapableStore):
        lost = False

        def reach(self, deadline):
            if self.lost:
                raise StoreUnreachable("gave up")
            try:
                super().reach(deadline)
            except StoreUnreachable:
                self.lost = True
                raise


class TestUsesTheOldConnection(ServedContract):
    """The first call after a restart goes where nobody listens any more."""

    breaks = "L4.2"

    class Make(CapableStore):
        wrote = False

        def reach(self, deadline):
            super().reach(deadline)
            if self.wrote and not self.medium:
                self.wrote = False
                raise BrokenPipeError(32, "Broken pipe")

        def publish(self, name, frame):
            super().publish(name, frame)
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


class TestHasATimeOutOfItsOwn(ServedContract):
    """Calls wait for a minute, whatever their deadline says."""

    breaks = "L4.4"

    class Make(CapableStore):
        def reach(self, deadline):
            super().reach(type(deadline).after(deadline.clock, 60.0))


class TestGivesUpEarly(ServedContract):
    """Nobody waits for longer than 50 ms, however much time there is."""

    breaks = "L4.5"

    class Make(CapableStore):
        def reach(self, deadline):
            super().reach(type(deadline).after(deadline.clock, min(deadline.remaining(), 0.05)))


class TestPutsForeignErrorsIntoOutcomes(ServedContract):
    """What the client raised is the outcome of each chunk."""

    breaks = "L4.6"

    class Make(CapableStore):
        def read(self, keys, sink, deadline):
            try:
                return super().read(keys, sink, deadline)
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


class TestSwallowsErrors(ServedContract):
    """A write that failed is logged, and nothing else."""

    breaks = "L4.8"

    class Make(CapableStore):
        def write_one(self, item):
            outcome = super().write_one(item)
            return outcome if isinstance(outcome, Stored) else Stored(len(item.frame))


class TestCountsOneTooMany(ServedContract):
    """The budget is looked at before the new frame is counted; another one has to go for it."""

    breaks = "L4.8"

    class Make(CapableStore):
        def write_one(self, item):
            if self.medium.full and self.medium:
                del self.medium[next(iter(self.medium))]
            return super().write_one(item)


class TestClosesAfterTheLastAnswer(ServedContract):
    """Closing waits for the lock that a call holds while it waits."""

    breaks = "L4.9"

    class Make(CapableStore):
        def __init__(self, medium):
            super().__init__(medium)
            self.one = Lock()

        def reach(self, deadline):
            with self.one:
                super().reach(deadline)

        def close(self):
            with self.one:
                super().close()


class TestShortensTheNamespace(ServedContract):
    """Four bits of a namespace should be enough for everybody."""

    breaks = "L5.1"

    class Make(CapableStore):
        def name(self, key):
            return bytes([key[0] & 0x0F]) + key[1:1] + bytes(15) + key[16:]


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


class TestReadsWithoutThePrefix(SharedContract):
    """The prefix is put before a key when it is written, and forgotten when it is read."""

    breaks = "L5.2"

    class Make(PrefixStore):
        def fetch(self, key):
            return self.medium.get(key)


class TestClearsTheService(SharedContract):
    """Closing cleans up: everything on the service."""

    breaks = "L5.3"

    class Make(PrefixStore):
        def close(self):
            self.medium.clear()
            super().close()


class TestListsForeignKeys(ServedContract):
    """Every name on the medium is taken for a chunk's."""

    breaks = "L5.4"

    class Make(CapableStore):
        def scan(self):
            yield from super().scan()
            for entry in list(super().scan())[:1]:
                for name in self.medium:
                    if len(name) != len(entry.key):
                        yield entry._replace(key=name)


class TestSweepsStrangersAway(ServedContract):
    """What does not look like a chunk is rubbish."""

    breaks = "L5.4"

    class Make(CapableStore):
        def delete(self, keys, deadline):
            for name in [name for name in self.medium if len(name) != len(keys[0])]:
                del self.medium[name]
            return super().delete(keys, deadline)


class TestWritesText(ServedContract):
    """Frames are stored as text, and checked by reading them back."""

    breaks = "L6.1"

    class Make(CapableStore):
        def publish(self, name, frame):
            text = base64.b64encode(frame)
            if base64.b64decode(text) != frame:
                raise StoreError("not what was written")
            super().publish(name, frame)


class TestReadsText(ServedContract):
    """Frames go through text when they are read."""

    breaks = "L6.2"

    class Make(CapableStore):
        def fill(self, room, frame):
            room[:] = base64.b64decode(base64.b64encode(frame))
