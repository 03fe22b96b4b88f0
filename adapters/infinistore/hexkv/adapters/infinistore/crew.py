"""Threads that make blocking calls, each with a connection of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from hexkv.adapters.infinistore.client import InfinityConnection
from hexkv.ports import Deadline, StoreError, StoreUnreachable

T = TypeVar("T")


class _Call(Generic[T]):
    __slots__ = ("answer", "deadline", "error", "over", "work")

    def __init__(self, work: Callable[[InfinityConnection], T], deadline: Deadline) -> None:
        self.work = work
        self.deadline = deadline
        self.answer: list[T] = []
        self.error: Exception | None = None
        self.over = Event()


class Crew:
    """At most *most* threads, daemons: a call of the library may never return."""

    def __init__(self, connect: Callable[[], InfinityConnection], most: int) -> None:
        self._connect = connect
        self._most = most
        self._threads = 0
        self._busy = 0
        self._closed = False
        self._waiting: set[_Call[object]] = set()
        self._queue: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._lock = Lock()

    def call(self, work: Callable[[InfinityConnection], T], deadline: Deadline) -> T:
        """Call *work* with a connection and return its result.

        Raises:
            TimeoutError: too late; the call goes on, and its answer is dropped.
            StoreUnreachable: it failed.
            StoreError: this is closed.
        """
        call = _Call(work, deadline)
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            self._waiting.add(call)  # type: ignore[arg-type]
            if len(self._waiting) > self._threads - self._busy and self._threads < self._most:
                self._threads += 1
                Thread(target=self._run, name="hexkv infinistore", daemon=True).start()
        self._queue.put(call)  # type: ignore[arg-type]
        done = call.over.wait(deadline.remaining())
        with self._lock:
            self._waiting.discard(call)
        if call.answer:
            return call.answer[0]
        if not done:
            raise TimeoutError
        if call.error is not None:
            raise StoreUnreachable(f"InfiniStore: {call.error}") from call.error
        raise StoreError("the store is closed")

    def close(self) -> None:
        """Release all waiters, and end each thread when its call returns."""
        with self._lock:
            self._closed = True
            for call in self._waiting:
                call.over.set()
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)

    def _run(self) -> None:
        client: InfinityConnection | None = None
        while (call := self._queue.get()) is not None and not self._closed:
            if call.deadline.expired:  # the caller has given up
                call.over.set()
                continue
            with self._lock:
                self._busy += 1
            try:
                if client is None:
                    client = self._connect()
                call.answer.append(call.work(client))
            except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
                call.error = error
                _end(client)
                client = None
            if call.deadline.remaining() <= 0:
                _end(client)  # a slow connection may be out of step
                client = None
            with self._lock:
                self._busy -= 1
            call.over.set()
            del call
        _end(client)


def _end(client: InfinityConnection | None) -> None:
    if client is not None:
        with suppress(Exception):
            client.close()
