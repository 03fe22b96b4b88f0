"""A transformers cache with room for a whole request, into which a prefix can be loaded.

transformers' own dynamic layer grows by concatenation: every token that is generated copies
all KV before it, and so would loading a prefix and then computing the rest. This one is
given the memory of the whole request at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from hexkv.adapters.hf.held import differences, tolerance
from hexkv.adapters.hf.prompt_times import CallTimer
from hexkv.kernels import ContiguousKV, torch_dtype
from hexkv.ports import InvalidRequest, KVLayout, Namespace


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of a model's cache."""

    layout: KVLayout
    devices: tuple[torch.device, ...]
    """The device of each layer."""


_FIRST, _OTHERS = slice(0, 1), slice(1, None)


class ReservedLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Keys and values of one layer, growing within memory that is there already.

    ``keys`` and ``values`` are ``[sequences, heads, tokens, width]`` views of the filled part.
    Where the room does not suffice, the cache was reordered, repeated or moved, or gradients are
    recorded, the layer goes on as the dynamic layer that it is.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, filled: int) -> None:
        """Take *keys* and *values* as the room, *filled* tokens of which count already."""
        super().__init__()  # type: ignore[no-untyped-call]  # transformers annotates half of it
        self.dtype, self.device = keys.dtype, keys.device
        self._room = keys, values
        self.keys, self.values = keys[:, :, :filled], values[:, :, :filled]
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: object,  # differ between releases of transformers; only handed on
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the new tokens' KV; gives the KV of all tokens.

        Raises:
            InvalidRequest: they are of another number of sequences than the cache.
        """
        room_keys, room_values = self._room
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self.keys is not None and key_states.shape[0] != self.keys.shape[0]:
            raise InvalidRequest(
                f"the model computes {key_states.shape[0]} sequences, and the cache was loaded for"
                f" {self.keys.shape[0]}: as many beams or answers to one prompt need"
                f" load(..., sequences={key_states.shape[0]})"
            )
        if end > room_keys.shape[-2] or not self._in_room(key_states):
            grown: tuple[torch.Tensor, torch.Tensor] = super().update(
                key_states, value_states, *args, **kwargs
            )
            return grown
        room_keys[:, :, start:end] = key_states
        room_values[:, :, start:end] = value_states
        self.keys, self.values = room_keys[:, :, :end], room_values[:, :, :end]
        return self.keys, self.values

    def _in_room(self, key_states: torch.Tensor) -> bool:
        if not self.is_initialized or self.keys is None:
            return False
        if torch.is_grad_enabled():
            return False  # autograd may need the former values
        if key_states.shape[0] != self._room[0].shape[0]:
            return False
        # The room of all layers is one storage.
        here, home = (
            (keys.untyped_storage().data_ptr(), keys.storage_offset())
            for keys in (self.keys, self._room[0])
        )
        return here == home


class LoadedCache(DynamicCache):
    """A cache that holds a beginning of a prompt, and refuses calls that compute it again."""

    def __init__(self, layers: list[ReservedLayer], prompt: int) -> None:
        """Take *layers*, of a prompt of *prompt* tokens."""
        super().__init__()
        self.layers = [*layers]
        self.namespace: Namespace | None = None
        """The namespace of the loaded KV; ``None`` if KV computed behind it must not be stored."""

        self.timer: CallTimer | None = None
        """Times the first call, which computes the rest of the prompt."""

        self._prompt = prompt
        self._leader: int | None = None
        self._computed: list[int] = []

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append to a layer.

        Raises:
            InvalidRequest: all tokens are computed once more after the prompt, or the sequences
                are of different prompts.
        """
        if self._leader is None:
            self._leader = layer_idx
        if layer_idx == self._leader:
            known = self.get_seq_length(layer_idx)
            if len(self._computed) < 2:
                self._note(key_states.shape[-2], known)
            if self.namespace is not None and len(key_states) > 1 and known < self._prompt:
                self._refuse_other_prompts(known, (key_states, value_states))
        if self.timer is not None and len(self._computed) == 1:
            if layer_idx == self._leader:
                self.timer.begin(self._computed[0])
            elif layer_idx == self.timer.last:
                self.timer.end(self._computed[0])
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated

    def _note(self, tokens: int, known: int) -> None:
        if self._computed and known and tokens == known + 1:
            raise InvalidRequest(
                f"the model computes all {tokens} tokens again after its cache holds {known}:"
                " generate() does so with use_cache=False, which some configurations say; give it"
                " use_cache=True"
            )
        self._computed.append(tokens)

    def _refuse_other_prompts(self, known: int, fresh: Sequence[torch.Tensor]) -> None:
        """Refuse rows whose tokens within the prompt differ. The first layer's KV shows that.

        Raises:
            InvalidRequest: names the sequence, and the token.
        """
        rest = self._prompt - known
        first, others = ([plane[rows, :, :rest] for plane in fresh] for rows in (_FIRST, _OTHERS))
        apart = differences(first, others) > tolerance(fresh[0].dtype)
        if bool(apart.any()):
            row, token = apart.nonzero()[0].tolist()
            raise InvalidRequest(
                f"sequence {row + 1} differs from sequence 0 at token {known + token}, and the"
                " cache was loaded for one prompt: each prompt needs a cache and a call of its own"
            )

    def activate_past_recording(self) -> None:
        """Refuse; transformers calls it before assisted generation, and for nothing else.

        Raises:
            InvalidRequest: always.
        """
        raise InvalidRequest(
            "generation with an assistant model, prompt lookup or other drafts has the model"
            " compute the whole prompt at first, as if its cache were empty: leave out"
            " the cache, or the drafts"
        )

    def crop(self, *args: int, **kwargs: int) -> None:
        """Take back tokens.

        Raises:
            InvalidRequest: in releases without :meth:`activate_past_recording`, where drafts of
                assisted generation show only as they are taken back.
        """
        records = hasattr(DynamicCache, "activate_past_recording")
        if not records and self._computed and self._computed[0] >= self._prompt:
            self.activate_past_recording()
        super().crop(*args, **kwargs)


