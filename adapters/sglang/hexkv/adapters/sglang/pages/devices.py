"""SGLang's device pools, as pages that are filled layer by layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import torch

from hexkv.adapters.sglang.pages.pools import layout_of
from hexkv.kernels.paged import PagedKV, PagedMemory
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    Deadline,
    DeviceKV,
    Finished,
    InvalidRequest,
    LayoutMismatch,
    Span,
    Transfer,
)

log = logging.getLogger("hexkv.sglang")

_MOST_LAYERS = 4
"""Layers that are copied by one call."""

_PATIENCE = 60.0
"""Seconds after which a copy that has not ended is logged."""

_HEADS = "MHATokenToKVPool"
_LATENT = "MLATokenToKVPool"
"""Classes by name: others derive from them and keep more than they do, or in another order."""


class Revocable:
    """A window that keeps nothing that was copied after its slots may belong to others.

    Slots that SGLang gives away are written at once, also while a copy reads them. So every copy
    is checked once more when it is done, and fails where *current* is False by then.
    """

    def __init__(self, window: DeviceKV, current: Callable[[], bool]) -> None:
        self._window = window
        self.current = current
        self.moving = Lock()
        """Held while this copies on the thread that calls it."""

        self.layout = window.layout
        self.tokens = window.tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        with self.moving:
            self.check()
            transfer = self._window.gather(spans, layers)
        if isinstance(transfer, Finished):
            self.check()
            return transfer
        return _Checked(transfer, self)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        with self.moving:
            self.check()
            return self._window.scatter(spans, layers)

    def check(self) -> None:
        """Go on.

        Raises:
            InvalidRequest: the slots may be others' by now.
        """
        if not self.current():
            raise InvalidRequest("the slots were given away while they were read")


@dataclass(frozen=True, slots=True)
class _Checked:
    """A copy of a :class:`Revocable` window."""

    transfer: Transfer
    window: Revocable

    def wait(self, deadline: Deadline) -> bool:
        done = self.transfer.wait(deadline)
        if done:
            self.window.check()
        return done


def copy_layers(
    pool: PagedMemory,
    loads: Sequence[tuple[torch.Tensor, Sequence[memoryview]]],
    ready: torch.cuda.Event,
    queued: Callable[[int, torch.cuda.Event | None], None],
) -> None:
    """Copy held chunks into pages, in the order of the model's layers.

    On a GPU all layers are queued on a stream of their own before any is waited for.

    Args:
        pool: the device's.
        loads: by load, the slots of all tokens, whole pages, and a chunk for each page. These
            stay until this returns.
        ready: behind all work that may still use the pages.
        queued: called with each layer, once its copy is queued, and an event behind that; with
            None once all of the layer is there.
    """
    page, payloads = pool.block, [data for _, some in loads for data in some]
    spans = [Span(i * page, (i + 1) * page, data) for i, data in enumerate(payloads)]
    window = PagedKV.on(pool, torch.cat([slots for slots, _ in loads]))
    under_way: list[Transfer] = []
    with behind(pool.device, [ready]) as stream:
        try:
            for layers in _groups(pool.layout.layers):
                under_way.append(window.scatter(spans, layers))
                event = None if stream is None else stream.record_event()
                for layer in layers:
                    queued(layer, event)
        finally:
            for transfer in under_way:
                _finish(transfer)


def _groups(layers: int) -> Iterator[range]:
    """Yield the layers that are copied by one call: at first one, for which the model waits.

    For pages of 64 tokens a call for one layer takes the host longer than the bus.
    """
    start, count = 0, 1
    while start < layers:
        end = min(start + count, layers)
        yield range(start, end)
        start, count = end, min(end, _MOST_LAYERS)


@contextmanager
def behind(
    device: torch.device, events: Sequence[torch.cuda.Event]
) -> Iterator[torch.cuda.Stream | None]:
    """Have the calling thread queue its work behind *events*, on a stream of its own.

    Without streams the thread waits for the events instead, and gets None.
    """
    if device.type != "cuda":
        for event in events:
            event.synchronize()
        yield None
        return
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for event in events:
        stream.wait_event(event)
    with torch.cuda.stream(stream):
        yield stream


def _finish(transfer: Transfer) -> None:
    """Wait for a copy. Its memory is in use until it ends, so no time limit ends the wait."""
    while not transfer.wait(Deadline.after(SystemClock(), _PATIENCE)):
        log.warning("a copy into the device is under way for more than %.0f seconds", _PATIENCE)


def device_pages(pool: object, page: int) -> PagedMemory:
    """The pages of a device pool.

    Raises:
        LayoutMismatch: the layout of its memory is not known.
    """
    kind = type(pool).__name__
    if kind == _HEADS:
        layers = list(zip(pool.k_buffer, pool.v_buffer, strict=True))  # type: ignore[attr-defined]
    elif kind == _LATENT:
        widths = (pool.kv_lora_rank, pool.qk_rope_head_dim)  # type: ignore[attr-defined]
        buffers = pool.kv_buffer  # type: ignore[attr-defined]
        if any(buffer.shape[-1] != sum(widths) for buffer in buffers):
            raise LayoutMismatch(f"latent KV of {buffers[0].shape[-1]} elements, not {widths}")
        layers = [buffer.split(widths, dim=-1) for buffer in buffers]
    else:
        raise LayoutMismatch(f"the external linker does not know the memory of a {kind}")
    if any(plane.dim() != 3 or len(plane) % page for planes in layers for plane in planes):
        raise LayoutMismatch(f"{kind}: tokens do not lie one after the other in pages of {page}")
    paged = [[plane.unflatten(0, (-1, page)) for plane in planes] for planes in layers]
    stacked = [plane.unsqueeze(1).expand(-1, len(paged), -1, -1, -1) for plane in paged[0]]
    layout = layout_of(stacked, latent=kind == _LATENT)
    return PagedMemory(layout, paged)
