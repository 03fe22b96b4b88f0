"""The least that a store over redis-py is, to be measured beside the Redis adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import redis
from redis._parsers import Encoder, _HiredisParser, _RESP3Parser
from redis.backoff import ExponentialWithJitterBackoff
from redis.connection import HiredisRespSerializer, PythonRespSerializer
from redis.retry import Retry

from benchmarks.rig.measure import must
from hexkv.ports import (
    ChunkKey,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreUnreachable,
    TimedOut,
    WriteOutcome,
)

Parser = Literal["python", "hiredis"]

PREFIX = b"bench:"

_GROUP, _GROUP_BYTES = 16, 4 << 20
"""Commands of a pipeline, and bytes of their values, as the adapter groups them."""

_READ_SIZE = 256 << 10
"""Bytes that a socket is asked for: cheaper than redis-py's 32 KiB, and no cheaper beyond."""

_BACKOFF = ExponentialWithJitterBackoff(base=0.01, cap=1)
"""Between tries, as ``redis.Redis()`` has it."""

_JOINED = 6000
"""Bytes up to which redis-py joins the pieces of a request, its own default."""


class RedisPy:
    """A store of pipelines on a pool's connections.

    Args:
        url: of the server.
        parser: redis-py as it comes (``python``), or as it is where hiredis is installed.
        timeout: seconds for each operation on a socket. They are of the pool's connections, so
            a call's deadline is looked at between pipelines only.
        retries: how often a call is made again; ``redis.Redis()`` has 10 by default, a pool 0.
    """

    def __init__(self, url: str, parser: Parser, *, timeout: float, retries: int = 0) -> None:
        options: dict[str, Any] = {"retry": Retry(_BACKOFF, retries)}
        if parser == "hiredis":
            options |= {"parser_class": _HiredisParser, "command_packer": HiredisRespSerializer()}
        else:
            encoder = Encoder("utf-8", "strict", False)  # type: ignore[no-untyped-call]
            packer = PythonRespSerializer(_JOINED, encoder.encode)
            options |= {"parser_class": _RESP3Parser, "command_packer": packer}
        self._client = redis.Redis.from_url(
            url,
            socket_read_size=_READ_SIZE,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            **options,
        )

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        outcomes: list[WriteOutcome] = []
        with _rest_of(outcomes, len(items)):
            while len(outcomes) < len(items):
                first = len(outcomes)
                group = items[first : first + _count(items[first].frame.nbytes)]
                with self._pipeline(deadline) as pipeline:
                    for key, frame in group:
                        pipeline.set(PREFIX + key, frame)
                    must(all(pipeline.execute()), "a value was not taken")
                outcomes += [Stored(frame.nbytes) for _, frame in group]
        return outcomes

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        outcomes: list[ReadOutcome] = []
        count = 1
        with _rest_of(outcomes, len(keys)):
            while len(outcomes) < len(keys):
                with self._pipeline(deadline) as pipeline:
                    for key in keys[len(outcomes) : len(outcomes) + count]:
                        pipeline.get(PREFIX + key)
                    values = pipeline.execute()
                for value in values:
                    outcomes.append(_land(value, len(outcomes), sink))
                count = _count(max(len(value or b"") for value in values))
        return outcomes

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        with self._pipeline(deadline) as pipeline:
            for key in keys:
                pipeline.exists(PREFIX + key)
            return [bool(found) for found in pipeline.execute()]

    def close(self) -> None:
        self._client.close()

    def _pipeline(self, deadline: Deadline) -> redis.client.Pipeline:
        if deadline.expired:
            raise redis.TimeoutError
        return self._client.pipeline(transaction=False)


def _count(size: int) -> int:
    """How many values of *size* bytes go into one pipeline."""
    return min(_GROUP, max(1, _GROUP_BYTES // max(size, 1)))


@contextmanager
def _rest_of(outcomes: list[Any], count: int) -> Iterator[None]:
    """Give what has no outcome after a failure the outcome of that."""
    rest: Failed | TimedOut = TimedOut()
    try:
        yield
    except redis.TimeoutError:
        pass
    except redis.ConnectionError as error:
        rest = Failed(StoreUnreachable(str(error)))
    outcomes += [rest] * (count - len(outcomes))


def _land(value: bytes | None, index: int, sink: Sink) -> ReadOutcome:
    """Copy *value* to where it belongs: redis-py gives values as ``bytes`` of their own."""
    if value is None:
        return Miss()
    room = sink.room(index, len(value))
    if room is None:
        return Miss(Reason.REFUSED)
    room[:] = value
    return Hit(len(value))
