"""What both stores share: a pool of connections, and errors as outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hexkv.adapters.lmserver._pool import Address, Peer, Pool
from hexkv.adapters.lmserver._stream import Stream
from hexkv.ports import Deadline, Failed, Miss, MissReason, Sink, StoreUnreachable, TimedOut

T = TypeVar("T")

_SCRATCH = 256 << 10


class Remote:
    """Calls to one server.

    Args:
        address: of the server, for messages.
        connect: reaches it.
        greet: makes a connection ready for requests.
        connections: how many calls may be under way at a time.
    """

    def __init__(
        self,
        address: Address,
        connect: Callable[[Deadline], Stream],
        greet: Callable[[Stream, Deadline], Peer],
        connections: int,
    ) -> None:
        self._address = address
        self._pool = Pool(connect, greet, connections)

    @contextmanager
    def calling(self, deadline: Deadline) -> Iterator[Peer]:
        """A connection for one call whose failure is the whole call's.

        Raises:
            StoreUnreachable: no answer, or none in time.
        """
        try:
            with self._pool.peer(deadline) as peer:
                yield peer
        except OSError as error:
            raise self._unreachable(error) from error

    def collect(
        self,
        outcomes: list[T | None],
        deadline: Deadline,
        call: Callable[[Peer], None],
    ) -> list[T | Failed | TimedOut]:
        """Make *call*, which fills in *outcomes*; what it could not fill in has failed."""
        rest: Failed | TimedOut = TimedOut()
        try:
            with self._pool.peer(deadline) as peer:
                call(peer)
        except TimeoutError:
            pass
        except OSError as error:
            rest = Failed(self._unreachable(error))
        return [rest if outcome is None else outcome for outcome in outcomes]

    def close(self) -> None:
        """Close every connection; calls that are under way fail."""
        self._pool.close()

    def _unreachable(self, error: OSError) -> StoreUnreachable:
        if isinstance(error, TimeoutError):
            return StoreUnreachable(f"{self._address} did not answer in time")
        return StoreUnreachable(f"{self._address}: {error}")


def land(
    stream: Stream, index: int, size: int, sink: Sink, deadline: Deadline
) -> memoryview | Miss:
    """Receive a value into the room that *sink* gives; read past it where there is none."""
    into = sink.room(index, size)
    if into is not None:
        stream.receive([into], deadline)
        return into
    scratch = memoryview(bytearray(min(size, _SCRATCH)))
    left = size
    while left:
        part = scratch[:left]
        stream.receive([part], deadline)
        left -= len(part)
    return Miss(MissReason.REFUSED)


def slices(count: int, most: int) -> Iterator[range]:
    """``range(count)`` in pieces of at most *most*."""
    for start in range(0, count, most):
        yield range(start, min(start + most, count))


def plain(frame: memoryview) -> memoryview:
    """*frame* as bytes, whatever its format was."""
    return frame if frame.itemsize == 1 and frame.ndim == 1 else frame.cast("B")
