"""SGLang's device pools, as pages that are filled layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch

from hexkv.adapters.sglang.pages.pools import layout_of
from hexkv.kernels.batches import batches
from hexkv.kernels.dtypes import bits
from hexkv.kernels.paged import PagedMemory
from hexkv.ports import (
    Deadline,
    DeviceKV,
    Finished,
    InvalidRequest,
    KVLayout,
    LayoutMismatch,
    Span,
    Transfer,
)

_HEADS = "MHATokenToKVPool"
_LATENT = "MLATokenToKVPool"
"""Classes by name: others derive from them and keep more than they do, or in another order."""


@dataclass(frozen=True, slots=True)
class DevicePages:
    """A device pool: for each layer, each plane's ``[pages, tokens, heads, width]``."""

    layout: KVLayout
    planes: Sequence[Sequence[torch.Tensor]]
    page: int
    memory: PagedMemory
    """The same for windows."""

    @property
    def device(self) -> torch.device:
        return self.planes[0][0].device


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


class PageCopies:
    """Copies of held chunks into pages of the device, one layer of all pages at a time.

    The buffer between them holds one layer of one plane; for a GPU in pinned memory.
    """

    def __init__(
        self, pool: DevicePages, slots: torch.Tensor, payloads: Sequence[memoryview]
    ) -> None:
        """Get ready to copy.

        Args:
            pool: the device's.
            slots: of all tokens, whole pages.
            payloads: a chunk for each page. They must stay until the last copy was made.
        """
        layout = pool.layout
        self._layout = layout
        self._device = pool.device
        self._planes = [[p.view(bits(layout.dtype)) for p in planes] for planes in pool.planes]
        self._pages = (slots[:: pool.page] // pool.page).to(pool.device)
        # A page's number stands for its position.
        spans = [Span(i, i + pool.page, data) for i, data in enumerate(payloads)]
        self._batches = [(np.array(batch.starts), batch) for batch in batches(spans)]
        self._between = [
            torch.empty(
                (len(payloads), pool.page, plane.heads, plane.width),
                dtype=bits(layout.dtype),
                pin_memory=pool.device.type == "cuda",
            )
            for plane in layout.planes[0]
        ]

    def copy(self, layer: int) -> None:
        """Queue the copy of *layer*. It has to have ended before the next one is queued."""
        with torch.inference_mode():
            at = 0
            for plane, between in zip(self._planes[layer], self._between, strict=True):
                pages = between.numpy()
                for numbers, batch in self._batches:
                    first = self._layout.layer_span(layer, batch.tokens)[0] + at
                    view = batch.view(pages.dtype, first, pages.shape[1:], pages.strides[1:])
                    pages[numbers] = view[batch.some]
                at += pages[:1].nbytes
                plane[self._pages] = between.to(self._device, non_blocking=True)


def copy_layers(
    pool: DevicePages,
    loads: Sequence[tuple[torch.Tensor, Sequence[memoryview]]],
    ready: torch.cuda.Event,
    done: Callable[[int], None],
) -> None:
    """Copy held chunks into pages, layer by layer in the order of the model.

    Args:
        pool: the device's.
        loads: slots and payloads of each, as :class:`PageCopies` takes them.
        ready: behind all work that may still use the pages.
        done: called with each layer once all of it is there.
    """
    ready.synchronize()
    copies = [PageCopies(pool, slots, payloads) for slots, payloads in loads]
    for layer in range(pool.layout.layers):
        for each in copies:
            each.copy(layer)
        _settle(pool.device)
        done(layer)


def _settle(device: torch.device) -> None:
    """Wait for the copies of a layer: the next one uses the same buffer."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def device_pages(pool: object, page: int) -> DevicePages:
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
    return DevicePages(layout, paged, page, PagedMemory(layout, paged))
