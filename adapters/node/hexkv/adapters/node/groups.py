"""The wire of a node: groups of layers that a hold brings one after another."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.node.wire import MAX_LAYERS, Reader, text


class LayerGroups(NamedTuple):
    """The groups of layers of a hold, as ``LAYERS`` names them."""

    hold: int
    """The number of the ``HOLD``."""

    about: int
    """The number of the answer about the groups."""

    groups: Sequence[range]


class Brought(NamedTuple):
    """What a hold has by now of its groups of layers."""

    groups: int
    """The number of the first groups that are here."""

    chunks: int
    """How many of the first chunks have them."""

    why: str
    """Why the next chunk has not; empty if it has, or is none of the hold."""


def pack_layers(layers: LayerGroups) -> bytes:
    """Return the body of ``LAYERS``."""
    ends = [group.stop for group in layers.groups]
    return pack(f"<QQI{len(ends)}I", layers.hold, layers.about, len(ends), *ends)


def read_layers(body: bytes) -> LayerGroups:
    """Read the body of ``LAYERS``.

    Raises:
        BadMessage: it is none.
    """
    reader = Reader(body)
    hold, about = reader.column("Q", 2)
    ends = reader.column("I", reader.count(4))
    reader.end()
    groups = list(map(range, (0, *ends), ends))
    if not ends or ends[-1] > MAX_LAYERS or not all(groups):
        raise BadMessage("no groups of layers")
    return LayerGroups(hold, about, groups)


def pack_brought(brought: Brought) -> bytes:
    """Return the body of an answer about groups of layers."""
    return pack("<II", brought.groups, brought.chunks) + text(brought.why)


def read_brought(body: bytes) -> Brought:
    """Read the body of an answer about groups of layers.

    Raises:
        BadMessage: it is none.
    """
    reader = Reader(body)
    groups, chunks = reader.column("I", 2)
    why = reader.text()
    reader.end()
    return Brought(groups, chunks, why)
