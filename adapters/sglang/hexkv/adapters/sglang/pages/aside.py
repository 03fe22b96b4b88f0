"""Calls that their caller can leave before they end.

SGLang stops its threads for storage when its cache is flushed, and waits for each of them on the
scheduler's thread, also for one that is inside a call of ours, which may wait for a store. So each
call is made by a worker. A caller that leaves gets an answer at once; nothing is copied for its
call from then on, for the memory is others'.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

from hexkv.adapters.sglang.pages.devices import Revocable
from hexkv.ports import DeviceKV

Answer = TypeVar("Answer")

_WORKERS = 8
"""SGLang calls from three threads; calls that were left may still wait for a store."""


class Call:
    """One call, and the windows that it copies from or to."""

    def __init__(self, otherwise: object) -> None:
        self.left = False
        self.answer: Future[Any] = Future()
        self._otherwise = otherwise
        self._windows: list[Revocable] = []

    def window(self, window: DeviceKV) -> DeviceKV:
        """*window*, until the caller leaves."""
        made = Revocable(window, lambda: not self.left)
        self._windows.append(made)
        return made

    def leave(self) -> None:
        """Answer the caller, once nothing is copied any longer."""
        self.left = True
        for window in self._windows:
            with window.moving:
                pass
        with suppress(InvalidStateError):
            self.answer.set_result(self._otherwise)


class Aside:
    """Calls of one backend. Safe from any thread."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(_WORKERS, "hexkv-call")
        self._calls: set[Call] = set()
        self._lock = Lock()
        self._stopped = False

    def do(self, work: Callable[[Call], Answer], otherwise: Answer) -> Answer:
        """Return *work*'s answer; *otherwise* if the caller leaves, or while calls are stopped."""
        call = Call(otherwise)
        with self._lock:
            if self._stopped:
                return otherwise
            self._calls.add(call)
        try:
            self._workers.submit(_run, work, call)
            answer: Answer = call.answer.result()
            return answer
        finally:
            with self._lock:
                self._calls.discard(call)

    def stop(self) -> None:
        """Have all callers leave, and answer new ones at once, until :meth:`go_on`."""
        with self._lock:
            self._stopped = True
            calls = list(self._calls)
        for call in calls:
            call.leave()

    def go_on(self) -> None:
        """Make calls again."""
        with self._lock:
            self._stopped = False

    def close(self) -> None:
        """Accept no further calls; wait for none."""
        self._workers.shutdown(wait=False)


def _run(work: Callable[[Call], object], call: Call) -> None:
    try:
        answer = work(call)
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        with suppress(InvalidStateError):
            call.answer.set_exception(error)
    else:
        with suppress(InvalidStateError):
            call.answer.set_result(answer)