class RequestKV:
    """Uninitialised memory for the KV of one request.

    Args:
        shape: of the model's cache.
        tokens: of the prompt and of its continuation.
        sequences: that continue the prompt.
    """

    def __init__(self, shape: CacheShape, tokens: int, sequences: int = 1) -> None:
        dtype = torch_dtype(shape.layout.dtype)
        self._layout = shape.layout
        self._layers: list[list[torch.Tensor]] = []
        # Layers that are alike in one allocation: copied together, checked in no time.
        for (planes, device), alike in groupby(
            zip(shape.layout.planes, shape.devices, strict=True)
        ):
            layers = len([*alike])
            # Tensors of inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                rooms = [
                    torch.empty(
                        (layers, sequences, plane.heads, tokens, plane.width),
                        dtype=dtype,
                        device=device,
                    )
                    for plane in planes
                ]
            self._layers.extend(map(list, zip(*rooms, strict=True)))

    def of_sequence(self, sequence: int, start: int) -> Self:
        """The room of one sequence that begins at the position *start*. It is the same memory."""
        room = copy(self)
        room._layers = [
            [plane[sequence : sequence + 1, :, start:] for plane in planes]
            for planes in self._layers
        ]
        return room

    def pad(self, before: Sequence[int]) -> None:
        """Zero positions at the front of each sequence, as many as *before* has for it.

        Nothing attends to them, but a value without weight must still be a number.
        """
        for planes in self._layers:
            for plane in planes:
                for sequence, positions in enumerate(before):
                    plane[sequence, :, :positions] = 0

    @property
    def planes(self) -> Sequence[Sequence[torch.Tensor]]:
        """``[layer][plane]`` of ``[sequences, heads, tokens, width]``: all of it."""
        return self._layers

    def window(self, tokens: int) -> ContiguousKV:
        """A window on the first *tokens* positions of the first sequence."""
        first = [[plane[:1] for plane in planes] for planes in self._layers]
        return window(self._layout, first, tokens)

    def fill(self, layers: Sequence[Sequence[torch.Tensor]], start: int = 0) -> None:
        """Copy ``[layer][plane]`` of ``[1, heads, tokens, width]`` to the position *start*."""
        for planes, known in zip(self._layers, layers, strict=True):
            for plane, filled in zip(planes, known, strict=True):
                plane[:, :, start : start + filled.shape[2]] = filled

    def cache(self, filled: int, prompt: int) -> LoadedCache:
        """The room as a cache; *filled* tokens of the first sequence are known, and shared.

        Args:
            filled: tokens whose KV is in the window.
            prompt: tokens of the prompt.
        """
        for planes in self._layers:
            for plane in planes:
                plane[1:, :, :filled] = plane[:1, :, :filled]
        return self.filled(filled, prompt)

    def filled(self, filled: int, prompt: int) -> LoadedCache:
        """The room as a cache; *filled* tokens of each sequence are known.

        Args:
            filled: tokens whose KV is in the room.
            prompt: tokens of the longest prompt.
        """
        layers = [ReservedLayer(keys, values, filled) for keys, values in self._layers]
        return LoadedCache(layers, prompt)


def window(layout: KVLayout, layers: Sequence[Sequence[torch.Tensor]], tokens: int) -> ContiguousKV:
    """A window on the first *tokens* positions of *layers*."""
    return ContiguousKV(layout, [[plane[:, :, :tokens] for plane in planes] for planes in layers])
