"""How many neighbouring layers go together: what is small costs more to begin than to move."""

from __future__ import annotations

from math import ceil

from hexkv.core.frames.codec import layers_per_part
from hexkv.ports import KVLayout

_LEAST_BYTES = 4 << 20
"""Of all chunks together: less is copied sooner than a worker is woken."""

_MOST_BYTES = 128 << 20
"""Likewise: more is copied no faster, and the host could leave only after all of it."""

_SHARE = 8
"""A group has at most this part of all layers, since the host waits for one group at least: for
the first, and for one of the largest where it computes no slower than it loads."""

_GROWTH = 1.5
"""How much larger a group is than the one before. The host waits least where that is how much
longer it computes than it loads; where it computes still longer, hardly at all in either case."""


def part_groups(layout: KVLayout, tokens: int) -> list[range]:
    """The parts of frames that are read and copied together, in order.

    The first group is as small as is worth while, so that the host can begin, and each is half
    as large again as the one before: it has to arrive while the host computes that one.

    Args:
        layout: of the chunks.
        tokens: of all chunks together.
    """
    parts = -(-layout.layers // layers_per_part(layout))
    part_bytes = max(1, layout.chunk_bytes(tokens) // parts)
    size = min(parts, -(-_LEAST_BYTES // part_bytes))
    most = max(size, min(parts // _SHARE, _MOST_BYTES // part_bytes))
    groups: list[range] = []
    start = 0
    while start < parts:
        groups.append(range(start, min(start + size, parts)))
        start, size = groups[-1].stop, min(ceil(_GROWTH * size), most)
    return groups


def layer_groups(layout: KVLayout, tokens: int) -> list[range]:
    """The layers of :func:`part_groups`."""
    step, layers = layers_per_part(layout), layout.layers
    groups = part_groups(layout, tokens)
    return [range(group.start * step, min(group.stop * step, layers)) for group in groups]
