"""The outcomes of calls over connections for each chunk of a batch, also after errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.pool import Connection, Pool
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    Deadline,
    Failed,
    Miss,
    Reason,
    Sink,
    StoreError,
    StoreUnreachable,
    TimedOut,
)

T = TypeVar("T")
C = TypeVar("C", bound=Connection)


def outcome_of(error: OutOfTime | StoreError) -> Failed | TimedOut:
    """Return the outcome of a chunk whose call failed with *error*."""
    return TimedOut() if isinstance(error, OutOfTime) else Failed(error)


def collect(
    pool: Pool[C], outcomes: list[T | None], deadline: Deadline, call: Callable[[C], None]
) -> list[T | Failed | TimedOut]:
    """Make *call* over a connection: it fills in *outcomes*, and the rest has failed."""
    rest: Failed | TimedOut = TimedOut()
    try:
        with pool.connection(deadline) as connection:
            call(connection)
    except (OutOfTime, StoreError) as error:
        rest = outcome_of(error)
    return [rest if outcome is None else outcome for outcome in outcomes]


@contextmanager
def answering(address: Address) -> Iterator[None]:
    """Report a passed deadline as an unreachable server, for calls that fail as a whole.

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
    """Receive a value into memory that *sink* gives; skip it if there is none."""
    into = sink.room(index, size)
    if into is not None:
        stream.fill(plain(into), deadline)
        return into
    stream.skip(size, deadline)
    return Miss(Reason.REFUSED)


def slices(count: int, most: int) -> Iterator[range]:
    """Yield ``range(count)`` in pieces of at most *most*."""
    for start in range(0, count, most):
        yield range(start, min(start + most, count))


def plain(frame: memoryview) -> memoryview:
    """Return *frame* as bytes, whatever its format is."""
    return frame if frame.itemsize == 1 and frame.ndim == 1 else frame.cast("B")
