"""Makes several requests at once, on the caller's thread and a few others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from hexkv.ports import StoreError

T = TypeVar("T")


class Crew:
    """Threads that make the requests of a batch concurrently; they start with the first batch.

    Args:
        width: the number of requests of all batches at once, besides those on callers' threads.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._threads = ThreadPoolExecutor(width, "hexkv-s3") if width else None

    def each(self, count: int, do: Callable[[int], T]) -> list[T]:
        """Return the result of *do* for every number below *count*, once all are done.

        The caller's thread and all idle threads take one number after the other. The caller
        does not wait for threads that have not begun, so that *do* may call this, too.
        """
        done: dict[int, T] = {}
        failures: list[BaseException] = []
        left = iter(range(count))
        lock = Lock()

        def work() -> None:
            while not failures:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                try:
                    done[number] = do(number)
                except BaseException as error:  # noqa: BLE001 - raised again by the caller
                    failures.append(error)

        others = []
        if self._threads is not None:
            try:
                others = [self._threads.submit(work) for _ in range(min(count - 1, self._width))]
            except RuntimeError as error:
                raise StoreError("the store is closed") from error
        work()
        for other in others:
            if not other.cancel():
                other.result()
        if failures:
            raise failures[0]
        return [done[number] for number in range(count)]

    def close(self) -> None:
        """Let the threads end after their present requests. Calling it twice is allowed."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
