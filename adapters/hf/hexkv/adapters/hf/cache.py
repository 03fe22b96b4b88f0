"""A transformers cache with room for a whole request, into which a prefix can be loaded.

transformers' own dynamic layer grows by concatenation: every token that is generated copies
all KV before it, and so would loading a prefix and then computing the rest. This one is
given the memory of the whole request at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from hexkv.kernels import ContiguousKV, torch_dtype
from hexkv.ports import KVLayout, LayoutMismatch


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a model's cache looks like."""

    layout: KVLayout
    devices: tuple[torch.device, ...]
    """Where each layer is."""


class ReservedLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """Keys and values of one layer, growing within memory that is there already.

    ``keys`` and ``values`` are always ``[1, heads, tokens, width]`` views of what is filled.
    Where the room does not suffice, or the cache was reordered, repeated or moved, the layer
    goes on as the dynamic layer that it is.
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
        """Append the new tokens' KV; gives the KV of all tokens."""
        room_keys, room_values = self._room
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
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
        if not self.is_initialized or key_states.shape[0] != 1 or self.keys is None:
            return False
        home = self._room[0].untyped_storage().data_ptr()
        return bool(self.keys.untyped_storage().data_ptr() == home)


class Room:
    """Uninitialised memory for the KV of one request."""

    def __init__(self, shape: CacheShape, tokens: int) -> None:
        dtype = torch_dtype(shape.layout.dtype)
        self._layout = shape.layout
        self._layers = [
            [
                torch.empty(1, plane.heads, tokens, plane.width, dtype=dtype, device=device)
                for plane in planes
            ]
            for planes, device in zip(shape.layout.planes, shape.devices, strict=True)
        ]

    def window(self, tokens: int) -> ContiguousKV:
        """A window on the first *tokens* positions."""
        return window(self._layout, self._layers, tokens)

    def cache(self, filled: int) -> DynamicCache:
        """The room as a cache whose first *filled* tokens are known."""
        cache = DynamicCache()
        cache.layers = [ReservedLayer(keys, values, filled) for keys, values in self._layers]
        return cache


def window(layout: KVLayout, layers: Sequence[Sequence[torch.Tensor]], tokens: int) -> ContiguousKV:
    """A window on the first *tokens* positions of *layers*."""
    return ContiguousKV(layout, [[plane[:, :, :tokens] for plane in planes] for planes in layers])


def planes_of(cache: DynamicCache) -> list[list[torch.Tensor]]:
    """``[layer][plane]`` of ``[1, heads, tokens, width]``.

    Raises:
        LayoutMismatch: a layer holds nothing.
    """
    planes = []
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, CacheLayerMixin) or layer.keys is None or layer.values is None:
            raise LayoutMismatch(f"layer {index} of the cache holds no KV")
        planes.append([layer.keys, layer.values])
    return planes
