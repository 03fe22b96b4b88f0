"""KV in one tensor per layer and plane, as Hugging Face transformers keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from hexkv.kernels.chunks import check_planes, check_spans
from hexkv.kernels.gpu.encoded import Decoding, decodes
from hexkv.kernels.gpu.fused import Fused
from hexkv.kernels.gpu.staging import Sent
from hexkv.kernels.host.batches import batches
from hexkv.kernels.host.forms import reaches
from hexkv.kernels.host.moves import Run
from hexkv.kernels.host.sequences import HostSequence, refuse_changed
from hexkv.kernels.host.stacks import Stacks, stacked
from hexkv.kernels.transfer import gpus, transfer_on
from hexkv.ports import EncodedSpan, KVLayout, LayoutMismatch, Serde, Span, Transfer


class ContiguousKV:
    """A window on one sequence's KV, ``tensors[layer][plane]`` of ``[1, heads, tokens, width]``.

    Any strides will do. In host memory planes of one shape at equal distances in one storage are
    one strided copy of a span, and short spans side by side are one for all of them. On CUDA all
    layers of a span are one launch: there, the sequence is one long page. The window moves the
    values that the tensors hold at the time. In host memory it refuses tensors whose place or
    strides have changed since its first copy; elsewhere these must not change while it is used.
    """

    def __init__(
        self,
        layout: KVLayout,
        tensors: Sequence[Sequence[torch.Tensor]],
        *,
        fused: bool | None = None,
        direct: bool = False,
    ) -> None:
        """Use *tensors* as *layout*.

        Args:
            layout: of the KV.
            tensors: of any strides.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: their shape or dtype is not the layout's, or they differ in tokens.
        """
        differ = check_planes(layout, tensors)
        self._layout = layout
        self._tokens = int(tensors[0][0].shape[2])
        for layer in differ:
            for plane, tensor in zip(layout.planes[layer], tensors[layer], strict=True):
                expected = (1, plane.heads, self._tokens, plane.width)
                if tensor.shape != expected:
                    raise LayoutMismatch(
                        f"layer {layer} plane {plane.name!r} has shape {tuple(tensor.shape)}, "
                        f"not {expected}"
                    )
        kinds = [tensor for layer in differ for tensor in tensors[layer]]
        self._on_host = all(map(reaches, kinds))
        self._gpus = set() if self._on_host else gpus({tensor.device for tensor in kinds})
        self._tensors = list(map(tuple, tensors))
        self._fused = None
        if Fused.wanted(tensors[0][0].device, fused):
            pages = [[tensor.transpose(1, 2) for tensor in given] for given in tensors]
            self._fused = Fused.over(layout, pages, fused, direct=direct)
        self._sent = Sent(np.arange(self._tokens if self._fused else 0, dtype=np.int64))
        self._looked: Sequence[HostSequence | Stacks] = ()

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def background(self) -> bool:
        """True on the CPU; on a GPU the caller's stream orders the copies."""
        return self._fused is None and self._on_host

    @property
    def tokens(self) -> int:
        return self._tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self._tokens, spans, layers, write=True)
        if self._fused is not None:
            return self._fused.move(self._sent, spans, chosen, scatter=False)
        runs = [Run(batch) for batch in batches(spans)]
        for stacks in self._stacks(chosen):
            stacks.gather(runs, chosen)
        return transfer_on(self._gpus)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self._tokens, spans, layers)
        if self._fused is not None:
            return self._fused.move(self._sent, spans, chosen, scatter=True)
        runs = [Run(batch) for batch in batches(spans)]
        for stacks in self._stacks(chosen):
            stacks.scatter(runs, chosen)
        return transfer_on(self._gpus)

    def _stacks(self, layers: range) -> Sequence[HostSequence | Stacks]:
        """Return the tensors as ``[tokens, heads, width]``, made at the first copy.

        Raises:
            InvalidRequest: one of *layers* lies elsewhere than at a former copy, or has another
                shape or dtype than when it was checked.
        """
        if self._looked:
            for stacks in self._looked:
                stacks.verify(layers)
        else:
            if self._on_host:
                self._looked = [HostSequence(self._layout, self._tensors, self._tokens)]
            else:
                planes, tensors = [*chain(*self._layout.planes)], [*chain(*self._tensors)]
                refuse_changed(self._layout, planes, tensors, self._tokens)
                self._looked = stacked(self._layout, self._tensors, 1, axes=(2, 1, 3))
        return self._looked

    def decodes(self, serde: Serde) -> bool:
        """True on CUDA with Triton, for serdes that a device can decode."""
        return decodes(self._fused, self._layout, serde)

    def scatter_encoded(self, serde: Serde, spans: Sequence[EncodedSpan]) -> Transfer:
        return self.scatter_encoded_layers(serde, spans, range(self._layout.layers))

    def scatter_encoded_layers(
        self, serde: Serde, spans: Sequence[EncodedSpan], layers: range
    ) -> Transfer:
        decoding = Decoding(self._fused, self._layout, serde, spans, self._tokens, layers)
        return decoding.scatter(self._sent)
