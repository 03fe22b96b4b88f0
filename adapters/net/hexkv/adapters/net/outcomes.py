"""What calls over connections give for each chunk of a batch, however they end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    Deadline,
    Failed,
    Miss,
    MissReason,
    Sink,
    StoreError,
    StoreUnreachable,
    TimedOut,
)


class Answers(Protocol):
    """A list of outcomes, with ``None`` where there is none yet."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> object: ...

    def __setitem__(self, place: int, outcome: Failed | TimedOut, /) -> None: ...


@contextmanager
def settling(answers: Answers, which: Iterable[int] | None = None) -> Iterator[None]:
    """While a block notes answers as they come: what has none when it fails gets its error.

    Args:
        answers: by the chunk's place in the batch; ``None`` where there is none yet.
        which: the places that the block is about; ``None`` for all.
    """
    left: Failed | TimedOut | None = None
    try:
        yield
    except OutOfTime:
        left = TimedOut()
    except StoreError as error:
        left = Failed(error)
    if left is not None:
        for place in range(len(answers)) if which is None else which:
            if answers[place] is None:
                answers[place] = left


@contextmanager
def answering(address: Address) -> Iterator[None]:
    """For calls that fail as a whole: a passed deadline is a server that did not answer.

    Raises:
        StoreUnreachable: the deadline passed.
    """
    try:
        yield
    except OutOfTime as error:
        raise StoreUnreachable(f"{address} did not answer in time") from error


def land(
    stream: Stream, index: int, size: int, sink: Sink, deadline: Deadline
) -> memoryview | Miss:
    """Receive a value into the room that *sink* gives; read past it where there is none."""
    into = sink.room(index, size)
    if into is not None:
        stream.fill(into, deadline)
        return into
    stream.skip(size, deadline)
    return Miss(MissReason.REFUSED)


def slices(count: int, most: int) -> Iterator[range]:
    """``range(count)`` in pieces of at most *most*."""
    for start in range(0, count, most):
        yield range(start, min(start + most, count))


def plain(frame: memoryview) -> memoryview:
    """*frame* as bytes, whatever its format is."""
    return frame if frame.itemsize == 1 and frame.ndim == 1 else frame.cast("B")
