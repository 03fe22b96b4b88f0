"""Coded chunks on their way into pages: decoded on the device, after the bus.

A payload crosses the bus encoded, which is a third or less of the chunk. There it is decoded into
the chunk by one launch for each kind of plane, and scattered by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.coding.floats import FLOATS
from hexkv.kernels.coding.plain import GROUP
from hexkv.kernels.coding.tables import HALVES, tables
from hexkv.kernels.dtypes import bits, torch_dtype
from hexkv.kernels.payloads import (
    FORMS,
    Bits,
    BitsPlane,
    CodedPlane,
    Float8Plane,
    Int4Plane,
    Int8Plane,
    PlaneOfPayload,
    RawPlane,
    ScaledPlane,
    SupportsDevicePlanes,
    joined,
    lines,
)
from hexkv.ports import (
    CorruptFrame,
    Deadline,
    EncodedSpan,
    InvalidRequest,
    KVLayout,
    Plane,
    Serde,
    Transfer,
)

if TYPE_CHECKING:
    from hexkv.kernels.fused import Fused
    from hexkv.kernels.staging import Sent

Lines = list[npt.NDArray[np.int64]]

Way = tuple[type[ScaledPlane], bool]
"""The coding of numbers, and whether a group is of a channel: one launch decodes one of these."""


def decodes(fused: Fused | None, layout: KVLayout, serde: Serde) -> bool:
    """True if a device with launches decodes what *serde* encoded of *layout*."""
    return fused is not None and layout.dtype in FLOATS and isinstance(serde, SupportsDevicePlanes)


class Decoding:
    """Chunks of one call, which are decoded on the device of *fused*."""

    def __init__(
        self,
        fused: Fused | None,
        layout: KVLayout,
        serde: Serde,
        spans: Sequence[EncodedSpan],
        most: int,
        layers: range,
    ) -> None:
        """Check all *spans* before anything moves, of a window of *most* tokens.

        Args:
            fused: the launches.
            layout: of the chunks.
            serde: the one that encoded them.
            spans: their payloads.
            most: tokens of the window.
            layers: a run of those to decode; the others may be missing.

        Raises:
            InvalidRequest: a span leaves the window, there are no such layers, or the serde is none
                for devices.
            CorruptFrame: a payload is not of the form that *serde* writes.
        """
        if (
            fused is None
            or not isinstance(serde, SupportsDevicePlanes)
            or layout.dtype not in FLOATS
        ):
            raise InvalidRequest(f"serde {serde.name} is not decoded on a device")
        self._fused = fused
        self._layout = layout
        self._layers = layers
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= layout.layers:
            raise InvalidRequest(f"there is no {layers} in a layout of {layout.layers} layers")
        self._planes: list[tuple[EncodedSpan, list[_Placed]]] = []
        for span in spans:
            if not 0 <= span.start < span.end <= most:
                raise InvalidRequest(f"span [{span.start}, {span.end}) leaves {most} tokens")
            tokens = span.end - span.start
            start, end, found = serde.device_planes(span.payload, layout, tokens, self._layers)
            if not 0 <= start <= end <= span.payload.nbytes:
                raise CorruptFrame("layers leave their payload")
            planes = _placed(found, layout, self._layers, tokens, end - start)
            self._planes.append((span._replace(payload=span.payload[start:end]), planes))

    def scatter(self, slots: Sent) -> list[torch.Tensor]:
        """Queue everything; *slots* are the window's. Return each stream's flag, on the host."""
        ended = [self._chunk(span, planes, slots) for span, planes in self._planes]
        return [_to_host(flags) for each in ended for flags in each]

    def _chunk(self, span: EncodedSpan, planes: list[_Placed], slots: Sent) -> list[torch.Tensor]:
        from hexkv.kernels.in_triton import bits as bits_of
        from hexkv.kernels.in_triton import payloads

        layout, device = self._layout, self._fused.device
        tokens = span.end - span.start
        payload = span.payload
        if payload.readonly:
            # torch has no read-only tensors, and warns about making a writable one of these.
            payload = memoryview(bytearray(payload))
        with self._fused.driver.here():
            coded = torch.frombuffer(payload, dtype=torch.uint8).to(device, non_blocking=True)
            last = layout.layer_span(self._layers.stop - 1, tokens)[1]
            size = last - layout.layer_span(self._layers.start, tokens)[0]
            chunk = torch.empty(size, dtype=torch.uint8, device=device)
            into, dtype = chunk.view(bits(layout.dtype)), torch_dtype(layout.dtype)
            ended: list[torch.Tensor] = []
            if coded_lines := [placed.coded for placed in planes if placed.coded is not None]:
                slot_table, levels = _tables(device)
                table = _sent(np.concatenate(coded_lines), device)
                ended.append(payloads.decode(coded, table, slot_table, levels, into, tokens, dtype))
            if of_bits := [placed.bits for placed in planes if placed.bits is not None]:
                tables, groups = (_sent(each, device) for each in joined(of_bits))
                form = FORMS[layout.dtype]
                ended.append(bits_of.decode(coded, tables, groups, into, tokens, form))
            for way in {placed.way: None for placed in planes if placed.way is not None}:
                wide = np.stack(
                    [line for placed in planes if placed.way == way for line in placed.scaled]
                )
                most, peers = wide[:, 4].max(), wide[:, 5].max()
                payloads.from_scaled(
                    coded,
                    _sent(wide, device),
                    into,
                    way[0],
                    int(most),
                    int(peers),
                    dtype,
                    by_channel=way[1],
                )
            for placed in planes:
                if placed.raw is not None:
                    size = placed.plane.heads * placed.plane.width * tokens * into.element_size()
                    at = placed.first * into.element_size()
                    chunk[at : at + size] = coded[placed.raw : placed.raw + size]
            line = chunk.data_ptr(), span.start, tokens
            self._fused.in_place(slots, [line], self._layers, scatter=True)
        return ended


class Checked:
    """A transfer whose streams are checked once it is over."""

    def __init__(self, transfer: Transfer, flags: Sequence[torch.Tensor]) -> None:
        self._transfer = transfer
        self._flags = flags

    def wait(self, deadline: Deadline) -> bool:
        """Wait, as a transfer does.

        Raises:
            CorruptFrame: a stream did not end as it should.
        """
        if not self._transfer.wait(deadline):
            return False
        if not all(bool(flags.all()) for flags in self._flags):
            raise CorruptFrame("a stream that does not end as it should")
        return True


class _Placed:
    """One plane of one layer: its place in the payload, and its place in the chunk."""

    __slots__ = ("bits", "coded", "first", "plane", "raw", "scaled", "way")

    def __init__(self, plane: Plane, first: int) -> None:
        self.plane = plane
        self.first = first
        """In elements of the chunk."""

        self.coded: npt.NDArray[np.int64] | None = None
        """Lines of ``in_triton.payloads.decode``."""

        self.bits: Bits | None = None

        self.way: Way | None = None
        self.scaled: Lines = []
        """Lines of ``in_triton.payloads.from_scaled``, all of this plane's way."""

        self.raw: int | None = None


