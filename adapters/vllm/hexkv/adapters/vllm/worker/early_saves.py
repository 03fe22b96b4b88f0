"""Saves that begin before their step ends: of layers that are computed, while others are.

Where a rank's KV is cut by layers, each part of a chunk has a key and a frame of its own. So it can
be stored, and pushed to the node that waits for it, once its last layer is computed. A chunk is
found when all of its parts are there: a step that never ends leaves nothing that can be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from hexkv.adapters.vllm.messages import Save, Step
from hexkv.adapters.vllm.worker.pending_saves import PendingSave, PendingSaves
from hexkv.ports import StoreReport

Begin = Callable[[PendingSave, int], "Future[StoreReport | None]"]
"""Begins to store one part of the layers of a save."""


@dataclass(slots=True)
class EarlySave:
    """The parts of a save that have begun."""

    pending: PendingSave
    parts: dict[int, Future[StoreReport | None]] = field(default_factory=dict)

    def reports(self) -> dict[int, StoreReport | None]:
        """Return the reports of its parts. A part that failed is left out, as if not begun."""
        return {part: one.result() for part, one in self.parts.items() if one.exception() is None}


@dataclass(slots=True)
class _UnderWay:
    """The saves of one step that have begun."""

    step: Step
    computed: set[str] = field(default_factory=set)
    begun: dict[int, EarlySave] = field(default_factory=dict)
    """By the place of a save among the step's."""


class EarlySaves:
    """The saves of one rank, which begin part by part. For vLLM's thread.

    Args:
        parts: for each part of the rank's layers, their names.
        begin: has another thread store a part, behind the work queued on the model's stream.
        pending: notes the blocks that are read.
    """

    def __init__(
        self, parts: Sequence[Collection[str]], begin: Begin, pending: PendingSaves
    ) -> None:
        self._parts = [frozenset(names) for names in parts]
        self._begin = begin
        self._pending = pending
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
            self.forget()
            self._current = _UnderWay(step)
        now = self._current
        before, after = now.computed, now.computed | {layer}
        now.computed = after
        for part, names in enumerate(self._parts):
            if not (names <= after and not names <= before):
                continue
            for place, save in enumerate(step.saves):
                if sound(save):
                    early = now.begun.get(place)
                    if early is None:
                        early = EarlySave(self._pending.add(step.number, save))
                        now.begun[place] = early
                    early.parts[part] = self._begin(early.pending, part)

    def take(self, step: Step, place: int) -> EarlySave | None:
        """Return the parts of one save of *step* that have begun, once; ``None``: none has."""
        return self._current.begun.pop(place, None) if self._current.step is step else None

    def forget(self) -> None:
        """Void the saves that were not taken: their step did not end, or not well."""
        left, self._current.begun = self._current.begun, {}
        for early in left.values():
            early.pending.void = True
        self._pending.done(early.pending for early in left.values())
