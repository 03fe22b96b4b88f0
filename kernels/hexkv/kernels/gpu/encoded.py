"""Coded chunks on their way into pages: decoded by the device, after the bus.

A payload crosses the bus as it is, which is a third or less of the chunk, and is decoded into
pages: a launch for each form of planes decodes those of many chunks, while the next chunks cross.
The host finds where blocks begin and end; the device checks the rest in the same pass, and one word
of it shows for a whole call if something was wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.coding.floats import FLOATS
from hexkv.kernels.coding.plain import GROUP
from hexkv.kernels.coding.tables import HALVES, TOTAL, tables
from hexkv.kernels.dtypes import torch_dtype
from hexkv.kernels.gpu.fused import Fused
from hexkv.kernels.gpu.staging import ALIGNED, Passage, Sent, Table, grouped
from hexkv.kernels.host.batches import address_of
from hexkv.kernels.payloads import (
    FORMS,
    Coding,
    Numbers,
    PlaneForm,
    SupportsDevicePlanes,
    columns,
)
from hexkv.kernels.transfer import Piece
from hexkv.ports import (
    CorruptFrame,
    Deadline,
    EncodedSpan,
    InvalidRequest,
    KVLayout,
    Serde,
    Transfer,
)

_TABLES = 8
"""The most tables that a block of ``BITS`` has."""

_PACE = 8
"""Bytes that a program reads at once, where places and tokens are multiples of them."""

_LAUNCHES = 8
"""The most launches of a call, as far as buffers have room for so few groups."""


class Alike(NamedTuple):
    """Planes of one form and shape: these are decoded by one launch, ``BITS`` by two."""

    form: PlaneForm
    row: int
    width: int
    firsts: Sequence[int]
    """By layer, the line of the first one; the end is last."""


class Decoder:
    """Properties of a serde's payloads and of an engine's pages, known before any payload is."""

    def __init__(
        self, layout: KVLayout, serde: SupportsDevicePlanes, lines: Sequence[tuple[int, ...]]
    ) -> None:
        """Look at the planes of *layout*.

        Args:
            layout: of the chunks.
            serde: the one that encodes them.
            lines: of each plane, its address and strides in elements.
        """
        self.layout = layout
        self.forms = list(serde.device_forms(layout))
        planes = [(layer, plane) for layer, some in enumerate(layout.planes) for plane in some]
        found: dict[tuple[PlaneForm, int, int], list[list[tuple[int, ...]]]] = {}
        for number, (layer, plane) in enumerate(planes):
            shape = self.forms[number], plane.heads * plane.width, plane.width
            some = found.setdefault(shape, [[] for _ in layout.planes])
            some[layer].append((*lines[number], number))
        self.alike: list[Alike] = []
        table: list[tuple[int, ...]] = []
        for shape, layers in found.items():
            counts = (len(some) for some in layers)
            self.alike.append(Alike(*shape, [*accumulate(counts, initial=len(table))]))
            table += [line for some in layers for line in some]
        self.planes = Sent(np.array(table, np.int64))
        self.firsts = [*accumulate((len(some) for some in layout.planes), initial=0)]
        self.launches = sum(1 + (one.form.coding == Coding.BITS) for one in self.alike)
        self._coding = np.array([form.coding for form in self.forms])
        self._together = np.array([form.together for form in self.forms])
        self._heads = np.array([plane.heads for _, plane in planes])

    def checked(self, blocks: Numbers, payload: memoryview, tokens: int, layers: range) -> Numbers:
        """Return *blocks* with the number that the device needs of each, ``[planes, 3]``.

        Raises:
            CorruptFrame: one leaves the payload, or has no size of its form.
        """
        rows = columns(self.layout, layers).rows
        if blocks.shape != (len(rows), 2):
            raise CorruptFrame(f"{len(blocks)} blocks of {len(rows)} planes")
        begin, end = blocks.T
        if (begin < 0).any() or (end > payload.nbytes).any() or (begin > end).any():
            raise CorruptFrame("a block leaves its payload")
        some = slice(self.firsts[layers.start], self.firsts[layers.stop])
        coding, size, item = self._coding[some], end - begin, self.layout.dtype.itemsize
        raw = size == rows * (tokens * item)
        least = self._least(coding, rows, tokens, some)
        exact = np.isin(coding, _EXACT)
        if not (raw | np.where(exact, size == least, size >= least)).all():
            raise CorruptFrame("a block of a size that its form does not have")
        made = np.zeros((len(rows), 3), np.int64)
        made[:, :2] = blocks
        bits = (coding == Coding.BITS) & ~raw
        if bits.any():
            data = np.frombuffer(payload, np.uint8)
            head = begin[bits] + least[bits] - 2
            many = data[head + 1]
            if (data[head] == 0).any() or (many == 0).any() or (many > _TABLES).any():
                raise CorruptFrame("an alphabet or a number of tables that there is not")
            made[bits, 2] = many
        return made

    def _least(
        self, coding: npt.NDArray[np.int64], rows: Numbers, tokens: int, some: slice
    ) -> Numbers:
        """Return the size of each block: the only one, or that of the part before any words."""
        item, numbers = self.layout.dtype.itemsize, rows * tokens
        heads, together = self._heads[some] * tokens, self._together[some]
        parts = -(-tokens // np.maximum(together, 1))
        whole, sevens, _ = FORMS[self.layout.dtype]
        return np.select(
            [coding == one for one in Coding],
            [
                1 + item * tokens + 6 * rows + 4 * -(-rows // GROUP),
                item * heads + numbers,
                item * rows + numbers,
                2 * item * np.where(together > 0, parts * rows, heads) + (numbers + 1) // 2,
                numbers * whole + (7 * sevens) * -(-numbers // 8) + 2,
            ],
        )


_EXACT = (Coding.INT8, Coding.FLOAT8, Coding.INT4)


def decoder_of(fused: Fused, serde: SupportsDevicePlanes) -> Decoder:
    """Return the decoder of *serde*'s payloads for the planes of *fused*, made once."""
    kind = type(serde), serde.name
    found = fused.decoders.get(kind)
    if not isinstance(found, Decoder):
        found = fused.decoders[kind] = Decoder(fused.layout, serde, fused.lines())
    return found


