"""Collectives that lose, mix up or keep messages, or wait for the lost."""

from __future__ import annotations

from threading import Condition

import pytest

from hexkv.contracts.collective import CollectiveContract, closed
from hexkv.ports import MAX_HEAD, MAX_MESSAGE, CollectiveBroken, Deadline, InvalidRequest


class Circle:
    """What members in one process share."""

    def __init__(self, size):
        self.size = size
        self.changed = Condition()
        self.sent = []
        self.broken = False
        self.noticed = set()
        self.gone = set()


class LocalMember:
    """A correct one. All learn of a loss at once, and have met again when all have been told."""

    def __init__(self, circle, rank):
        self.circle, self.rank, self.size, self.at = circle, rank, circle.size, 0

    @property
    def whole(self):
        with self.circle.changed:
            if self.circle.broken:
                self._notice()
            return not (self.circle.broken or self.circle.gone)

    def send(self, head, data, deadline):
        if self.rank or len(head) > MAX_HEAD or data.nbytes > MAX_MESSAGE:
            raise InvalidRequest("not so")
        with self.circle.changed:
            self._here(deadline)
            self._put(head, bytes(data))
            self.circle.changed.notify_all()

    def _put(self, head, data):
        self.circle.sent.append((head, data))

    def receive(self, limit, deadline):
        if not self.rank or not 0 <= limit <= MAX_MESSAGE:
            raise InvalidRequest("not so")
        with self.circle.changed:
            self._here(deadline)
            while len(self.circle.sent) <= self.at:
                if self.circle.broken or not self.circle.changed.wait(deadline.remaining()):
                    self._break()
                    self._here(deadline)
            head, data = self.circle.sent[self.at]
            self.at += 1
            if len(data) > limit:
                self._break()
                self._here(deadline)
        return head, memoryview(data)

    def part(self):
        with self.circle.changed:
            self._break()
            self._notice()

    def close(self):
        with self.circle.changed:
            self.circle.gone.add(self.rank)
            self._break()

    def _here(self, deadline):
        if not (self.circle.broken or self.circle.gone or deadline.expired):
            return
        self._break()
        self._notice()
        raise CollectiveBroken("apart")

    def _break(self):
        self.circle.broken = True
        self.circle.changed.notify_all()

    def _notice(self):
        circle = self.circle
        circle.noticed.add(self.rank)
        self.at = 0
        if len(circle.noticed) == circle.size and not circle.gone:
            self._meet()

    def _meet(self):
        self.circle.noticed.clear()
        self.circle.sent.clear()
        self.circle.broken = False


class LocalContract(CollectiveContract):
    Make = LocalMember

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """Some would take all the time there is."""
        monkeypatch.setattr("hexkv.contracts.collective.PATIENCE", 5.0)

    @pytest.fixture
    def members(self):
        made = []

        def make(size):
            circle = Circle(size)
            made.append([self.Make(circle, rank) for rank in range(size)])
            return made[-1]

        yield make
        for some in made:
            closed(some)


class TestForgetsEmptyMessages(LocalContract):
    """A message without data is not sent."""

    breaks = "collective.1"

    class Make(LocalMember):
        def _put(self, head, data):
            if data:
                super()._put(head, data)


class TestCutsTheHead(LocalContract):
    """The last byte of the longest head is lost."""

    breaks = "collective.1"

    class Make(LocalMember):
        def _put(self, head, data):
            super()._put(head[: MAX_HEAD - 1], data)


class TestGivesAWindow(LocalContract):
    """What is received is the memory of the next message, too."""

    breaks = "collective.2"

    class Make(LocalMember):
        memory = bytearray(1 << 21)

        def _put(self, head, data):
            super()._put(head, data)
            self.memory[: len(data)] = data

        def receive(self, limit, deadline):
            head, data = super().receive(limit, deadline)
            return head, memoryview(self.memory)[: len(data)].toreadonly()


class TestGivesWritableMemory(LocalContract):
    """Whoever receives may write to what is the collective's."""

    breaks = "collective.1"

    class Make(LocalMember):
        def receive(self, limit, deadline):
            head, data = super().receive(limit, deadline)
            return head, memoryview(bytearray(data))


class TestMakesUpWhatIsLate(LocalContract):
    """A message that does not come in time is empty."""

    breaks = "collective.3"

    class Make(LocalMember):
        def receive(self, limit, deadline):
            try:
                return super().receive(limit, deadline)
            except CollectiveBroken:
                if deadline.expired:
                    return b"", memoryview(b"")
                raise


class TestStaysTogether(LocalContract):
    """A member that misses a message counts as whole."""

    breaks = "collective.3"

    class Make(LocalMember):
        @property
        def whole(self):
            return self.rank != 2


class TestWaitsAgain(LocalContract):
    """Who is apart waits for the others until the deadline, each time."""

    breaks = "collective.4"

    class Make(LocalMember):
        def _here(self, deadline):
            with self.circle.changed:
                while self.circle.gone and not deadline.expired:
                    self.circle.changed.wait(deadline.remaining())
            super()._here(deadline)


class TestTakesWhatComes(LocalContract):
    """The limit of a receiver is not looked at."""

    breaks = "collective.5"

    class Make(LocalMember):
        def receive(self, limit, deadline):
            return super().receive(MAX_MESSAGE if limit > 0 else limit, deadline)


class TestLeavesInSilence(LocalContract):
    """Who has left still counts as there."""

    breaks = "collective.6"

    class Make(LocalMember):
        def close(self):
            pass


class TestStaysApart(LocalContract):
    """Those that were apart never meet again."""

    breaks = "collective.7"

    class Make(LocalMember):
        def _meet(self):
            pass


class TestKeepsOldMessages(LocalContract):
    """After a new beginning the old messages come again."""

    breaks = "collective.7"

    class Make(LocalMember):
        def _meet(self):
            self.circle.noticed.clear()
            self.circle.broken = False


class TestPartsOverNonsense(LocalContract):
    """A call that means nothing parts all members."""

    breaks = "collective.8"

    class Make(LocalMember):
        def receive(self, limit, deadline):
            try:
                return super().receive(limit, deadline)
            except InvalidRequest:
                self.part()
                raise


class TestBelievesAnyRank(LocalContract):
    """Every member may send."""

    breaks = "collective.8"

    class Make(LocalMember):
        def send(self, head, data, deadline):
            if self.rank and not isinstance(deadline, Deadline):
                raise InvalidRequest("not so")
            rank, self.rank = self.rank, 0
            try:
                super().send(head, data, deadline)
            finally:
                self.rank = rank
