"""The cache for asyncio: each call runs in one of a few threads, and none outlives its task.

async with AsyncCache(open_cache("cache.yaml", namespace=namespace)) as cache:
got = await cache.retrieve(tokens, window)
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, Self, TypeVar

from hexkv.api import Cache, EngineClosed

__all__ = ["AsyncCache"]

P = ParamSpec("P")
T = TypeVar("T")


class AsyncCache:
    """A cache whose calls are awaited. Arguments and results are those of :class:`Cache`.

    A cancelled task whose call has not begun ends at once; one whose call is running ends with it,
    after the call's deadline at most, because the thread still uses the window. Layerwise requests
    belong to the thread that computes: take them of ``cache``, as all other calls.
    """

    def __init__(self, cache: Cache, *, threads: int = 4) -> None:
        """Call *cache* in *threads* threads at most. Leaving the context closes it."""
        self.cache = cache
        self._threads = ThreadPoolExecutor(threads + 1, "hexkv async")  # one for the close
        self._free = asyncio.Semaphore(threads)
        self._closing: Future[None] | None = None
        self.lookup = self._awaited(cache.lookup)
        self.lookup_many = self._awaited(cache.lookup_many)
        self.retrieve = self._awaited(cache.retrieve)
        self.store = self._awaited(cache.store)
        self.pin = self._awaited(cache.pin)
        self.clear = self._awaited(cache.clear)
        self.flush = self._awaited(cache.flush)
        self.prefetch = cache.prefetch
        """Waits for no tier, as ``cancel`` and ``unpin``: called in the loop."""

        self.cancel = cache.cancel
        self.unpin = cache.unpin

    def _awaited(self, call: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        """Return *call* as a coroutine function, with the same arguments and result."""

        async def awaited(*args: P.args, **kwargs: P.kwargs) -> T:
            run = asyncio.get_running_loop().run_in_executor
            if not self._closing:
                async with self._free:
                    if not self._closing:
                        work = partial(copy_context().run, call, *args, **kwargs)
                        return await _ended(run(self._threads, work))
            raise EngineClosed("the cache was closed")

        return awaited

    async def close(self) -> None:
        """Close the cache and end the threads; a second close waits for the first.

        A close that is cancelled ends with the cache closed, after the deadline of a close at most.
        """
        if self._closing is None:
            run = asyncio.get_running_loop().run_in_executor
            self._closing = run(self._threads, self.cache.close)
            self._threads.shutdown(wait=False)
        await _ended(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _ended(running: Future[T]) -> T:
    """Return the result of *running*. If this is cancelled, end after it."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        running.exception()
        raise
