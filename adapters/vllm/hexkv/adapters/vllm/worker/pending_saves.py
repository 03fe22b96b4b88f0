"""Saves under way, and the blocks of vLLM's memory that they still read.

A request that ends keeps its blocks until its saves have copied them. vLLM may give blocks to
another request sooner: those of a preempted request, or after a save was late. Such a save is void:
its window refuses to copy, and refuses a copy that has just ended, so that nothing is stored of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import TypeVar, cast

from hexkv.adapters.vllm.messages import Reused, Save
from hexkv.ports import Deadline, DeviceKV, InvalidRequest, KVLayout, Span, Transfer

Window = TypeVar("Window")

LATE = 5.0
"""Seconds for which a request that has ended keeps its blocks, at most."""


@dataclass(eq=False, slots=True)
class PendingSave:
    """A save whose blocks are still to be read."""

    step: int
    """The number of the step that computed them."""

    save: Save
    void: bool = False
    """True once its blocks may be another request's."""

    def check(self) -> None:
        """Return if its blocks hold what the step computed.

        Raises:
            InvalidRequest: they may be another request's.
        """
        if self.void:
            raise InvalidRequest("vLLM has given the blocks of this save to another request")

    def guard(self, window: Window) -> Window:
        """Return *window*, one for each shard or a single one, as long as :meth:`check` passes."""
        if isinstance(window, Sequence):
            return cast("Window", [_GuardedWindow(one, self) for one in window])
        return cast("Window", _GuardedWindow(cast("DeviceKV", window), self))


class PendingSaves:
    """The saves of one rank that are under way. Safe from any thread.

    Args:
        now: seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._late = LATE
        self._now = now
        self._saves: set[PendingSave] = set()
        self._ended: dict[str, float] = {}
        """When each request ended whose blocks vLLM keeps."""

        self._changed = Condition()

    def __len__(self) -> int:
        return len(self._saves)

    def add(self, step: int, save: Save) -> PendingSave:
        """Note that the blocks of *save* are to be read."""
        pending = PendingSave(step, save)
        with self._changed:
            self._saves.add(pending)
        return pending

    def done(self, saves: Iterable[PendingSave]) -> None:
        """Note that the blocks of *saves* are no longer read."""
        with self._changed:
            self._saves.difference_update(saves)
            self._changed.notify_all()

    def reused(self, which: Collection[Reused] | None) -> None:
        """Void the saves whose blocks vLLM gives to other requests; ``None``: all saves.

        Call it before the blocks are written.
        """
        with self._changed:
            for pending in self._saves:
                if which is None or (pending.step, pending.save.request) in which:
                    pending.void = True

    def free(self, ended: Iterable[str], seconds: float = 0.0) -> set[str]:
        """Return the requests whose blocks vLLM may free, each once.

        Args:
            ended: requests that have ended since the last call.
            seconds: to wait for one of them at most, where there is nothing else to do.
        """
        with self._changed:
            now = self._now()
            self._ended.update(dict.fromkeys(ended, now))
            if not self._ended:
                return set()
            if seconds:
                self._changed.wait_for(lambda: self._ended.keys() - self._reading(), seconds)
            late = {name for name, when in self._ended.items() if now - when >= self._late}
            for pending in self._saves:
                if pending.save.request in late:
                    pending.void = True
            free = late | (self._ended.keys() - self._reading())
            for name in free:
                del self._ended[name]
        return free

    def wait(self, seconds: float | None) -> bool:
        """Wait until no save is under way. False if some are after *seconds*."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._saves, seconds)

    def _reading(self) -> set[str]:
        return {pending.save.request for pending in self._saves}


class _GuardedWindow:
    """A window on blocks that may become another request's: a :class:`~hexkv.ports.DeviceKV`."""

    def __init__(self, window: DeviceKV, pending: PendingSave) -> None:
        self._window = window
        self._pending = pending

    @property
    def layout(self) -> KVLayout:
        return self._window.layout

    @property
    def tokens(self) -> int:
        return self._window.tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        self._pending.check()
        return _GuardedCopy(self._window.gather(spans, layers), self._pending)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        return self._window.scatter(spans, layers)


class _GuardedCopy:
    """A copy that counts only if its blocks were unchanged until it ended."""

    def __init__(self, copying: Transfer, pending: PendingSave) -> None:
        self._copying = copying
        self._pending = pending

    def wait(self, deadline: Deadline) -> bool:
        done = self._copying.wait(deadline)
        if done:
            self._pending.check()
        return done
