"""Runs obstore's coroutines for callers with threads and deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import Context
from threading import Lock, Thread
from typing import Any, TypeVar, TypeVarTuple

from hexkv.ports import Failed, StoreError, StoreUnreachable, TimedOut

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Late(StoreUnreachable):
    """The deadline passed."""


async def all_of(
    each: Sequence[Callable[[], Awaitable[T]]], failed: Callable[[StoreError], Any] | None = None
) -> list[Any]:
    """Run all of *works* concurrently and return their results; *failed* converts an error."""
    answers: list[Any] = []
    for answer in await asyncio.gather(*(one() for one in each), return_exceptions=True):
        if isinstance(answer, StoreError) and failed is not None:
            answers.append(failed(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers.append(answer)
    return answers


def as_outcome(error: StoreError) -> Failed | TimedOut:
    """The outcome of a read or write for *error*."""
    return TimedOut() if isinstance(error, Late) else Failed(error)


_CLOSING_SECONDS = 0.5


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop that tracks the threads that are about to wake it.

    A thread of the library wakes the loop with an answer, and needs the interpreter once more
    afterwards. If the interpreter ends in between, the thread aborts the process.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waking: dict[object, None] = {}

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        call = object()
        self.waking[call] = None
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        finally:
            del self.waking[call]  # a statement, not a call, behind which threads could switch

    def wait_for_wakers(self, seconds: float) -> None:
        """Wait until these threads are done, for *seconds* at most."""
        until = time.monotonic() + seconds
        while self.waking and time.monotonic() < until:
            time.sleep(0.001)


class RequestLoop:
    """An event loop in a thread of its own, which starts with the first request.

    The library's timeouts are set per client, for a whole request. A coroutine can be cancelled
    at any time, which ends its request: this is how each call has its own deadline.

    Args:
        most: the number of requests at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._loop: WatchedLoop | None = None
        self._thread: Thread | None = None
        self._closed = False
        self.free = asyncio.Semaphore(most)
        """For coroutines: one of the connections."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine*, which must keep the caller's deadline itself, and return its result.

        Raises:
            StoreError: the store was closed.
        """
        future = self.begin(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise StoreError("the store was closed") from None
        except BaseException:
            future.cancel()
            raise

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start *coroutine* without waiting; return a future of its result.

        Raises:
            StoreError: the store was closed.
        """
        try:
            with self._lock:
                return asyncio.run_coroutine_threadsafe(coroutine, self._running())
        except StoreError:
            coroutine.close()
            raise

    def close(self) -> None:
        """End the requests under way. Calling it twice is allowed."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSING_SECONDS)
            loop.wait_for_wakers(_CLOSING_SECONDS)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise StoreError("the store is closed")
        if self._loop is None:
            self._loop = WatchedLoop()
            self._thread = Thread(
                target=_serve, args=(self._loop,), name="hexkv-obstore", daemon=True
            )
            self._thread.start()
        return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # Let coroutines submitted just before start, so that they can be cancelled and notify
        # callers.
        loop.run_until_complete(asyncio.sleep(0))
        while left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()
