"""The listing of the chunks in a node's memory, for clients that copy them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from struct import pack

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.node.wire import (
    MAX_SPACES,
    Reader,
    Wanted,
    pack_wanted,
    read_wanted,
)
from hexkv.ports import ChunkKey, ChunkSpec, KVLayout

MOST = 1024
"""Chunks in one answer: even with a namespace for each, it fits a body."""


def pack_after(after: ChunkKey | None) -> bytes:
    """Return the body of ``LIST``: the key after which to begin."""
    return pack("<B", after is not None) + (after or b"")


def pack_listing(specs: Sequence[ChunkSpec]) -> bytes:
    """Return the answer to ``LIST``: the namespaces, then a row for each chunk."""
    spaces: dict[tuple[str, int], int] = {}
    described: list[tuple[str, dict[str, object]]] = []
    numbers = []
    for spec in specs:
        name = spec.identity, id(spec.layout)
        if name not in spaces:
            spaces[name] = len(described)
            described.append((spec.identity, spec.layout.describe()))
        numbers.append(spaces[name])
    head = json.dumps(described, separators=(",", ":")).encode()
    rows = Wanted(
        "",
        [spec.key for spec in specs],
        numbers,
        [spec.tokens for spec in specs],
        [-1 if spec.position is None else spec.position for spec in specs],
    )
    return pack("<I", len(head)) + head + pack_wanted(rows)


def read_listing(reader: Reader) -> list[ChunkSpec]:
    """Read the answer to ``LIST``.

    Raises:
        BadMessage: it is none.
    """
    try:
        described = json.loads(reader.plain(reader.number()))
        spaces = [(str(text), KVLayout.parse(layout)) for text, layout in described]
    except (ValueError, TypeError, RecursionError) as wrong:
        raise BadMessage("no namespaces") from wrong
    rows = read_wanted(reader.data(reader.left))
    if len(spaces) > MAX_SPACES or len(rows.keys) > MOST:
        raise BadMessage(f"{len(rows.keys)} chunks of {len(spaces)} namespaces")
    try:
        return [
            ChunkSpec(key, *spaces[number], tokens, position=None if position < 0 else position)
            for key, number, tokens, position in zip(*rows[1:], strict=True)
        ]
    except IndexError as wrong:
        raise BadMessage("a namespace that was not sent") from wrong
