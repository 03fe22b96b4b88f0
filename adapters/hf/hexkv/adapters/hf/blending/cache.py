"""A cache whose layers hold reused KV, over which fresh KV is written."""

from __future__ import annotations

import torch

from hexkv.adapters.hf.blending.progress import Pass
from hexkv.adapters.hf.cache import LoadedCache, RequestKV, ReservedLayer


class BlendedLayer(ReservedLayer):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """One layer's KV of whole prompts. Before its rows are computed, it counts known slots only."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, progress: Pass, index: int
    ) -> None:
        """Take *keys* and *values* as the room, which later holds the KV that *progress* reuses."""
        super().__init__(keys, values, progress.known)
        self._progress: Pass | None = progress
        self._index = index

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write fresh KV at the places of its tokens; gives the KV of all tokens."""
        progress, self._progress = self._progress, None
        if progress is None:
            return super().update(key_states, value_states, *args, **kwargs)
        progress.compute(self._index, (key_states, value_states), self._room)
        keys, values = (room[:, :, : progress.tokens] for room in self._room)
        self.keys, self.values = keys, values
        return keys, values


class BlendedCache(LoadedCache):
    """A cache of prompts that are blended in one pass, and then gone on from.

    Its KV is approximate: it must be stored under no prefix.
    """

    def __init__(self, room: RequestKV, progress: Pass) -> None:
        """Take *room*, in which the prompts end together, for the pass of *progress*."""
        layers = [
            BlendedLayer(keys, values, progress, index)
            for index, (keys, values) in enumerate(room.planes)
        ]
        super().__init__([*layers], progress.tokens)
        self.progress: Pass | None = progress
        """The state of the pass under way; ``None`` after it."""
