"""KV on its way into the device: read and verified whole, then given out layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hexkv.adapters.sglang.windows import StackedKV
from hexkv.kernels.dtypes import torch_dtype
from hexkv.ports import DeviceKV, KVLayout


@dataclass(frozen=True, slots=True)
class DevicePages:
    """A device pool: for each layer, each plane's ``[pages, tokens, heads, width]``."""

    layout: KVLayout
    planes: Sequence[Sequence[torch.Tensor]]
    page: int

    @property
    def device(self) -> torch.device:
        return self.planes[0][0].device


class Staged:
    """Pages in host memory, for slots of the device that belong to one request."""

    def __init__(self, pool: DevicePages, slots: torch.Tensor) -> None:
        """Make room for what goes to *slots*, page by page."""
        count = len(slots) // pool.page
        memory = torch_dtype(pool.layout.dtype)
        pinned = pool.device.type == "cuda"
        self._pool = pool
        self._planes = [
            torch.empty(
                count,
                pool.layout.layers,
                pool.page,
                plane.heads,
                plane.width,
                dtype=memory,
                pin_memory=pinned,
            )
            for plane in pool.layout.groups[0].planes
        ]
        self._pages = (slots[:: pool.page] // pool.page).to(pool.device)

    @property
    def window(self) -> DeviceKV:
        """A window on the room, for the tiers to be read into."""
        return StackedKV(self._pool.layout, self._planes, range(len(self._pages)))

    def give(self, layer: int) -> None:
        """Copy one layer into the device."""
        with torch.inference_mode():
            for plane, staged in zip(self._pool.planes[layer], self._planes, strict=True):
                rows = staged[:, layer].to(self._pool.device, non_blocking=True)
                plane[self._pages] = rows
