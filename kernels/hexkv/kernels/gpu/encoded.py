"""Coded chunks on their way into pages: decoded by the device, after the bus.

A payload crosses the bus as it is, which is a third or less of the chunk, and is decoded into
pages: a launch for each form of planes decodes those of many chunks, while the next chunks cross.
The host finds where blocks begin and end; the device checks the rest in the same pass, and one word
of it shows for a whole call if something was wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate
from math import gcd
from typing import NamedTuple, cast

import numpy as np
import torch

from hexkv.kernels.coding.floats import FLOATS
from hexkv.kernels.coding.tables import HALVES, TOTAL, tables
from hexkv.kernels.dtypes import torch_dtype
from hexkv.kernels.gpu.fused import Fused
from hexkv.kernels.gpu.staging import ALIGNED, Passage, Sent, Table, grouped
from hexkv.kernels.host.batches import address_of
from hexkv.kernels.payloads import (
    BLOCK_FIELDS,
    FORMS,
    LINE_FIELDS,
    Coding,
    Numbers,
    PlaneForm,
    SupportsDevicePlanes,
    coded_sizes,
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

_SIZES = 512
"""Numbers of tokens, and runs of layers, whose sizes of blocks are kept."""

_MOST = 1 << 62
"""Bytes of a block of a form that has no only size."""

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
        self._bits = bool((self._coding == Coding.BITS).any())
        self._sizes = lru_cache(_SIZES)(self._sizes_of)

    def checked(
        self,
        blocks: Numbers,
        payloads: Sequence[memoryview],
        tokens: Sequence[int],
        layers: range,
    ) -> Numbers | None:
        """Return the tables that each of *blocks* has, ``[payloads, planes]``; ``None`` if none.

        Raises:
            CorruptFrame: one leaves its payload, or has no size of its form.
        """
        some = slice(self.firsts[layers.start], self.firsts[layers.stop])
        if blocks.shape != (len(payloads), some.stop - some.start, 2):
            raise CorruptFrame(f"blocks {blocks.shape} of {len(payloads)} payloads")
        whole = np.array([*map(len, payloads)], np.uint64)
        if (blocks.view(np.uint64) > whole[:, None, None]).any():
            raise CorruptFrame("a block leaves its payload")
        size, (raw, least, most) = blocks[..., 1] - blocks[..., 0], self._alike(tokens, layers)
        coded = size != raw
        if (coded & ((size < least) | (size > most))).any():
            raise CorruptFrame("a block of a size that its form does not have")
        if not self._bits:
            return None
        bits = coded & (self._coding[some] == Coding.BITS)
        return _tables_of(payloads, np.where(bits, blocks[..., 0] + least - 2, -1))

    def _alike(self, tokens: Sequence[int], layers: range) -> Numbers:
        """Return the sizes of blocks, ``[3, payloads, planes]``; those of one payload if alike."""
        each = {count: self._sizes(count, layers.start, layers.stop) for count in set(tokens)}
        one, *others = each.values()
        return np.stack([each[count] for count in tokens], axis=1) if others else one[:, None]

    def _sizes_of(self, tokens: int, start: int, stop: int) -> Numbers:
        """Return the size of each plane itself, and the least and most of coded ones."""
        rows = columns(self.layout, range(start, stop)).rows
        some = slice(self.firsts[start], self.firsts[stop])
        forms = self._coding[some], self._together[some]
        least, exact = coded_sizes(self.layout.dtype, forms, rows, self._heads[some], tokens)
        most = np.where(exact, least, _MOST)
        return np.stack([rows * (tokens * self.layout.dtype.itemsize), least, most])


def _tables_of(payloads: Sequence[memoryview], heads: Numbers) -> Numbers:
    """Return the tables of each block of ``BITS`` whose alphabet is at *heads*; 0 where below 0.

    Raises:
        CorruptFrame: there are no such.
    """
    pairs = zip(payloads, heads.tolist(), strict=True)
    read = [payload[at : at + 2] if at >= 0 else b"\1\0" for payload, row in pairs for at in row]
    found = np.frombuffer(b"".join(read), np.uint8).reshape(*heads.shape, 2)
    many = found[..., 1].astype(np.int64)
    if not found[..., 0].all() or (many > _TABLES).any() or ((many == 0) & (heads >= 0)).any():
        raise CorruptFrame("an alphabet or a number of tables that there is not")
    return many


def decoder_of(fused: Fused, serde: Serde | SupportsDevicePlanes) -> Decoder:
    """Return the decoder of *serde*'s payloads for the planes of *fused*, made once.

    Raises:
        InvalidRequest: the serde is none for devices.
    """
    kind = type(serde), serde.name
    found = fused.decoders.get(kind)
    if not isinstance(found, Decoder):
        # Once: asking for a protocol takes longer than parsing the payloads of a layer.
        if not isinstance(serde, SupportsDevicePlanes) or fused.layout.dtype not in FLOATS:
            raise InvalidRequest(f"serde {serde.name} is not decoded on a device")
        found = fused.decoders[kind] = Decoder(fused.layout, serde, fused.lines())
    return found


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
        if fused is None:
            raise InvalidRequest(f"serde {serde.name} is not decoded on a device")
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= layout.layers:
            raise InvalidRequest(f"there is no {layers} in a layout of {layout.layers} layers")
        self._fused = fused
        self._layers = layers
        self._decoder = decoder_of(fused, serde)
        for start, end, _ in spans:
            if not 0 <= start < end <= most:
                raise InvalidRequest(f"span [{start}, {end}) leaves {most} tokens")
        self._tokens = [end - start for start, end, _ in spans]
        self._hosts: list[int] = []
        self._bytes: list[int] = []
        if spans:
            self._parse(serde, [payload for _, _, payload in spans])
            self._lines[:, 0] = [start for start, _, _ in spans]

    def _parse(self, serde: Serde, payloads: Sequence[memoryview]) -> None:
        """Find and check the blocks of all *payloads*."""
        tokens, layers = self._tokens, self._layers
        decoded = cast("SupportsDevicePlanes", serde)  # or there was no decoder
        blocks = decoded.device_blocks(payloads, self._decoder.layout, tokens, layers)
        self._many = self._decoder.checked(blocks, payloads, tokens, layers)
        firsts, ends = blocks[..., 0].min(axis=1), blocks[..., 1].max(axis=1)
        places = zip(payloads, firsts.tolist(), strict=True)
        self._hosts = [address_of(payload) + first for payload, first in places]
        self._bytes = (ends - firsts).tolist()
        chunks, planes, _ = blocks.shape
        self._lines = np.zeros((chunks, LINE_FIELDS + BLOCK_FIELDS * planes), np.int64)
        self._lines[:, 1] = tokens
        self._blocks = self._lines[:, LINE_FIELDS:].reshape(chunks, planes, BLOCK_FIELDS)
        np.subtract(blocks, firsts[:, None, None], out=self._blocks[..., :2])

    def scatter(self, slots: Sent) -> Transfer:
        """Queue everything; *slots* are the window's."""
        staging = self._fused.staging
        if not self._hosts:
            return staging.driver.transfer(None, 0, into=True)
        kept = self._decoder.planes, slots
        groups = max(1, _LAUNCHES // self._decoder.launches)
        with staging.word() as wrong:
            passages = (
                self._passage(slice(start, start + len(pieces)), pieces, wrong)
                for start, pieces in grouped(self._hosts, self._bytes, groups)
            )
            event = staging.pass_through(passages, kept, into=True)
        return Checked(staging.driver.transfer(event, sum(self._bytes), into=True), wrong)

    def _passage(self, some: slice, pieces: Sequence[Piece], wrong: torch.Tensor) -> Passage:
        """Return that of *some* of the chunks, whose payloads are *pieces* of a buffer."""
        group = self._group(some, pieces)
        size = group.room + 4 * TOTAL * group.tables
        return Passage(pieces, group.rows, partial(self._launch, group, wrong), size)

    def _group(self, some: slice, pieces: Sequence[Piece]) -> _Group:
        """Return *some* of the chunks, whose payloads are *pieces* of a buffer."""
        blocks, tokens = self._blocks[some], self._tokens[some]
        blocks[..., :2] += np.array([at for _, at, _ in pieces])[:, None, None]
        tables, most_tables = 0, 1
        if self._many is not None:
            many = self._many[some]
            before = np.cumsum(many).reshape(many.shape) - many
            blocks[..., 2] = before
            tables, most_tables = int(before[-1, -1] + many[-1, -1]), max(1, int(many.max()))
        uneven = gcd(_PACE, *tokens) < _PACE or (blocks[..., 0] & (_PACE - 1)).any()
        end = pieces[-1].at + pieces[-1].size
        room = end + -end % ALIGNED
        return _Group(
            self._lines[some], max(tokens), room, tables, most_tables, 1 if uneven else _PACE
        )

    def _launch(
        self,
        group: _Group,
        wrong: torch.Tensor,
        memory: torch.Tensor,
        lines: torch.Tensor,
        planes: torch.Tensor,
        slots: torch.Tensor,
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
                stride=group.lines.shape[1],
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