def _placed(
    found: Sequence[PlaneOfPayload], layout: KVLayout, layers: range, tokens: int, size: int
) -> list[_Placed]:
    """Return lines of the kernels' tables, all of whose places are within *size* bytes.

    Raises:
        CorruptFrame: one is not.
    """
    planes = [plane for layer in layers for plane in layout.planes[layer]]
    rows = [plane.heads * plane.width for plane in planes]
    firsts = accumulate((row * tokens for row in rows), initial=0)
    item = layout.dtype.itemsize
    made: list[_Placed] = []
    if len(found) != len(planes):
        raise CorruptFrame(f"{len(found)} planes, where these layers have {len(planes)}")
    for plane, row, first, there in zip(planes, rows, firsts, found, strict=False):
        placed = _Placed(plane, first)
        begins: tuple[int, ...]
        ends: tuple[int, ...]
        if isinstance(there, CodedPlane):
            placed.coded = _groups(there, row, first)
            ends = (
                int(placed.coded[-1, 1]),
                there.states + 4 * row,
                there.classes + row,
                there.turns + row,
                there.scales + item * tokens,
            )
            begins = (there.words, there.states, there.classes, there.turns, there.scales)
        elif isinstance(there, BitsPlane):
            placed.bits, begins, ends = lines(there, row, first, tokens, layout.dtype)
        elif isinstance(there, RawPlane):
            begins, ends = (there.start,), (there.start + row * tokens * item,)
            placed.raw = there.start
        else:
            placed.way, placed.scaled = _scaled(there, plane, first, tokens, item)
            groups = sum(int(line[4]) for line in placed.scaled)
            begins, ends = _extent(there, groups, row * tokens, item)
        if min(begins) < 0 or max(ends) > size:
            raise CorruptFrame(f"a plane leaves its payload of {size} bytes")
        made.append(placed)
    return made


