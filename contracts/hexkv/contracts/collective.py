"""The contract of collectives: a message for all, and no wait for a lost member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from threading import Event, Thread

import pytest

from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.waiting import UnderWay, promptly, still_running
from hexkv.contracts.kit.whole import Whole
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    MAX_HEAD,
    MAX_MESSAGE,
    Collective,
    CollectiveBroken,
    Deadline,
    InvalidRequest,
)

PATIENCE = 30.0
"""Seconds after which a call counts as hanging."""

SHORT = 0.3
"""Seconds of a deadline that is to pass."""

Message = tuple[bytes, bytes]
Members = Sequence[Collective]


def soon() -> Deadline:
    """A deadline that only a hang reaches."""
    return Deadline.after(SystemClock(), 10 * PATIENCE)


def short() -> Deadline:
    """A deadline that passes."""
    return Deadline.after(SystemClock(), SHORT)


def at_once(*works: Callable[[], object]) -> list[object]:
    """The result or exception of each of *works*, run at the same time in threads of their own."""
    found: list[object] = [None] * len(works)

    def run(place: int, work: Callable[[], object]) -> None:
        try:
            found[place] = work()
        except Exception as error:  # noqa: BLE001 - the test checks it
            found[place] = error

    threads = [Thread(target=run, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    assert not still_running(threads, PATIENCE), "a call outlives its deadline"
    return found


def got(member: Collective, limit: int = MAX_MESSAGE, until: Deadline | None = None) -> Message:
    """The next message at *member*, copied."""
    head, data = member.receive(limit, until or soon())
    assert data.readonly
    return head, bytes(data)


def without(members: Members, lost: int, head: bytes, data: bytes) -> list[object]:
    """The results of sending a message, with a short deadline, without the member *lost*."""
    until = short()
    works: list[Callable[[], object]] = [
        partial(members[0].send, head, memoryview(data), until),
        *(partial(got, one, until=until) for one in members[1:]),
    ]
    works[lost] = lambda: None
    return at_once(*works)


class CollectiveContract(Whole):
    """Subclass this and give it the fixture ``members``.

    ``members(size)`` returns that many connected members, by rank, each for a thread of its own,
    and closes them after the test. Members in one process are fine.
    """

    @pytest.fixture
    def members(self) -> Callable[[int], Members]:
        """A function that returns connected members."""
        raise NotImplementedError(f"give {type(self).__name__} a `members` fixture")

    @pytest.fixture
    def three(self, members: Callable[[int], Members]) -> Members:
        """Three of them."""
        three = members(3)
        assert [(one.rank, one.size, one.whole) for one in three] == [
            (rank, 3, True) for rank in range(3)
        ]
        return three

    @promise(
        "collective.1",
        "gives every message to all others, whole and in order",
        level="L1",
        clause="Collective.send",
        why="a rank would load other KV than the first one",
    )
    def test_every_message_arrives_everywhere(self, three: Members) -> None:
        """Of any size, without a head or with the longest, also from read-only memory."""
        dice = Random(7)  # noqa: S311 - nothing is secret
        sizes = [0, 1, 7, 4096, (1 << 20) + 3, 0, 100]
        messages = [
            (dice.randbytes(dice.choice([0, 1, MAX_HEAD])), dice.randbytes(size)) for size in sizes
        ]
        messages.append((b"\0 head\0\0", b"\0data\0"))

        def sends() -> None:
            for place, (head, data) in enumerate(messages):
                around = bytearray(b"?" + data + b"?")
                view = memoryview(around)[1 : 1 + len(data)]
                three[0].send(head, view.toreadonly() if place % 2 else view, soon())

        sent, *received = at_once(
            sends, *([lambda one=one: [got(one) for _ in messages] for one in three[1:]])
        )
        assert sent is None
        assert received == [messages, messages]

    @promise(
        "collective.2",
        "leaves a received message as it is until the member's next call",
        level="L2",
        clause="Collective.receive",
        why="KV would change while it is copied to the device",
    )
    def test_what_was_received_stays(self, three: Members) -> None:
        """Even if the sender's memory changes while the next message is under way."""
        memory = bytearray(b"a" * 5000)
        first = at_once(
            lambda: three[0].send(b"1", memoryview(memory), soon()),
            *[lambda one=one: one.receive(5000, soon()) for one in three[1:]],
        )
        memory[:] = b"b" * 5000
        seen = first[1]
        assert isinstance(seen, tuple)
        second = at_once(
            lambda: three[0].send(b"2", memoryview(memory), soon()),
            lambda: got(three[2]),
            lambda: (Event().wait(SHORT), bytes(seen[1]), got(three[1]))[1:],
        )
        assert second[1:] == [(b"2", b"b" * 5000), (b"a" * 5000, (b"2", b"b" * 5000))]

    @promise(
        "collective.3",
        "ends every call by its deadline, whichever members take no part",
        level="L4",
        clause="Collective",
        why="one rank that hangs would hold up all requests",
    )
    def test_nobody_waits_for_a_lost_member(self, members: Callable[[int], Members]) -> None:
        """A member without the message raises, and no member receives a different one."""
        data = bytes(range(256)) * 40_000
        for lost in range(3):
            three = members(3)
            found = without(three, lost, b"h", data)
            for rank, answer in enumerate(found):
                if rank and rank != lost and not isinstance(answer, CollectiveBroken):
                    assert lost, "the message has no sender"
                    assert answer == (b"h", data)
            if not lost:
                assert not any(one.whole for one in three[1:])

    @promise(
        "collective.4",
        "raises at once while a member is lost, and waits for no member",
        level="L4",
        clause="Collective",
        why="each load would wait for its deadline again",
    )
    def test_who_is_apart_does_not_wait(self, three: Members) -> None:
        """With any deadline; the others notice within theirs."""
        three[1].close()
        three[0].part()
        data = memoryview(b"data")
        for _ in range(3):
            assert not three[0].whole
            [sent] = at_once(lambda: three[0].send(b"", data, soon()))
            assert isinstance(sent, CollectiveBroken)
        at_once(lambda: got(three[2], until=short()))
        assert not three[2].whole
        [again] = at_once(lambda: got(three[2]))
        assert isinstance(again, CollectiveBroken)

    @promise(
        "collective.5",
        "takes no message that is longer than its receiver allows",
        level="L2",
        clause="Collective.receive",
        why="a sender gone wrong would take all memory of the others",
    )
    def test_a_message_has_a_limit(self, three: Members) -> None:
        """A member that refuses one parts, and raises; a message of the limit itself arrives."""
        data = bytes(1000)
        fits = at_once(
            lambda: three[0].send(b"", memoryview(data), soon()),
            *[lambda one=one: got(one, 1000) for one in three[1:]],
        )
        assert fits == [None, (b"", data), (b"", data)]
        found = at_once(
            lambda: three[0].send(b"", memoryview(data), short()),
            lambda: got(three[1], 999),
            lambda: got(three[2], 1000, short()),
        )
        assert isinstance(found[1], CollectiveBroken)
        assert not three[1].whole

    @promise(
        "collective.6",
        "can be closed twice, after which it is apart and the others learn of it",
        level="L0",
        clause="Collective.close",
        why="an engine that ends would hold up the others",
    )
    def test_who_leaves_is_lost_to_all(self, three: Members) -> None:
        """The other members do not connect again without it."""
        three[0].close()
        three[0].close()
        assert not three[0].whole
        [sent] = at_once(lambda: three[0].send(b"", memoryview(b"x"), soon()))
        assert isinstance(sent, CollectiveBroken)
        found = at_once(*[lambda one=one: got(one, until=short()) for one in three[1:]])
        assert all(isinstance(one, CollectiveBroken) for one in found)
        for one in three[1:]:
            assert not one.whole
            one.close()

    @promise(
        "collective.7",
        "is whole again once all members are there, with nothing left from before",
        level="L4",
        clause="Collective",
        why="one pause of one rank would have all load by themselves for ever",
    )
    def test_all_meet_again(self, three: Members) -> None:
        """A message that only some members have received is dropped for all."""
        old, new = b"old" * 1000, b"new" * 500
        for lost in (1, 2, 0):
            without(three, lost, b"old", old)
            for one in three:
                if one.whole:  # it may not have noticed: its next call would
                    one.part()
            pause, left = Event(), PATIENCE
            while False in [one.whole for one in three]:
                pause.wait(0.05)
                left -= 0.05
                assert left > 0, "they do not meet again"
            found = at_once(
                lambda: three[0].send(b"new", memoryview(new), soon()),
                *[lambda one=one: got(one) for one in three[1:]],
            )
            assert found == [None, (b"new", new), (b"new", new)]

    @promise(
        "collective.8",
        "refuses calls that mean nothing, and all stay together",
        level="L1",
        clause="Collective",
        why="a slip of one caller would part all ranks",
    )
    def test_nonsense_parts_nobody(self, three: Members) -> None:
        """The wrong rank, a head too long, a limit too large."""
        data = memoryview(b"data")
        for wrong in (
            lambda: three[1].send(b"", data, soon()),
            lambda: three[0].receive(10, soon()),
            lambda: three[0].send(bytes(MAX_HEAD + 1), data, soon()),
            lambda: three[1].receive(MAX_MESSAGE + 1, soon()),
            lambda: three[1].receive(-1, soon()),
        ):
            with pytest.raises(InvalidRequest):
                wrong()
        found = at_once(
            lambda: three[0].send(b"", data, soon()),
            *[lambda one=one: got(one) for one in three[1:]],
        )
        assert found == [None, (b"", b"data"), (b"", b"data")]

    @pytest.mark.thorough
    @promise(
        "collective.9",
        "answers at once if it is whole, from any thread, while another one waits in a call",
        level="L3",
        clause="Collective.whole",
        why="a request that only asks whether to load together would wait for other ranks' loads",
        hint="take no lock that a call holds while it waits, and send nothing",
    )
    def test_whole_does_not_wait(self, three: Members) -> None:
        """Before, during and after a loss."""
        found: list[object] = []

        def waits() -> None:
            found.append(got(three[1]))

        with UnderWay({"receive": waits}, patience=PATIENCE) as working:
            assert working.late(SHORT) == ["receive"]
            assert [promptly(partial(getattr, one, "whole"), PATIENCE) for one in three] == [
                True
            ] * 3
            at_once(lambda: three[0].send(b"h", memoryview(b"data"), soon()), lambda: got(three[2]))
        assert found == [(b"h", b"data")]
        with UnderWay({"lost": lambda: lost(three[2])}, patience=PATIENCE) as working:
            assert working.late(SHORT) == ["lost"]
            three[1].close()
            assert not promptly(lambda: three[1].whole, PATIENCE)
            promptly(lambda: three[0].whole, PATIENCE)


def lost(member: Collective) -> None:
    """Wait for a message that does not come, for ten short times."""
    with suppress(CollectiveBroken):
        got(member, until=Deadline.after(SystemClock(), 10 * SHORT))


def closed(members: Members) -> None:
    """Close all members, at the end of a fixture."""
    for one in members:
        with suppress(CollectiveBroken):
            one.close()
