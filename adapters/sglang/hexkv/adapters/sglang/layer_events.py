"""The layers of loads under way, for a forward pass that runs beside them."""

from __future__ import annotations

from concurrent.futures import Future

import torch
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter


class LayerEvents(LayerWiseLoadCounter):  # type: ignore[misc]  # untyped here
    """Layers of loads, each with the event behind its copy.

    A forward pass waits for a layer on its stream. Its thread waits only until the copy is queued,
    where the class of SGLang has it wait until the copy has ended.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self._events: dict[int, list[Future[torch.cuda.Event | None]]] = {}

    def update_producer(self) -> int:
        index: int = super().update_producer()
        self._events[index] = [Future() for _ in range(self.num_layers)]
        return index

    def queued(self, index: int, layer: int, event: torch.cuda.Event | None) -> None:
        """Note that the copy of *layer* is queued, *event* behind it; None: it has landed."""
        self._events[index][layer].set_result(event)

    def fail(self, index: int, error: BaseException) -> None:
        for event in self._events.get(index, ()):
            if not event.done():
                event.set_result(None)
        super().fail(index, error)

    def wait_until(self, threshold: int) -> None:
        """Have the caller's stream wait for a layer. :meth:`finish` reports a failure."""
        events = self._events.get(self.consumer_index)
        event = None if events is None else events[threshold].result()
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

    def finish(self, index: int) -> bool:
        landed: bool = super().finish(index)
        self._events.pop(index, None)
        return landed

    def reset(self) -> None:
        super().reset()
        self._events.clear()