def _scaled(
    there: ScaledPlane, plane: Plane, first: int, tokens: int, item: int
) -> tuple[Way, Lines]:
    """Return how a plane with scales is coded, and its lines for ``in_triton.payloads``."""
    row = plane.heads * plane.width
    if isinstance(there, Int8Plane):
        line = (there.scales, 0, there.levels, first, tokens * plane.heads, plane.width, row)
        return (Int8Plane, False), [np.array(line)]
    if isinstance(there, Float8Plane):
        return (Float8Plane, True), [
            np.array((there.scales, 0, there.codes, first, row, tokens, row))
        ]
    if there.together < 0 or there.together % 2:
        raise CorruptFrame(f"groups of {there.together} tokens, whose parts are no whole bytes")
    if not there.together:
        groups = tokens * plane.heads
        line = (there.least, there.largest, there.pairs, first, groups, plane.width, row)
        return (Int4Plane, False), [np.array(line)]
    lines = []
    for part, start in enumerate(range(0, tokens, there.together)):
        scales = item * row * part
        line = (
            there.least + scales,
            there.largest + scales,
            there.pairs + row * start // 2,
            first + row * start,
            row,
            min(there.together, tokens - start),
            row,
        )
        lines.append(np.array(line))
    return (Int4Plane, True), lines


def _extent(
    there: ScaledPlane, groups: int, numbers: int, item: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where the parts of a plane of *groups* and *numbers* begin in the payload, and end."""
    scales = item * groups
    if isinstance(there, Int4Plane):
        return (there.least, there.largest, there.pairs), (
            there.least + scales,
            there.largest + scales,
            there.pairs + (numbers + 1) // 2,
        )
    codes = there.levels if isinstance(there, Int8Plane) else there.codes
    return (there.scales, codes), (there.scales + scales, codes + numbers)


def _groups(there: CodedPlane, row: int, first: int) -> npt.NDArray[np.int64]:
    """Return the lines of a plane's groups of lanes for ``in_triton.payloads``."""
    count = -(-row // GROUP)
    if len(there.lengths) != count or there.half not in HALVES:
        raise CorruptFrame(f"{len(there.lengths)} groups of lanes, where there are {count}")
    lanes = np.arange(count, dtype=np.int64) * GROUP
    ends = there.words + 2 * np.cumsum(there.lengths, dtype=np.int64)
    slots, levels = _starts()[there.half]
    lines = np.empty((count, 11), np.int64)
    lines[:, 0], lines[:, 1] = ends - 2 * there.lengths.astype(np.int64), ends
    lines[:, 2] = there.states + 4 * lanes
    lines[:, 3], lines[:, 4] = there.classes + lanes, there.turns + lanes
    lines[:, 5], lines[:, 6], lines[:, 7] = there.scales, slots, levels
    lines[:, 8], lines[:, 9] = first + lanes, row
    lines[:, 10] = np.minimum(row - lanes, GROUP)
    return lines


@cache
def _starts() -> dict[int, tuple[int, int]]:
    """Return, for each alphabet, where its slots and its levels begin among those of all."""
    found: dict[int, tuple[int, int]] = {}
    slots = levels = 0
    for half in HALVES:
        found[half] = slots, levels
        slots += len(tables(half).slots)
        levels += 2 * (2 * half + 1)
    return found


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return slots and levels of all alphabets on the device, kept for ever: they never change."""
    slots = np.concatenate([tables(half).slots for half in HALVES]).view(np.int32)
    each = [np.arange(-half, half + 1, dtype=np.float32) / np.float32(half) for half in HALVES]
    levels = np.concatenate([np.tile(some, 2) for some in each])
    # Not asynchronously: other streams use them, too.
    return torch.from_numpy(slots).to(device), torch.from_numpy(levels).to(device)


def _sent(table: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Return *table* in the device's memory, while its copy may be under way.

    It may be longer than the 64 KiB that a driver takes from ordinary memory without waiting for
    the stream; torch keeps the pinned memory until the copy is done.
    """
    made = torch.from_numpy(table)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made


def _to_host(flags: torch.Tensor) -> torch.Tensor:
    """Return *flags* in the host's memory, filled once the stream gets there."""
    if flags.device.type == "cpu":
        return flags
    host = torch.empty(len(flags), dtype=flags.dtype, pin_memory=True)
    return host.copy_(flags, non_blocking=True)
