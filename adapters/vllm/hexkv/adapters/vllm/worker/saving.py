"""Stores a rank's KV from vLLM's memory, behind the steps that compute it.

vLLM's thread notes which blocks to save and marks the place in the model's stream; one thread of
this does everything else while the next steps compute. It begins once vLLM's thread has queued the
next step: on a GPU that thread launches hundreds of kernels in a row, and whatever takes the
interpreter's lock from it delays the first token. Afterwards it mostly waits for the GPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic, TypeVar

from hexkv.adapters.vllm.messages import Save, Step
from hexkv.adapters.vllm.metrics.events import BlockInfo, EventBuffer
from hexkv.adapters.vllm.metrics.metrics import Tally
from hexkv.adapters.vllm.worker.early_saves import EarlySave, EarlySaves
from hexkv.adapters.vllm.worker.pending_saves import PendingSave, PendingSaves
from hexkv.adapters.vllm.worker.rank_cache import LayerParts, RankCache, Windows, stored_by_all
from hexkv.adapters.vllm.worker.serving import Scopes
from hexkv.ports import Namespace, StoreReport, traced

log = logging.getLogger("vllm.hexkv")

Window = TypeVar("Window")

Sound = Callable[[Save], bool]
"""Returns True if a save stores only KV that was computed from KV that had arrived."""

_MOST = 4096
"""Saves under way; further ones are dropped until some have ended."""

_TURN = 0.02
"""Seconds for which a save waits for vLLM's thread to queue the next step: there may be none."""

_LAST = 3.0
"""Seconds that saves under way get at the end: vLLM kills its workers after five."""


@dataclass(slots=True)
class _Job:
    """One save for the thread that stores."""

    pending: PendingSave
    namespace: Namespace
    early: EarlySave | None


