"""Runs calls that cannot be interrupted on threads of their own, so that callers can give up."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from hexkv.ports import StoreError, StoreUnreachable

T = TypeVar("T")


class OutOfTime(Exception):
    """The deadline passed first. The call goes on, and its answer is dropped."""


class _Running(Generic[T]):
    __slots__ = ("_after", "_call", "answer", "error", "over")

    def __init__(self, call: Callable[[], T], after: Callable[[], None]) -> None:
        self._call = call
        self._after = after
        self.answer: list[T] = []
        self.error: BaseException | None = None
        self.over = Event()

    def do(self) -> None:
        try:
            self.answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiter
            self.error = error
        finally:
            self._after()


class CallThreads:
    """Threads that run calls; they are daemons, because a call may hang for half a minute.

    A call must not touch memory that its caller may reuse before the call ends.
    """

    def __init__(self, name: str, most: int = 32) -> None:
        self._name = name
        self._most = most
        self._queue: SimpleQueue[_Running[object] | None] = SimpleQueue()
        self._threads = 0
        self._under_way: set[_Running[object]] = set()
        self._closed = False
        self._lock = Lock()

    def run(
        self, call: Callable[[], T], seconds: float, after: Callable[[], None] = lambda: None
    ) -> T:
        """Return or raise the result of *call*.

        Args:
            call: run by one of the threads.
            seconds: to wait for it.
            after: called when the call has ended, or is refused.

        Raises:
            OutOfTime: not within *seconds*.
            StoreUnreachable: every thread hangs in a call, or no thread can be started.
            StoreError: closed, before or during the call.
        """
        running = _Running(call, after)
        with self._lock:
            if self._closed or len(self._under_way) == self._most:
                after()
                if self._closed:
                    raise StoreError("the store is closed")
                raise StoreUnreachable(f"mooncake: {self._most} calls hang")
            if len(self._under_way) >= self._threads:
                try:
                    Thread(target=self._work, name=f"hexkv {self._name}", daemon=True).start()
                except RuntimeError as error:  # the system starts no further thread
                    after()
                    raise StoreUnreachable(str(error)) from error
                self._threads += 1
            self._under_way.add(running)  # type: ignore[arg-type]
        self._queue.put(running)  # type: ignore[arg-type]
        if not running.over.wait(seconds):
            raise OutOfTime
        if running.answer:
            return running.answer[0]
        raise running.error or StoreError("the store is closed")

    def close(self) -> None:
        """Release all waiters, and end the threads, each when it is idle."""
        with self._lock:
            self._closed = True
            for running in self._under_way:
                running.over.set()
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._queue.put(None)

    def _work(self) -> None:
        while (running := self._queue.get()) is not None:
            running.do()
            with self._lock:
                self._under_way.discard(running)
            running.over.set()
            del running
