"""The worker side of the connector: it moves KV between vLLM and the engine.

Saves, and loads that a request waits for outside of any step, happen beside vLLM's thread. A
block that fails is reported, and computed by vLLM; KV that was computed from such blocks is not
stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from hexkv.adapters.vllm.lookup.under_way import UnderWay
from hexkv.adapters.vllm.messages import Load, Save, Step
from hexkv.adapters.vllm.metrics.events import BlockEvent, EventBuffer
from hexkv.adapters.vllm.metrics.metrics import EngineReport, Tally, count_missed
from hexkv.adapters.vllm.worker.handed_over import HandedOver
from hexkv.adapters.vllm.worker.outside import Outside
from hexkv.adapters.vllm.worker.rank_cache import KVMemory, LayerParts, RankCache, Together, Windows
from hexkv.adapters.vllm.worker.saving import Saving
from hexkv.adapters.vllm.worker.serving import Handing, Scopes
from hexkv.plugins.support.compute_speed import StepTimer
from hexkv.ports import EngineBusy, LayeredRead, Namespace, Retrieved, traced

log = logging.getLogger("vllm.hexkv")

_LOADS = 1 << 16
"""More than the loads of a step."""

_ANSWERS = 0.001
"""Seconds for which a step that computes nothing waits for answers. A host that steps on and on
keeps the interpreter's lock from the threads that look up: their every system call waits 5 ms."""

_LOADS_END = 0.005
"""Seconds for which it waits for the end of a load, which wakes it. Steps in between take half a
millisecond each, of the core that copies where cores are few; and a request that comes then
waits less than for a step that computes something."""

_LEAVING = 30.0
"""Seconds for saves, and then for loads under way, to end before vLLM's memory goes: each has a
deadline of its own."""

Window = TypeVar("Window")


@dataclass(slots=True)
class _Layered:
    """A load that keeps pace with the model."""

    load: Load
    layers: LayeredRead
    done: int = 0