class Saving(Generic[Window]):
    """Stores what steps have computed. For vLLM's thread, which waits only in :meth:`wait`.

    Args:
        engine: the rank's.
        windows: on its KV memory.
        scopes: namespaces of requests.
        ledger: expects full chunks before they are stored, if KV events are published.
        chunk: tokens of a full one.
        each: the number of keys that a chunk has here.
        tally: the counters.
        beside: makes a context for copies behind the work queued on the model's stream by then.
        pending: the saves under way.
    """

    def __init__(  # noqa: PLR0913
        self,
        engine: RankCache[Window],
        windows: Windows[Window],
        scopes: Scopes,
        *,
        ledger: EventBuffer | None,
        chunk: int,
        each: int,
        tally: Tally,
        beside: Callable[[], AbstractContextManager[object]] = ExitStack,
        pending: PendingSaves | None = None,
    ) -> None:
        self._engine = engine
        self._windows = windows
        self._scopes = scopes
        self._ledger = ledger
        self._chunk = chunk
        self._each = each
        self._tally = tally
        self._beside = beside
        self.pending = PendingSaves() if pending is None else pending
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hexkv-save")
        self._early: EarlySaves | None = None
        self._parts: LayerParts[Window] | None = None
        self._over: dict[int, int] = {}
        self._turn = Event()
        """Set once the saves of the last step may begin."""

        self._lock = Lock()

    def begin_early(self, parts: LayerParts[Window], layers: Sequence[str]) -> None:
        """From now on store *parts* of the rank's *layers* as soon as they are computed."""
        names = [[layers[place] for place in places] for places in parts.layer_parts]
        self._parts = parts
        self._early = EarlySaves(names, self._begin_part, self.pending)

    def computed(self, step: Step, layer: str, sound: Sound) -> None:
        """Begin to store the parts that are complete now that *layer* is, for all of *step*."""
        if self._early is not None:
            self._early.computed(step, layer, sound)

    def save(self, step: Step, sound: Sound, then: Callable[[], None] | None = None) -> None:
        """Store the saves of an ended step, once the next one has ended; call *then* behind them.

        In another thread. Where something is to be called, or :meth:`wait` is, they begin at once.
        """
        self._turn.set()  # of the step before
        jobs = []
        for place, save in enumerate(step.saves):
            namespace = self._scopes.namespace(save.scope)  # of the adapter that computed it
            if namespace is None or not sound(save):
                continue
            early = None if self._early is None else self._early.take(step, place)
            if early is not None:
                jobs.append(_Job(early.pending, namespace, early))
            elif len(self.pending) < _MOST:
                jobs.append(_Job(self.pending.add(step.number, save), namespace, None))
            else:
                self._tally.stored(0, save.end - save.start, 0, 0.0)
        if self._early is not None:
            self._early.forget()
        if jobs or then is not None:
            turn = self._turn = Event()
            if then is not None:
                turn.set()
            self._thread.submit(self._run, step, jobs, self._beside(), then, turn)
        elif step.saves:
            self.end(step)

    def end(self, step: Step) -> None:
        """Note that no save of *step* reads blocks, or none does any longer."""
        with self._lock:
            self._over[step.number] = 1

    def over(self) -> dict[int, int]:
        """Return the numbers of the steps whose saves are over since the last call."""
        if not self._over:
            return {}
        with self._lock:
            over, self._over = self._over, {}
        return over

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until no save is under way. False if some are after *seconds*."""
        self._turn.set()
        if self._early is not None:
            self._early.forget()
        return self.pending.wait(seconds)

    def close(self) -> None:
        """Finish the saves under way, as far as there is time, and end. Twice is allowed."""
        self.wait(_LAST)
        self.pending.reused(None)
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(
        self,
        step: Step,
        jobs: Sequence[_Job],
        beside: AbstractContextManager[object],
        then: Callable[[], None] | None,
        turn: Event,
    ) -> None:
        turn.wait(_TURN)
        try:
            with beside:
                for job in jobs:
                    self._save(job)
            if then is not None:
                then()
        except Exception as error:  # noqa: BLE001 - the thread goes on to the next step
            log.warning("saving failed: %s: %s", type(error).__name__, error)
        finally:
            self.pending.done(job.pending for job in jobs)
            if step.saves:
                self.end(step)

    def _save(self, job: _Job) -> None:
        began, save = time.monotonic(), job.pending.save
        try:
            stored = [report for report in self._reports(job) if report is not None]
        except Exception as error:  # noqa: BLE001 - a chunk that is not stored is computed again
            level = logging.DEBUG if job.pending.void else logging.WARNING
            log.log(level, "a save was dropped: %s: %s", type(error).__name__, error)
            stored = []
        finally:
            self.pending.done([job.pending])
        if not stored:
            self._tally.stored(0, save.end - save.start, 0, time.monotonic() - began)
            return
        report = stored_by_all(stored)
        kept = report.stored_tokens + report.queued_tokens
        size = kept * self._engine.namespace.layout.token_bytes
        self._tally.stored(kept, report.dropped_tokens, size, time.monotonic() - began)

    def _reports(self, job: _Job) -> Sequence[StoreReport | None]:
        early, parts = self._early, self._parts
        if early is None or parts is None or job.early is None:
            return [self._store(job.pending, job.namespace)]
        begun = job.early.reports()
        left = [part for part in early.parts if part not in begun]
        rest = [self._store_part(parts, job.pending, job.namespace, part) for part in left]
        return [*begun.values(), *rest]

    def _begin_part(self, pending: PendingSave, part: int) -> Future[StoreReport | None]:
        namespace = self._scopes.namespace(pending.save.scope)
        return self._thread.submit(self._run_part, self._beside(), pending, namespace, part)

    def _run_part(
        self,
        beside: AbstractContextManager[object],
        pending: PendingSave,
        namespace: Namespace | None,
        part: int,
    ) -> StoreReport | None:
        parts = self._parts
        if parts is None or namespace is None:
            return None
        with beside:
            return self._store_part(parts, pending, namespace, part)

    def _store(self, pending: PendingSave, namespace: Namespace) -> StoreReport:
        save = pending.save
        pending.check()
        self._announce(save, namespace)
        with traced(save.parent):
            return self._engine.store(
                memoryview(save.tokens).cast("I"),
                pending.guard(self._windows.window(save.blocks, 0)),
                skip=save.start,
                namespace=namespace,
                wait=False,
            )

    def _store_part(
        self, parts: LayerParts[Window], pending: PendingSave, namespace: Namespace, part: int
    ) -> StoreReport:
        save = pending.save
        pending.check()
        if not part:  # the one by which the ledger knows a chunk
            self._announce(save, namespace)
        with traced(save.parent):
            return parts.store_part(
                part,
                memoryview(save.tokens).cast("I"),
                pending.guard(self._windows.window(save.blocks, 0)),
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
