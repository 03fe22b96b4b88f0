"""Saves that begin before their step ends: of layers that are computed, while others are.

Where a rank's KV is cut by layers, each part of a chunk has a key and a frame of its own. So it can
be stored, and pushed to the node that waits for it, once its last layer is computed. A chunk is
found when all of its parts are there: a step that never ends leaves nothing that can be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from hexkv.adapters.vllm.messages import Save, Step
from hexkv.ports import StoreReport

StorePart = Callable[[Save, int], StoreReport | None]
"""Stores one part of the layers of a save; ``None``: its namespace is not known."""


@dataclass(slots=True)
class _UnderWay:
    """The saves of one step that have begun."""

    step: Step
    computed: set[str] = field(default_factory=set)
    begun: dict[int, dict[int, Future[StoreReport | None]]] = field(default_factory=dict)
    """By the place of a save among the step's, and by part."""


class EarlySaves:
    """The saves of one rank, which begin part by part. For vLLM's thread.

    Args:
        parts: for each part of the rank's layers, their names.
        store: called by a thread of this, one call at a time.
        beside: a context for the copies, behind the work queued on the model's stream by now.
    """

    def __init__(
        self,
        parts: Sequence[Collection[str]],
        store: StorePart,
        beside: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._parts = [frozenset(names) for names in parts]
        self.store = store
        self._beside = beside
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hexkv-save")
        self._current = _UnderWay(Step())

    @property
    def parts(self) -> range:
        """Their numbers."""
        return range(len(self._parts))

    def computed(self, step: Step, layer: str, sound: Callable[[Save], bool]) -> None:
        """Begin to store the parts that are complete now that *layer* is, for all of *step*.

        Args:
            step: under way.
            layer: whose KV is in vLLM's memory now.
            sound: returns True if a save stores only KV computed from KV that had arrived.
        """
        if self._current.step is not step:
            self.wait()  # its blocks may be others' from now on
            self._current = _UnderWay(step)
        now = self._current
        before, after = now.computed, now.computed | {layer}
        now.computed = after
        for part, names in enumerate(self._parts):
            if not (names <= after and not names <= before):
                continue
            for place, save in enumerate(step.saves):
                if sound(save):
                    context = self._beside()
                    future = self._thread.submit(self._run, context, save, part)
                    now.begun.setdefault(place, {})[part] = future

    def wait(self, step: Step | None = None) -> None:
        """Wait for the saves of *step* that have begun, or of the last one.

        No deadline but those of stores may cut it short: the blocks that are read may be another
        request's afterwards.
        """
        if step is None or self._current.step is step:
            wait([one for parts in self._current.begun.values() for one in parts.values()])

    def begun(self, step: Step, place: int) -> dict[int, StoreReport | None]:
        """Return the reports of the parts of one save that have begun, after :meth:`wait`.

        A part that failed is left out: it counts as not begun.
        """
        if self._current.step is not step:
            return {}
        parts = self._current.begun.get(place, {})
        return {part: one.result() for part, one in parts.items() if one.exception() is None}

    def close(self) -> None:
        """Store nothing more. Twice is allowed."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(
        self, context: AbstractContextManager[object], save: Save, part: int
    ) -> StoreReport | None:
        with context:
            return self.store(save, part)
