"""Waits for threads that may never end, in time that the process was able to run.

A promise to answer in time is measured by a clock that stands still while the process does: on a
busy machine a process that cannot run is late through no fault of the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from threading import Thread
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

_STEP = 0.05
"""Seconds of one wait. It counts as one wait however long the process could not run."""


def still_running(threads: Sequence[Thread], patience: float) -> list[Thread]:
    """Those of *threads* that have not ended after *patience* seconds of this process's time."""
    for _ in range(ceil(patience / _STEP)):
        left = [thread for thread in threads if thread.is_alive()]
        if not left:
            return []
        left[0].join(_STEP)
    return [thread for thread in threads if thread.is_alive()]


class UnderWay:
    """Runs *works* in threads during the block; their exceptions are raised at its end.

    Args:
        works: the functions, by the name of their thread.
        over: makes them end, if they would not otherwise.
        patience: seconds after *over* within which they have to end.
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
        """The names of the threads that have not ended after *patience* seconds."""
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
    """Return or raise the result of *call*; fail if it takes longer than *patience* seconds."""
    given: list[T] = []
    with UnderWay({"call": lambda: given.append(call())}, patience=patience) as working:
        assert not working.late(patience), f"no answer within {patience} seconds"
    return given[0]
