"""Several requests at once: the caller's thread does its share, a few others help."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from hexkv.ports import StoreError

T = TypeVar("T")


class Crew:
    """Threads that make the requests of a batch side by side; none before the first batch.

    Args:
        width: how many requests of all batches are made at once, beside the callers' own.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._threads = ThreadPoolExecutor(width, "hexkv-s3") if width else None

    def each(self, count: int, do: Callable[[int], T]) -> list[T]:
        """What *do* gives for every number below *count*, once all are done.

        The caller's thread takes one number after the other, and so does whoever has nothing
        else to do; it waits for nobody who has not begun. So work may itself be shared out.
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
        """Let the threads end with what they are doing. Calling it twice is allowed."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
