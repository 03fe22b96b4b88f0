"""An ability of stores: their frames are files, which a library may read and write by itself.

For adapters that bring bytes between files and memory another way (NIXL, cuFile), and leave to
such a store where files are, how they are published, counted, listed and set aside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from hexkv.ports.clock import Deadline
from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import WriteOutcome


@runtime_checkable
class SupportsFiles(Protocol):
    """A store that keeps each frame as a regular file that holds nothing else."""

    def open_file(self, key: ChunkKey) -> int | None:
        """A descriptor of the frame's file, open for reading; ``None`` if there is none.

        The caller's, who closes it. What replaces the frame meanwhile is another file.

        Raises:
            StoreError: it cannot be opened, or the store was closed.
        """
        ...

    def put_file(
        self, key: ChunkKey, size: int, fill: Callable[[int], None], deadline: Deadline
    ) -> WriteOutcome:
        """Keep a frame of *size* bytes, which *fill* writes into an empty file.

        Args:
            key: of the chunk.
            size: bytes of the frame; they are reserved.
            fill: is given a descriptor, open for reading and writing until it returns. What it
                raises is the outcome: a ``StoreError`` or an ``OSError`` a ``Failed``.
                The file is published after it, whole, or not at all.
            deadline: as of a write.
        """
        ...
