"""Waiting for threads that may never end, in time that this process really had.

A promise to answer in time is measured by a clock that stands still while the process does: what
a busy machine keeps from running is late through no fault of an adapter's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from threading import Thread
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

_STEP = 0.05
"""Seconds of one wait. However long the machine lets the process stand still, it is one wait."""


def still_running(threads: Sequence[Thread], patience: float) -> list[Thread]:
    """Those of *threads* that have not ended after *patience* seconds of this process's time."""
    for _ in range(ceil(patience / _STEP)):
        left = [thread for thread in threads if thread.is_alive()]
        if not left:
            return []
        left[0].join(_STEP)
    return [thread for thread in threads if thread.is_alive()]


class UnderWay:
    """Threads that do *works* meanwhile; what they raise is raised at the end.

    Args:
        works: by the name of the thread that does it.
        over: tells them to end, where they would not by themselves.
        patience: seconds after that in which they have to.
    """

    def __init__(
        self,
        works: Mapping[str, Callable[[], object]],
        over: Callable[[], object] | None = None,
        *,
        patience: float,
    ) -> None:
        self._failures: list[BaseException] = []
        self._over = over
        self._patience = patience

        def run(work: Callable[[], object]) -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
                self._failures.append(error)

        self._threads = [
            Thread(target=run, args=(work,), name=name, daemon=True) for name, work in works.items()
        ]

    def late(self, patience: float) -> list[str]:
        """The names of those that have not ended after *patience* seconds."""
        return [thread.name for thread in still_running(self._threads, patience)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over is not None:
            self._over()
        late = self.late(self._patience) if kind is None else []
        if self._failures:
            raise self._failures[0]
        assert not late, f"{' and '.join(late)} did not come back"


def promptly(call: Callable[[], T], patience: float) -> T:
    """What *call* gives or raises; a failure if it takes longer than *patience* seconds."""
    given: list[T] = []
    with UnderWay({"call": lambda: given.append(call())}, patience=patience) as working:
        assert not working.late(patience), f"no answer within {patience} seconds"
    return given[0]
