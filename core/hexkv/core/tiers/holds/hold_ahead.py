"""Holds of prefetches: the tiers are queried in the background, and the reads begin after that."""

from __future__ import annotations

from collections.abc import Collection
from threading import Condition

from hexkv.core.tiers.cache import find_tiers_soon
from hexkv.core.tiers.holds.hold import LocalHold
from hexkv.core.tiers.matching import Found
from hexkv.ports import Deadline, frame_bytes


class HoldAhead(LocalHold):
    """Chunks that are read ahead of the request for them. It never waits for memory."""

    _asking = True
    """True until the tiers of the chunks are known."""

    def wait(self, deadline: Deadline, first: int | None = None) -> bool:
        return self.known(deadline) and super().wait(deadline, first)

    @property
    def bytes(self) -> int:
        if not self._asking:
            return super().bytes
        total = sum([frame_bytes(spec.raw_bytes) for spec in self._wanted])
        return total if self._terms.most is None else min(total, self._terms.most)

    def known(self, deadline: Deadline) -> bool:
        if not self._asking:
            return True
        with self._answered:
            executor = self._stack.runtime.executor
            return executor.wait(self._answered, lambda: not self._asking, deadline)

    def keep(self, deadline: Deadline, encoded: Collection[str] = ()) -> bool:
        if self._asking:  # what the tiers hold may not be known for long
            self.release()
            return False
        return super().keep(deadline, encoded)

    def answer(self, found: Found) -> None:
        """Begin the reads, on the caller's thread or on the worker that queried the last store."""
        try:
            if not self._released:
                self._begin(found)
        finally:
            with self._answered:
                self._asking = False
                self._answered.notify_all()
            if self._released:
                self.release()

    def _start(self) -> None:
        self._answered = Condition()
        keys = [spec.key for spec in self._wanted]
        tiers = self._stack.serving(keys, ahead=True)
        find_tiers_soon(tiers, keys, self._deadline, self.answer)