class WorkerConnector(Generic[Window]):
    """Carries out the scheduler's plan on one rank. Closed by :meth:`close`.

    Args:
        engine: this rank's. Closed with this.
        windows: on this rank's KV memory.
        scopes: namespaces of requests.
        layer_names: of the layers in the order of ``windows``, for layerwise loading.
        layerwise: load layer by layer.
        loaders: threads for loads outside of steps.
        saves: True if this rank stores; others may do it for all.
        saves_within: True if a step ends with its saves.
        beside: makes a context for each thread that loads beside the model's stream.
        ledger: expects full chunks before they are stored, if KV events are published.
        chunk: tokens of a full one.
        tally: the counters, where others count, too.
        under_way: prompts that are computed for other engines.
        own_tiers: True if the tiers are this process's, so that it costs nothing to ask them.
        handing: how KV that was computed for one of them is kept.
        together: where ranks that hold the same load together. Then *loaders* is 1, for all of
            them keep to one order. Closed with this.
        timer: of steps.
    """

    def __init__(  # noqa: PLR0913
        self,
        engine: RankCache[Window],
        windows: Windows[Window],
        scopes: Scopes,
        *,
        layer_names: Sequence[str] = (),
        layerwise: bool = False,
        loaders: int = 2,
        saves: bool = True,
        saves_within: bool = False,
        beside: Callable[[], AbstractContextManager[object]] = ExitStack,
        ledger: EventBuffer | None = None,
        chunk: int = 0,
        tally: Tally | None = None,
        under_way: UnderWay | None = None,
        own_tiers: bool = True,
        handing: Handing = Handing(),  # noqa: B008 - frozen
        together: Together[Window] | None = None,
        parts: LayerParts[Window] | None = None,
        timer: StepTimer | None = None,
    ) -> None:
        self._engine = engine
        self._report_of = EngineReport(
            handing.rank, engine.telemetry, engine.health if own_tiers else None
        )
        memory = self._windows = KVMemory(windows)
        self._scopes = scopes
        self._places = {name: place for place, name in enumerate(layer_names)}
        self._layerwise = layerwise
        self._saves = saves
        self._handed_over = HandedOver(
            engine, scopes, handing, under_way, chunk=chunk, block=memory.block, keeps=saves
        )
        self._saves_within = saves_within
        self._beside = beside
        self.tally = Tally() if tally is None else tally
        self.timer = StepTimer() if timer is None else timer
        self._together = together
        self._each = handing.shards or 1
        self._ledger = ledger
        self._saving = Saving(
            engine,
            memory,
            scopes,
            ledger=ledger,
            chunk=chunk,
            each=self._each,
            tally=self.tally,
            beside=beside,
        )
        if parts is not None:
            self._saving.begin_early(parts, layer_names)
        self._threads = ThreadPoolExecutor(loaders, thread_name_prefix="hexkv-load")
        self._outside = Outside()
        self._layered: list[_Layered] = []
        self._contexts = ExitStack()
        self._idle = self._waits = self._replaced = False
        self._never: Future[int] = Future()
        self._bad: set[int] = set()
        self._spoiled: set[int] = set()
        self._finished_steps: dict[int, int] = {}

    def prepare(self, step: Step | None) -> None:
        """Void the saves whose blocks *step*, which is about to begin, gives to others."""
        if step is None or step.replaced:
            self.void_saves()
        elif step.reused:
            self._saving.pending.reused(set(step.reused))
        if step is not None and step.timed:
            self.timer.begin()

    def void_saves(self, seconds: float = 0.0) -> None:
        """Void all saves, and wait *seconds* for one that is being stored. From any thread."""
        self._saving.pending.reused(None)
        self._saving.pending.wait(seconds)

    def start(self, step: Step) -> None:
        """Load: before the model runs, or after it if the step has no loads within it."""
        self._spoiled.clear()
        self._idle, self._waits, self._replaced = step.idle, step.waits, step.replaced
        count_missed(self._engine.telemetry, step.missed, self._each)
        for order, load in enumerate(step.loads, step.number * _LOADS):
            if load.later:
                self._outside.running[load.request] = load, self._begin_outside(load, order)
            elif self._layerwise:
                self._begin(load)
            elif self._together is not None:  # behind those that began in earlier steps
                self._report(load, self._begin_outside(load, order).result())
            else:
                over: Future[int] = Future()
                self._load(load, order, ExitStack(), over)
                self._report(load, over.result())

    def wait_for_layer(self, name: str) -> None:
        """Wait for this layer's load: the model is about to read it."""
        place = self._places.get(name)
        if place is None:
            return
        for layered in self._layered:
            while layered.done <= place:
                next(layered.layers)
                layered.done += 1

    def computed_layer(self, step: Step, name: str) -> None:
        """Note that the model has computed this layer, all of *step*."""
        # A load layer by layer may turn out not to have arrived.
        if self._saves and self._windows.there and not self._layered:
            self._saving.computed(step, name, self._sound)

    def end_loads(self, step: Step) -> None:
        """After the model ran: collect the results of the loads that kept pace with it."""
        if any(not load.later for load in step.loads):
            self._finished_steps[step.number] = 1
        layered, self._layered = self._layered, []
        for one in layered:
            arrived = one.load.start
            # A model that did not ask for all layers computed without them.
            if one.done == len(self._places):
                arrived = self._loaded(one.load, one.layers.result(), 0.0)
            self._report(one.load, arrived)
            self._engine.unpin(one.load.request)
        self._contexts.close()

    def save(self, step: Step) -> None:
        """Then begin the saves. They read the step's blocks while the next steps compute."""
        then = partial(self._handed_over.computed, step.computed) if step.computed else None
        saves = self._saves and self._windows.there
        self.timer.end(step.number)
        self._saving.save(step, self._sound if saves else lambda _: False, then)
        if self._saves_within:
            self._saving.wait()

    def saved(self, ended: Sequence[str]) -> set[str]:
        """Return the requests whose blocks vLLM may free, of those that *ended* and of earlier."""
        return self._saving.pending.free(ended, _LOADS_END if self._idle else 0.0)

    def saved_steps(self) -> dict[int, int]:
        """Return the numbers of the steps whose saves are over, since the last call."""
        return self._saving.over()

    def arrived(self) -> set[str]:
        """Requests whose loads outside of steps are over since the last call."""
        running = [done for _, done in self._outside.running.values()]
        if (self._idle and running) or self._waits:
            seconds = _ANSWERS if self._waits else _LOADS_END
            wait(running or [self._never], seconds, FIRST_COMPLETED)
        return self._over()

    def lost(self) -> set[str]:
        """The same where :meth:`arrived` fails: all their tokens are to be computed."""
        return self._over(lost=True)

    def bad_blocks(self) -> set[int]:
        """Blocks that were not loaded as they should have been, since the last call."""
        bad, self._bad = self._bad, set()
        return bad

    def finished_steps(self) -> dict[int, int]:
        """Numbers of the steps whose loads are over, since the last call."""
        done, self._finished_steps = self._finished_steps, {}
        return done

    def stats(self) -> dict[str, object]:
        """Return the counts since the last call, for vLLM's metrics."""
        return {**self.tally.take(), **self._report_of.take()}

    def events(self) -> list[BlockEvent]:
        """Return the changes of the tiers since the last call."""
        return [] if self._ledger is None else self._ledger.take()

    def failed(self, step: Step) -> None:
        """Note that *step* failed as a whole: nothing in it can be relied on."""
        if not step.loads:
            return
        self._drop_layered()
        for load in step.loads:
            if load.later and load.request in self._outside.running:
                continue
            self._report(load, load.start)
            if load.later:
                self._outside.failed(load)

    def leave(self) -> None:
        """Stop using vLLM's KV memory until :meth:`go_on`. Twice is allowed.

        KV that loads have brought there by now counts as not loaded, unless vLLM knows of it.

        Raises:
            EngineBusy: a copy does not end; all goes on as before.
        """
        if not self._saving.wait(_LEAVING):
            raise EngineBusy(f"KV is still being saved after {_LEAVING:g} seconds: do not sleep")
        windows = self._windows.swap(None)  # nothing begins from here on
        self._drop_layered()
        if not self._outside.lose(_LEAVING):
            self._windows.swap(windows)
            raise EngineBusy(f"KV is still being loaded after {_LEAVING:g} seconds: do not sleep")

    def go_on(self, windows: Windows[Window]) -> None:
        """Use vLLM's KV memory again through *windows*, if it was left."""
        if not self._windows.there:
            self._windows.swap(windows)

    def close(self) -> None:
        """Stop loading and close the engine. Twice is allowed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._together is not None:
            self._together.close()
        self._contexts.close()
        self._saving.close()
        self._engine.close()

    def _over(self, *, lost: bool = False) -> set[str]:
        over = set()
        for load, arrived in self._outside.over(lost=lost):
            self._report(load, arrived)
            over.add(load.request)
        return over

    def _drop_layered(self) -> None:
        """End loads that keep pace with the model, which computed without them."""
        layered, self._layered = self._layered, []
        self._contexts.close()
        for one in layered:
            self._report(one.load, one.load.start)

    def _sound(self, save: Save) -> bool:
        """True if *save* stores no KV that was computed from KV that did not arrive."""
        return self._spoiled.isdisjoint(save.blocks)

    def _begin_outside(self, load: Load, order: int) -> Future[int]:
        """Load in another thread; up to which token everything arrived."""
        over: Future[int] = Future()
        self._threads.submit(self._load, load, order, self._beside(), over)
        return over

    def _load(
        self, load: Load, order: int, beside: AbstractContextManager[object], over: Future[int]
    ) -> None:
        """Load, and report up to which token everything arrived; then release the KV held for it.

        In this order: vLLM may go on while the node is informed.
        """
        arrived = load.start
        try:
            with beside:
                arrived = self._arrive(load, order)
            over.set_result(arrived)
        except BaseException as error:
            over.set_exception(error)
            raise
        finally:
            self._handed_over.loaded(load, arrived)

    def _arrive(self, load: Load, order: int) -> int:
        began = time.monotonic()
        window = self._windows.window(load.blocks[: load.end // self._windows.block], load.start)
        # None: its adapter was replaced, or left, since it was found.
        namespace = self._scopes.namespace(load.scope)
        read = None if namespace is None else partial(self._read, load, namespace)
        if self._together is not None:
            got = self._together.load(order, load, window, read)
        elif read is None:
            return load.start
        else:
            got = read(window)
        return self._loaded(load, got, time.monotonic() - began)

    def _read(self, load: Load, namespace: Namespace, window: Window) -> Retrieved:
        with traced(load.parent):
            return self._engine.retrieve(
                memoryview(load.tokens).cast("I"),
                window,
                skip=load.start,
                namespace=namespace,
                lookup_id=load.request,
            )

    def _loaded(self, load: Load, got: Retrieved, seconds: float) -> int:
        self.tally.loaded(got.loaded_tokens, got.loaded_bytes, seconds)
        return max(load.start, min(got.hit_tokens, load.end))

    def _report(self, load: Load, arrived: int) -> None:
        """Report to vLLM the blocks behind the token up to which everything *arrived*.

        Nothing did if the model, or the adapter of its request, was replaced during the load.
        """
        if self._replaced or self._scopes.namespace(load.scope) is None:
            arrived = load.start
        if arrived < load.end:
            block = self._windows.block
            bad = set(load.blocks[arrived // block : load.end // block])
            self._bad |= bad
            self._spoiled |= bad
            self.tally.failed(load.end - arrived)

    def _begin(self, load: Load) -> None:
        namespace = self._scopes.namespace(load.scope)
        if namespace is None or not self._windows.there:
            self._engine.unpin(load.request)
            self._report(load, load.start)
            return
        with traced(load.parent):
            context = self._engine.retrieve_layers(
                memoryview(load.tokens).cast("I"),
                self._windows.window(load.blocks[: load.end // self._windows.block], load.start),
                skip=load.start,
                namespace=namespace,
                lookup_id=load.request,
            )
            self._layered.append(_Layered(load, self._contexts.enter_context(context)))
