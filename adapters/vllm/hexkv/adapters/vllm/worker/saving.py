"""Stores a rank's KV from vLLM's memory: at the end of a step, or during it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Generic, TypeVar

from hexkv.adapters.vllm.messages import Save, Step
from hexkv.adapters.vllm.metrics.events import BlockInfo, Ledger
from hexkv.adapters.vllm.metrics.metrics import Tally
from hexkv.adapters.vllm.worker.early_saves import EarlySaves
from hexkv.adapters.vllm.worker.rank_cache import LayerParts, RankCache, Windows, stored_by_all
from hexkv.adapters.vllm.worker.serving import Scopes
from hexkv.ports import Namespace, StoreReport, traced

Window = TypeVar("Window")

Sound = Callable[[Save], bool]
"""Returns True if a save stores only KV that was computed from KV that had arrived."""


class Saving(Generic[Window]):
    """Stores what a step has computed. For vLLM's thread.

    Args:
        engine: the rank's.
        windows: on its KV memory.
        scopes: namespaces of requests.
        ledger: expects full chunks before they are stored, if KV events are published.
        chunk: tokens of a full one.
        each: the number of keys that a chunk has here.
        tally: the counters.
    """

    def __init__(
        self,
        engine: RankCache[Window],
        windows: Windows[Window],
        scopes: Scopes,
        *,
        ledger: Ledger | None,
        chunk: int,
        each: int,
        tally: Tally,
    ) -> None:
        self._engine = engine
        self._windows = windows
        self._scopes = scopes
        self._ledger = ledger
        self._chunk = chunk
        self._each = each
        self._tally = tally
        self._early: EarlySaves | None = None

    def begin_early(
        self,
        parts: LayerParts[Window],
        layers: Sequence[str],
        beside: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """From now on store *parts* of the rank's *layers* as soon as they are computed."""
        names = [[layers[place] for place in places] for places in parts.layer_parts]
        self._early = EarlySaves(names, partial(self._store_part, parts), beside)

    def computed(self, step: Step, layer: str, sound: Sound) -> None:
        """Begin to store the parts that are complete now that *layer* is, for all of *step*."""
        if self._early is not None:
            self._early.computed(step, layer, sound)

    def save(self, step: Step, sound: Sound) -> None:
        """Store the saves of an ended step that have not begun, and wait for those that have."""
        began = time.monotonic()
        if self._early is not None:
            self._early.wait(step)
        for place, save in enumerate(step.saves):
            if sound(save):
                self._save(step, place, save, began)
            began = time.monotonic()

    def wait(self) -> None:
        """Wait for the saves of the last step that have begun."""
        if self._early is not None:
            self._early.wait()

    def close(self) -> None:
        """Store nothing more. Twice is allowed."""
        if self._early is not None:
            self._early.close()

    def _save(self, step: Step, place: int, save: Save, began: float) -> None:
        early = self._early
        begun = {} if early is None else early.begun(step, place)
        if early is None or not begun:
            reports = [self._store(save)]
        else:
            left = [part for part in early.parts if part not in begun]
            reports = [*begun.values(), *(early.store(save, part) for part in left)]
        stored = [report for report in reports if report is not None]
        if not stored:
            return
        report = stored_by_all(stored)
        kept = report.stored_tokens + report.queued_tokens
        size = kept * self._engine.namespace.layout.token_bytes
        self._tally.stored(kept, report.dropped_tokens, size, time.monotonic() - began)

    def _store(self, save: Save) -> StoreReport | None:
        namespace = self._scopes.namespace(save.scope)
        if namespace is None:
            return None
        self._announce(save, namespace)
        with traced(save.parent):
            return self._engine.store(
                memoryview(save.tokens).cast("I"),
                self._windows.window(save.blocks, 0),
                skip=save.start,
                namespace=namespace,
                wait=False,
            )

    def _store_part(self, parts: LayerParts[Window], save: Save, part: int) -> StoreReport | None:
        namespace = self._scopes.namespace(save.scope)
        if namespace is None:
            return None
        if not part:  # the one by which the ledger knows a chunk
            self._announce(save, namespace)
        with traced(save.parent):
            return parts.store_part(
                part,
                memoryview(save.tokens).cast("I"),
                self._windows.window(save.blocks, 0),
                skip=save.start,
                namespace=namespace,
            )

    def _announce(self, save: Save, namespace: Namespace) -> None:
        """Give the ledger vLLM's hashes of the full chunks that are about to be stored.

        Not of tails: their blocks are reported as part of a chunk, and would be reported as
        removed when the tail is evicted.
        """
        if self._ledger is None or not save.hashes:
            return
        block, size = self._windows.block, self._chunk
        tokens, end = memoryview(save.tokens).cast("I"), save.end // size * size
        names = self._engine.chunk_keys(tokens[:end], namespace=namespace)[:: self._each]
        own = (save.end - save.start) // block
        parent = save.hashes[0] if len(save.hashes) > own else None
        hashes, chunks = save.hashes[-own:], []
        for start in range(save.start, end, size):
            first = (start - save.start) // block
            own_hashes = tuple(hashes[first : first + size // block])
            own_tokens = tuple(tokens[start : start + size])
            chunks.append(BlockInfo(own_hashes, parent, own_tokens, block, save.scope.lora))
            parent = own_hashes[-1]
        self._ledger.expect(names[save.start // size :], chunks)
