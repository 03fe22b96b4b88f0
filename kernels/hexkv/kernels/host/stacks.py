"""KV memory as stacks of layers, and how chunks are moved from and to it.

A serving engine often keeps its layers in one allocation at equal distances. One strided copy
then moves a plane of all layers, where a copy for each layer costs a call and two views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate

import torch

from hexkv.kernels.host.batches import Array, Batch
from hexkv.kernels.host.forms import Form, alike, grid, looked_at, on_device, on_host, row_of, runs
from hexkv.kernels.host.moves import Memory, Move
from hexkv.ports import InvalidRequest, KVLayout


class Stacks:
    """One plane of layers that are alike, in stacks of layers at equal distances.

    Each is ``[places, layers, *row]`` as integers, a row being one unit's KV of one layer: an array
    of host memory, or a tensor of another device. Of one layer it is ``[places, *row]``.
    """

    def __init__(
        self,
        layers: range,
        forms: Sequence[Form],
        *,
        unit: int,
        before: int,
        layer_bytes: int,
        lead: int,
    ) -> None:
        """Make the stacks of the tensors.

        Args:
            layers: of the group.
            forms: of the tensors, one for each of the layers, as ``[places, *row]``.
            unit: tokens of a row.
            before: bytes of each token of a chunk before this plane of the first layer.
            layer_bytes: bytes of each token of a chunk from one layer to the next.
            lead: dimensions that give the place of a row.
        """
        self._layers = layers
        self._forms = forms
        self._places: list[tuple[torch.Tensor, int, tuple[int, ...]]] = []
        self._axis = (slice(None),) * lead
        self._unit = unit
        self._before = before
        self._layer_bytes = layer_bytes
        views = [form[0] for form in forms]
        first = views[0]
        self._host = all(view.host for view in views)
        self._row, size, self._dtype = row_of(first)
        strides = [size]
        for count in reversed(self._row):
            strides.insert(0, strides[0] * count)
        self._strides = tuple(strides)
        self._stacks: list[tuple[range, Memory, torch.UntypedStorage, int]] = []
        last = None
        for run, step in runs(forms):
            view, tensor, storage, home, offset = forms[run.start]
            count = len(run)
            memory: Memory
            if view.host:
                shape = view, count, step
                if shape != last:  # mostly every layer lies as the one before
                    last, lies_as = shape, grid(view, count, step, self._row, size)
                at = offset * view.element
                memory = on_host(home, storage.nbytes(), self._dtype, *lies_as, at)
            else:
                memory = on_device(tensor, view, count, step)
            self._stacks.append((run, memory, storage, home))

    def verify(self, layers: range) -> None:
        """Refuse tensors of *layers* that lie elsewhere than when the stacks were made.

        Raises:
            InvalidRequest: one has other memory or strides.
        """
        if not self._places:
            self._places = [
                (tensor, 0 if 0 in view.places else home + offset * view.element, view.given)
                for view, tensor, _, home, offset in self._forms
            ]
        first = self._layers.start
        for tensor, place, strides in self._places[
            max(layers.start - first, 0) : max(layers.stop - first, 0)
        ]:
            if tensor.data_ptr() != place or tensor.stride() != strides:
                raise InvalidRequest("KV has other memory than when it was looked at")

    def gather(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* to the chunks of *moves*."""
        for chunks, move, memory in self._pairs(moves, layers):
            move.gather(chunks, memory)

    def scatter(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* from the chunks of *moves*."""
        # Else memory made in that mode could not be written.
        with nullcontext() if self._host else torch.inference_mode():
            for chunks, move, memory in self._pairs(moves, layers):
                move.scatter(chunks, memory)

    def _pairs(self, moves: Sequence[Move], layers: range) -> Iterator[tuple[Array, Move, Memory]]:
        """Yield each stack's part of each batch of chunks, and its memory.

        One layer's chunks of all batches come before the next layer's: memory is written in order.
        Views are made between the copies: these run without the interpreter's lock, so other
        threads do not wait until all views are made.

        Raises:
            InvalidRequest: a tensor's storage was resized.
        """
        start = max(self._layers.start, layers.start) - self._layers.start
        stop = min(self._layers.stop, layers.stop) - self._layers.start
        if start >= stop:
            return
        views = [(self._view(move.batch, start, stop), move) for move in moves]
        for run, memory, storage, home in self._stacks:
            first, last = run.start, run.stop
            if last <= start or first >= stop:
                continue
            if storage.data_ptr() != home:
                raise InvalidRequest("KV has other memory than when it was looked at")
            at: int | slice = first - start
            if last - first > 1:
                at = slice(max(first, start) - start, min(last, stop) - start)
                memory = memory[*self._axis, at.start + start - first : at.stop + start - first]
            for view, move in views:
                yield view[:, :, at], move, memory

    def _view(self, batch: Batch, start: int, stop: int) -> Array:
        """Return ``[chunks, units, layers, *row]`` of layers ``[start, stop)`` of the group."""
        tokens = batch.tokens
        return batch.view(
            self._dtype,
            tokens * (self._before + start * self._layer_bytes),
            (tokens // self._unit, stop - start, *self._row),
            (self._strides[0], tokens * self._layer_bytes, *self._strides[1:]),
        )


def stacked(
    layout: KVLayout,
    planes: Sequence[Sequence[torch.Tensor]],
    unit: int,
    *,
    lead: int = 1,
    axes: Sequence[int] | None = None,
) -> list[Stacks]:
    """Return all ``planes[layer][plane]`` of ``[places, *row]``, rows of *unit* tokens.

    A place has *lead* dimensions. *axes* are those of the tensors that are used, in this order; of
    any other, the first place is.
    """
    views, forms = looked_at(planes, axes, lead)
    kinds = layout.planes
    made: list[Stacks] = []
    first = 0
    for end in range(1, layout.layers + 1):
        more = end < layout.layers and kinds[end] == kinds[first]
        if more and (views[end] == views[first] or alike(views[end], views[first])):
            continue
        sizes = [p.heads * p.width * layout.dtype.itemsize for p in kinds[first]]
        before = [*accumulate(sizes, initial=layout.layer_span(first, 1)[0])]
        for start, column in zip(before, zip(*forms[first:end], strict=True), strict=False):
            made.append(
                Stacks(
                    range(first, end),
                    column,
                    unit=unit,
                    before=start,
                    layer_bytes=before[-1] - before[0],
                    lead=lead,
                )
            )
        first = end
    return made
