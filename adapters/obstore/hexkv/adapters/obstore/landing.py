"""Passes bodies from the loop's thread into the memory that a sink returns.

The caller's thread calls the sink, and copies: a slow sink does not delay other callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

from hexkv.adapters.obstore.requests import Late, RequestLoop, all_of, as_outcome
from hexkv.ports import Deadline, ReadOutcome, Sink, StoreError, TimedOut

Work: TypeAlias = Callable[[], bool]


class Landing:
    """The reads of one call.

    Each has at most one piece of its body that is not copied yet.
    """

    def __init__(self, requests: RequestLoop, sink: Sink, deadline: Deadline) -> None:
        self._requests = requests
        self._sink = sink
        self._deadline = deadline
        self._work: SimpleQueue[tuple[Work, asyncio.Future[bool]] | None] = SimpleQueue()
        self._buffers: dict[int, memoryview] = {}

    def outcomes(
        self, reads: Sequence[Callable[[int], Awaitable[ReadOutcome]]]
    ) -> Sequence[ReadOutcome]:
        """Run *reads*, each with its number as argument; return their outcomes.

        Raises:
            StoreError: the store was closed.
        """
        found: dict[int, ReadOutcome] = {}

        async def one(i: int) -> None:
            try:
                found[i] = await reads[i](i)
            except StoreError as error:
                found[i] = as_outcome(error)

        future = self._requests.begin(all_of([partial(one, i) for i in range(len(reads))]))
        future.add_done_callback(lambda _: self._work.put(None))
        try:
            while (next_ := self._next()) is not None:
                work, answer = next_
                done = None if self._deadline.expired else work()
                with suppress(RuntimeError):  # the loop was closed: no coroutine waits for it
                    answer.get_loop().call_soon_threadsafe(_answered, answer, done)
            closed = future.cancelled()  # never by this module
        finally:
            future.cancel()
            for room in self._buffers.values():
                room.release()
        if closed:
            raise StoreError("the store was closed")
        return [found.get(i, TimedOut()) for i in range(len(reads))]

    def _next(self) -> tuple[Work, asyncio.Future[bool]] | None:
        """The next work item; ``None`` if all reads are done, or the deadline has passed."""
        try:
            return self._work.get(timeout=self._deadline.remaining())
        except Empty:
            return None

    async def room(self, i: int, size: int) -> bool:
        """Return True if the sink has memory for chunk *i*, of *size* bytes."""
        return await self._asked(partial(self._ask, i, size))

    async def land(self, i: int, at: int, piece: object) -> None:
        """Have *piece* copied to byte *at* of chunk *i*.

        Raises:
            Late: the deadline passed before that.
        """
        await self._asked(partial(self._copy, i, at, piece))

    def _ask(self, i: int, size: int) -> bool:
        given = self._sink.room(i, size)
        if given is not None:
            # Released at the end: the traceback of an error would keep it.
            self._buffers[i] = given.cast("B")
        return given is not None

    def _copy(self, i: int, at: int, piece: object) -> bool:
        data = memoryview(piece)  # type: ignore[arg-type] # the library's bytes have a buffer
        self._buffers[i][at : at + len(data)] = data
        return True

    async def _asked(self, work: Work) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._work.put((work, answer))
        return await answer


def _answered(answer: asyncio.Future[bool], done: bool | None) -> None:
    if answer.done():
        return
    if done is None:
        answer.set_exception(Late("no time to copy what came"))
    else:
        answer.set_result(done)
