"""All layers of a span by one launch on a GPU, instead of one for each plane."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from hexkv.kernels.dtypes import INTEGERS
from hexkv.ports import KVLayout

if TYPE_CHECKING:
    from hexkv.kernels.in_triton.rows import Rows


class Fused:
    """Planes of ``[blocks, block, heads, width]``, between which and host memory chunks are moved.

    A chunk passes through memory of the device: scattering from there is one launch, and crossing
    the bus is one copy, at the bus's speed if the host's memory is pinned. Or the launch itself
    reads or writes the host's memory, which it can if that is pinned.
    """

    def __init__(
        self, layout: KVLayout, rows: Rows, device: torch.device, *, direct: bool = False
    ) -> None:
        """Use *rows*, which has all planes of *layout* in order."""
        self._layout = layout
        self._rows = rows
        self._device = device
        self._direct = direct
        self._firsts = [0, *accumulate(len(planes) for planes in layout.planes)]

    @classmethod
    def over(
        cls,
        layout: KVLayout,
        planes: Sequence[Sequence[torch.Tensor]],
        wanted: bool | None,
        *,
        direct: bool = False,
    ) -> Fused | None:
        """Return launches over ``planes[layer][plane]``; ``None`` if not wanted or not possible.

        Args:
            layout: of the chunks.
            planes: on one device.
            wanted: ``None`` means on CUDA, where Triton is installed and the rows of a head are
                side by side. ``True`` is for Triton's interpreter on the CPU.
            direct: launches use the host's memory if it is pinned and aligned. No memory of the
                device is taken, but compute units are, for as long as the bus takes.
        """
        device = planes[0][0].device
        if not cls.wanted(device, wanted):
            return None
        flat = [plane.detach() for given in planes for plane in given]
        if any(plane.device != device for plane in flat) or find_spec("triton") is None:
            return None
        from hexkv.kernels.in_triton.rows import Rows, word_of

        flat = [plane.view(INTEGERS[plane.element_size()]) for plane in flat]
        return cls(layout, Rows(flat), device, direct=direct) if word_of(flat) else None

    @staticmethod
    def wanted(device: torch.device, wanted: bool | None) -> bool:
        """Return True if launches are requested, or are the default on this device."""
        return device.type == "cuda" if wanted is None else wanted

    def gather(self, slots: torch.Tensor, data: memoryview, tokens: int, layers: range) -> None:
        """Queue the copy of *layers* at *slots* to their place in a chunk of *tokens* tokens."""
        if not tokens or not layers:
            return
        host = self._part(data, tokens, layers)
        with self.current():
            if self._reaches(host):
                self._rows.gather(slots, host, self._planes(layers))
                return
            staged = torch.empty(len(host), dtype=torch.uint8, device=self._device)
            self._rows.gather(slots, staged, self._planes(layers))
            host.copy_(staged, non_blocking=True)

    def scatter(self, slots: torch.Tensor, data: memoryview, tokens: int, layers: range) -> None:
        """Queue the copy the other way; slots less than zero are skipped."""
        if not tokens or not layers:
            return
        if data.readonly:
            # torch has no read-only tensors, and warns about making a writable one of these.
            data = memoryview(bytearray(data))
        host = self._part(data, tokens, layers)
        with self.current():
            if self._reaches(host):
                self._rows.scatter(slots, host, self._planes(layers))
                return
            staged = torch.empty(len(host), dtype=torch.uint8, device=self._device)
            staged.copy_(host, non_blocking=True)
            self._rows.scatter(slots, staged, self._planes(layers))

    def scatter_layers(self, slots: torch.Tensor, part: torch.Tensor, layers: range) -> None:
        """Queue the copy of *part*, *layers* of a chunk, which is in the device's memory."""
        self._rows.scatter(slots, part, self._planes(layers))

    @property
    def device(self) -> torch.device:
        """The device of the planes."""
        return self._device

    def current(self) -> AbstractContextManager[object]:
        """Return a context in which the planes' GPU is current, for its streams and launches."""
        if self._device.type != "cuda":
            return nullcontext()
        here: AbstractContextManager[object] = torch.cuda.device(self._device)
        return here

    def _reaches(self, host: torch.Tensor) -> bool:
        """Return True if a launch may access *host* itself."""
        if not self._direct or host.data_ptr() % self._rows.word:
            return False
        return self._device.type == "cpu" or host.is_pinned()

    def _part(self, data: memoryview, tokens: int, layers: range) -> torch.Tensor:
        start = self._layout.layer_span(layers.start, tokens)[0]
        end = self._layout.layer_span(layers.stop - 1, tokens)[1]
        return torch.frombuffer(data[start:end], dtype=torch.uint8)

    def _planes(self, layers: range) -> range:
        return range(self._firsts[layers.start], self._firsts[layers.stop])
