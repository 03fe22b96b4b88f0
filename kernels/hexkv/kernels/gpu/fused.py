"""Chunks between pages of a GPU and the host's memory: one launch for all of a call's chunks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from hexkv.kernels.dtypes import INTEGERS
from hexkv.kernels.gpu.staging import Passage, Sent, Table, grouped, staging_on
from hexkv.kernels.host.batches import addresses_of
from hexkv.kernels.transfer import Driver, Piece
from hexkv.kernels.waiting import Event
from hexkv.ports import KVLayout, Span, Transfer

_GROUPS = 8
"""Groups of a call: launches, for planes of one shape."""

_DATA = itemgetter(2)
"""Of a span."""


Line: TypeAlias = tuple[int, int, int]
"""A chunk: its address, its first token among those of a window, and its tokens."""


class _RowShape(NamedTuple):
    """The planes whose rows have one shape: these are moved by one launch."""

    row: int
    width: int
    """Words of a token, and of a head."""

    firsts: Sequence[int]
    """By layer, the number of the first one among all planes of the table; the end is last."""


class Fused:
    """Planes of ``[blocks, block, heads, width]``, between which and host memory chunks are moved.

    Chunks pass through memory of the device: scattering from there is one launch for all of them,
    and crossing the bus is at the bus's speed if the host's memory is pinned. Or the launch itself
    reads or writes the host's memory, which it can if that is pinned.
    """

    def __init__(
        self,
        layout: KVLayout,
        planes: Sequence[Sequence[torch.Tensor]],
        word: tuple[int, int],
        *,
        direct: bool = False,
    ) -> None:
        """Use *planes*, ``[layer][plane]``, integers of words of this size and alignment."""
        self.layout = layout
        self.device = planes[0][0].device
        self.staging = staging_on(self.device)
        self._direct = direct
        self._word, self._align = word
        self._planes = planes  # the table has their addresses, which keep nothing alive
        self.block = planes[0][0].shape[1]
        rows = [sum(p.shape[2] * p.shape[3] * p.element_size() for p in some) for some in planes]
        self._before = [*accumulate(rows, initial=0)]
        self._kinds, table = _tabled(planes, self._word)
        self.table = Sent(table)
        self.decoders: dict[tuple[type, str], object] = {}
        """By kind of serde: :mod:`hexkv.kernels.gpu.encoded` keeps them."""

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
        flat = [plane for given in planes for plane in given]
        if any(plane.device != device for plane in flat) or find_spec("triton") is None:
            return None
        from hexkv.kernels.in_triton.rows import word_of

        whole = [[p.detach().view(INTEGERS[p.element_size()]) for p in some] for some in planes]
        word = word_of([plane for given in whole for plane in given])
        return cls(layout, whole, word, direct=direct) if word[0] else None

    @property
    def driver(self) -> Driver:
        """That of the planes' device."""
        return self.staging.driver

    @staticmethod
    def wanted(device: torch.device, wanted: bool | None) -> bool:
        """Return True if launches are requested, or are the default on this device."""
        return device.type == "cuda" if wanted is None else wanted

    def move(
        self,
        slots: Sent,
        spans: Sequence[Span],
        layers: range,
        *,
        scatter: bool,
        rows: tuple[int, int] = (1, 1),
    ) -> Transfer:
        """Queue the copy of *layers* of chunks to pages, or the other way.

        Args:
            slots: of the window; those below zero are skipped.
            spans: the chunks, all layers of each.
            layers: a run of those to move.
            scatter: to the pages.
            rows: a number of rows, and of the tokens that they are, in a window of blocks.
        """
        event = None
        before = self._before[layers.start]
        share = self._before[layers.stop] - before
        many, few = rows
        some = [span for span in spans if share and span[1] > span[0]]
        lines = [
            (host + before * count, start * many // few, count)
            for host, (start, end, _) in zip(addresses_of([*map(_DATA, some)]), some, strict=True)
            if (count := (end - start) * many // few)
        ]
        lines.sort()  # by address: neighbours in memory cross by one copy
        size = share * sum([count for _, _, count in lines])
        if lines and self._direct and self._reaches(lines, share):
            event = self.in_place(slots, lines, layers, scatter=scatter)
        else:
            event = self._passed(slots, lines, layers, scatter=scatter)
        return self.driver.transfer(event, size, into=scatter)

    def in_place(
        self,
        slots: Sent,
        lines: Sequence[Line],
        layers: range,
        *,
        scatter: bool,
    ) -> Event:
        """Queue the move of chunks in memory of the device's reach: addresses, and their cuts."""
        whole = self._word * self._align
        aligned = not any(line[0] % whole for line in lines)
        most = max(line[2] for line in lines)

        def launch(*tables: torch.Tensor) -> None:
            self._launch(*tables, most=most, layers=layers, aligned=aligned, scatter=scatter)

        return self.staging.in_place(np.array(lines, np.int64), (self.table, slots), launch)

    @property
    def aligned(self) -> int:
        """Elements to a multiple of which everything in pages is aligned."""
        return max(1, self._word * self._align // self.layout.dtype.itemsize)

    def lines(self) -> list[tuple[int, ...]]:
        """Return the address of each plane, and its strides in elements."""
        flat = [plane for given in self._planes for plane in given]
        return [(plane.data_ptr(), *plane.stride()[:3]) for plane in flat]

    def _passed(
        self, slots: Sent, lines: Sequence[Line], layers: range, *, scatter: bool
    ) -> Event | None:
        """Queue the move of chunks through buffers; of no chunk there is nothing to wait for."""
        share = self._before[layers.stop] - self._before[layers.start]
        hosts, sizes = [line[0] for line in lines], [share * line[2] for line in lines]
        # While a layer's launch runs, the copy of the next layer does: that is another call.
        groups = _GROUPS if len(layers) == self.layout.layers else 1
        passages = (
            self._passage(pieces, lines[start : start + len(pieces)], layers, scatter=scatter)
            for start, pieces in grouped(hosts, sizes, groups)
        )
        return self.staging.pass_through(passages, (self.table, slots), into=scatter)

    def _passage(
        self, pieces: Sequence[Piece], lines: Sequence[Line], layers: range, *, scatter: bool
    ) -> Passage:
        """Return that of a group of chunks that fits into one buffer."""
        most = max([line[2] for line in lines])

        def at(base: int) -> Table:
            pairs = zip(pieces, lines, strict=True)
            rows = [(base + piece[1], first, count) for piece, (_, first, count) in pairs]
            return np.fromiter(chain.from_iterable(rows), np.int64, 3 * len(rows))

        def launch(memory: torch.Tensor, *tables: torch.Tensor) -> None:
            del memory  # the table has its address
            self._launch(*tables, most=most, layers=layers, aligned=True, scatter=scatter)

        return Passage(pieces, at, launch, pieces[-1].at + pieces[-1].size)

    def _launch(
        self,
        table: torch.Tensor,
        planes: torch.Tensor,
        slots: torch.Tensor,
        *,
        most: int,
        layers: range,
        aligned: bool,
        scatter: bool,
    ) -> None:
        from hexkv.kernels.in_triton import rows as kernel

        for kind in self._kinds:
            first, end = kind.firsts[layers.start], kind.firsts[layers.stop]
            if first == end:
                continue
            kernel.move(
                self.driver,
                planes,
                table,
                slots,
                first=first,
                some=end - first,
                most=most,
                block=self.block,
                skipped=self._before[layers.start] // self._word,
                row=kind.row,
                width=kind.width,
                word=self._word,
                align=self._align if aligned else 1,
                scatter=scatter,
            )

    def _reaches(self, lines: Sequence[Line], share: int) -> bool:
        """Return True if a launch may access the host's memory itself."""
        return all(
            host % self._word == 0 and self.driver.reaches(host, count * share)
            for host, _, count in lines
        )


def _tabled(planes: Sequence[Sequence[torch.Tensor]], word: int) -> tuple[list[_RowShape], Table]:
    """Return the kinds of rows, and the lines of all planes, those of one kind together."""
    lines: dict[tuple[int, int], list[list[tuple[int, ...]]]] = {}
    before = 0
    for layer, given in enumerate(planes):
        for plane in given:
            share = word // plane.element_size()
            heads, width = plane.shape[2], plane.shape[3] // share
            kind = lines.setdefault((heads * width, width), [[] for _ in planes])
            strides = [stride // share for stride in plane.stride()[:3]]
            kind[layer].append((plane.data_ptr(), before, *strides))
            before += heads * width
    kinds: list[_RowShape] = []
    table: list[tuple[int, ...]] = []
    for (row, width), layers in lines.items():
        counts = (len(some) for some in layers)
        kinds.append(_RowShape(row, width, [*accumulate(counts, initial=len(table))]))
        table += [line for some in layers for line in some]
    return kinds, np.array(table, np.int64)
