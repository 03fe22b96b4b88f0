"""Collectives that lose, mix up or keep messages, or wait for the lost."""

from __future__ import annotations

from threading import Condition, Lock

import pytest

from hexkv.contracts.collective import CollectiveContract, closed
from hexkv.ports import MAX_HEAD, MAX_MESSAGE, CollectiveBroken, Deadline, InvalidRequest
from mutants.meetings import alone
from mutants.rows import Wrong, broken


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


def forgets_empty_messages(self, real, head, data):
    if data:
        real(head, data)


def cuts_the_head(self, real, head, data):
    real(head[: MAX_HEAD - 1], data)


def gives_a_window(self, real, head, data):
    real(head, data)
    self.memory[: len(data)] = data


def gives_a_window_receive(self, real, limit, deadline):
    head, data = real(limit, deadline)
    return head, memoryview(self.memory)[: len(data)].toreadonly()


def gives_writable_memory(self, real, limit, deadline):
    head, data = real(limit, deadline)
    return head, memoryview(bytearray(data))


def makes_up_what_is_late(self, real, limit, deadline):
    try:
        return real(limit, deadline)
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


def waits_again(self, real, deadline):
    with self.circle.changed:
        while self.circle.gone and not deadline.expired:
            self.circle.changed.wait(deadline.remaining())
    real(deadline)


def takes_what_comes(self, real, limit, deadline):
    return real(MAX_MESSAGE if limit > 0 else limit, deadline)


def keeps_old_messages(self):
    self.circle.noticed.clear()
    self.circle.broken = False


def parts_over_nonsense(self, real, limit, deadline):
    try:
        return real(limit, deadline)
    except InvalidRequest:
        self.part()
        raise


def believes_any_rank(self, real, head, data, deadline):
    if self.rank and not isinstance(deadline, Deadline):
        raise InvalidRequest("not so")
    rank, self.rank = self.rank, 0
    try:
        real(head, data, deadline)
    finally:
        self.rank = rank


class TestWaitsToTell(LocalContract):
    """Whether it is whole is known once no call is under way."""

    breaks = "collective.9"

    class Make(LocalMember):
        def __init__(self, circle, rank):
            super().__init__(circle, rank)
            self.busy = Lock()

        @property
        def whole(self):
            with self.busy:
                return super().whole

        def receive(self, limit, deadline):
            with self.busy:
                return super().receive(limit, deadline)


class TestAsksTheOthers(LocalContract):
    """It is whole once a message of each other member has come."""

    breaks = "collective.9"

    class Make(LocalMember):
        @property
        def whole(self):
            if len(self.circle.sent) > self.at or alone():
                return super().whole
            with self.circle.changed:
                self.circle.changed.wait(20.0)
            return super().whole


def strips_zeros(self, real, head, data):
    real(head.rstrip(b"\0"), data)


ROWS = {
    "collective.1 strips zeros": Wrong(
        "Zeros at the end of a head are taken for padding.", _put=strips_zeros
    ),
    "collective.1 forgets empty messages": Wrong(
        "A message without data is not sent.", _put=forgets_empty_messages
    ),
    "collective.1 cuts the head": Wrong(
        "The last byte of the longest head is lost.", _put=cuts_the_head
    ),
    "collective.2 gives a window": Wrong(
        "What is received is the memory of the next message, too.",
        memory=bytearray(1 << 21),
        _put=gives_a_window,
        receive=gives_a_window_receive,
    ),
    "collective.1 gives writable memory": Wrong(
        "Whoever receives may write to what is the collective's.", receive=gives_writable_memory
    ),
    "collective.3 makes up what is late": Wrong(
        "A message that does not come in time is empty.", receive=makes_up_what_is_late
    ),
    "collective.4 waits again": Wrong(
        "Who is apart waits for the others until the deadline, each time.", _here=waits_again
    ),
    "collective.5 takes what comes": Wrong(
        "The limit of a receiver is not looked at.", receive=takes_what_comes
    ),
    "collective.6 leaves in silence": Wrong(
        "Who has left still counts as there.", close=lambda self: None
    ),
    "collective.7 stays apart": Wrong(
        "Those that were apart never meet again.", _meet=lambda self: None
    ),
    "collective.7 keeps old messages": Wrong(
        "After a new beginning the old messages come again.", _meet=keeps_old_messages
    ),
    "collective.8 parts over nonsense": Wrong(
        "A call that means nothing parts all members.", receive=parts_over_nonsense
    ),
    "collective.8 believes any rank": Wrong("Every member may send.", send=believes_any_rank),
}
globals().update(broken(__name__, LocalContract, LocalMember, ROWS))
