"""The sizes of groups of neighbouring layers: a small copy costs more to start than to do."""

from __future__ import annotations

from math import ceil

from hexkv.core.frames.codec import layers_per_part
from hexkv.ports import KVLayout

_LEAST_BYTES = 4 << 20
"""The fewest bytes of all chunks in a group: copying less is faster than waking a worker."""

_MOST_BYTES = 128 << 20
"""The most bytes: copying more is not faster, and the host could leave only after all of it."""

_SHARE = 6
"""A group has at most this part of all layers, since the host waits for one group at least: for
the first, and for one of the largest if it computes no slower than it loads."""

_LONGER = 1.5
"""The ratio of the host's time to compute a layer to that to load it, from which on the host waits
only for the first group; at still higher ratios it waits hardly more."""


def part_groups(layout: KVLayout, tokens: int) -> list[range]:
    """Return the parts of frames that are read and copied together, in order.

    The first group is as small as is worth while, so that the host can begin. Each next one has
    to arrive while the host computes those before it, also with rounded sizes. Groups that have
    reached the limit are of equal size, so that the last is not a small one.

    Args:
        layout: of the chunks.
        tokens: of all chunks together.
    """
    parts = -(-layout.layers // layers_per_part(layout))
    part_bytes = max(1, layout.chunk_bytes(tokens) // parts)
    size = min(parts, -(-_LEAST_BYTES // part_bytes))
    most = max(size, min(parts // _SHARE, _MOST_BYTES // part_bytes))
    groups: list[range] = []
    first, start = size, 0
    while start < parts:
        left = parts - start
        groups.append(range(start, start + ceil(left / ceil(left / size))))
        start = groups[-1].stop
        size = min(first + int((_LONGER - 1) * start), most)
    return groups


def layer_groups(layout: KVLayout, tokens: int) -> list[range]:
    """Return the layers of :func:`part_groups`."""
    step, layers = layers_per_part(layout), layout.layers
    groups = part_groups(layout, tokens)
    return [range(group.start * step, min(group.stop * step, layers)) for group in groups]