def decodes(fused: Fused | None, layout: KVLayout, serde: Serde) -> bool:
    """True if a device with launches decodes what *serde* encoded of *layout*."""
    return fused is not None and layout.dtype in FLOATS and isinstance(serde, SupportsDevicePlanes)


class _Chunk(NamedTuple):
    """A payload whose blocks are known."""

    host: int
    """Address of the first block's first byte."""

    size: int
    start: int
    tokens: int
    blocks: Numbers
    """``[planes, 3]``, from that byte on."""


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
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= layout.layers:
            raise InvalidRequest(f"there is no {layers} in a layout of {layout.layers} layers")
        self._fused = fused
        self._layers = layers
        self._decoder = decoder = decoder_of(fused, serde)
        self._chunks: list[_Chunk] = []
        for span in spans:
            if not 0 <= span.start < span.end <= most:
                raise InvalidRequest(f"span [{span.start}, {span.end}) leaves {most} tokens")
        for start, end, payload in spans:
            blocks = serde.device_blocks(payload, layout, end - start, layers)
            found = decoder.checked(blocks, payload, end - start, layers)
            first, last = int(blocks[:, 0].min()), int(blocks[:, 1].max())
            found[:, :2] -= first
            host = address_of(payload) + first
            self._chunks.append(_Chunk(host, last - first, start, end - start, found))

    def scatter(self, slots: Sent) -> Transfer:
        """Queue everything; *slots* are the window's."""
        staging, wrong = self._fused.staging, Sent(np.zeros(2, np.int64))
        if not self._chunks:
            return staging.driver.transfer(None, 0, into=True)
        kept = self._decoder.planes, slots, wrong
        sizes = [chunk.size for chunk in self._chunks]
        hosts = [chunk.host for chunk in self._chunks]
        groups = max(1, _LAUNCHES // self._decoder.launches)
        passages: list[Passage] = []
        for start, pieces in grouped(hosts, sizes, groups):
            group = _Group.of(pieces, self._chunks[start : start + len(pieces)])
            size = group.room + 4 * TOTAL * group.tables
            passages.append(Passage(pieces, group.rows, partial(self._launch, group), size))
        staging.pass_through(passages, kept, into=True)
        flag, event = staging.fetch(wrong)
        return Checked(staging.driver.transfer(event, sum(sizes), into=True), flag)

    def _launch(
        self,
        group: _Group,
        memory: torch.Tensor,
        lines: torch.Tensor,
        planes: torch.Tensor,
        slots: torch.Tensor,
        wrong: torch.Tensor,
    ) -> None:
        from hexkv.kernels.in_triton import bits, payloads

        decoder, fused, layers = self._decoder, self._fused, self._layers
        for one in decoder.alike:
            first, end = one.firsts[layers.start], one.firsts[layers.stop]
            if first == end:
                continue
            job = payloads.Job(
                fused.driver,
                (memory, planes, lines, slots, wrong),
                first=first,
                some=end - first,
                skipped=decoder.firsts[layers.start],
                stride=group.stride,
                block=fused.block,
                most=group.most,
                row=one.row,
                width=one.width,
                dtype=torch_dtype(decoder.layout.dtype),
            )
            coding, together = one.form
            if coding == Coding.LEVELS:
                bits.from_levels(job, *_tables(fused.device))
            elif coding == Coding.BITS:
                scratch = memory[group.room : group.room + 4 * TOTAL * group.tables]
                form = FORMS[decoder.layout.dtype]
                bits.from_bits(job, scratch.view(torch.int32), group.most_tables, form)
            else:
                payloads.from_scaled(job, int(coding), together, group.pace, fused.aligned)


class _Group(NamedTuple):
    """Chunks that are decoded at once."""

    lines: Table
    """``[chunks, stride]``: first token, tokens, and blocks in the buffer."""

    most: int
    """Tokens of the longest one."""

    room: int
    """Bytes of the payloads, after which tables of ``BITS`` are made."""

    tables: int
    """The number of these, and the most of a block."""

    most_tables: int
    pace: int
    """A number of which all places of blocks and all numbers of tokens are multiples."""

    @classmethod
    def of(cls, pieces: Sequence[Piece], chunks: Sequence[_Chunk]) -> _Group:
        """Return *chunks* whose payloads are *pieces* of a buffer."""
        blocks = np.stack([chunk.blocks for chunk in chunks])
        blocks[:, :, :2] += np.array([piece.at for piece in pieces])[:, None, None]
        many = blocks[:, :, 2].copy()
        before = np.cumsum(many).reshape(many.shape) - many
        blocks[:, :, 2] = before
        lines = np.empty((len(chunks), 2 + blocks[0].size), np.int64)
        lines[:, 0] = [chunk.start for chunk in chunks]
        lines[:, 1] = [chunk.tokens for chunk in chunks]
        lines[:, 2:] = blocks.reshape(len(chunks), -1)
        end = pieces[-1].at + pieces[-1].size
        return cls(
            lines,
            int(lines[:, 1].max()),
            end + -end % ALIGNED,
            int(many.sum()),
            max(1, int(many.max())),
            1 if (blocks[:, :, 0] % _PACE).any() or (lines[:, 1] % _PACE).any() else _PACE,
        )

    @property
    def stride(self) -> int:
        return int(self.lines.shape[1])

    def rows(self, base: int) -> Table:
        """Return the lines; the places in them count from the buffer's begin."""
        del base
        return self.lines


class Checked:
    """A transfer whose blocks are known to be right once it is over."""

    def __init__(self, transfer: Transfer, flag: torch.Tensor) -> None:
        self._transfer = transfer
        self._flag = flag

    def wait(self, deadline: Deadline) -> bool:
        """Wait, as a transfer does.

        Raises:
            CorruptFrame: a block is not one of its form, or a stream ends too early or too late.
        """
        if not self._transfer.wait(deadline):
            return False
        if self._flag.numpy().any():
            raise CorruptFrame("a block that is none, or a stream that does not end as it should")
        return True


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return alphabets, slots and levels for the device, kept for ever: they never change."""
    from hexkv.kernels.in_triton.bits import HALF_NUMBERS

    alphabets = np.zeros((HALF_NUMBERS, 3), np.int32)
    slots = levels = 0
    for half in HALVES:
        alphabets[half] = slots, levels, tables(half).symbols
        slots += len(tables(half).slots)
        levels += 2 * tables(half).symbols
    entries = np.concatenate([tables(half).slots for half in HALVES]).view(np.int32)
    each = [np.arange(-half, half + 1, dtype=np.float32) / np.float32(half) for half in HALVES]
    shares = np.concatenate([np.tile(some, 2) for some in each])
    # Not asynchronously: other streams use them, too.
    first, second, third = (torch.from_numpy(a).to(device) for a in (alphabets, entries, shares))
    return first, second, third
