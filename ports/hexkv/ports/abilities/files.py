"""An ability of stores: each frame is a file, which an I/O library can read and write directly.

For adapters that copy between files and memory another way (NIXL, cuFile), and leave to such a
store the places of files, and how they are published, counted, listed and set aside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import WriteOutcome
from hexkv.ports.runtime.clock import Deadline


@runtime_checkable
class SupportsFiles(Protocol):
    """A store that keeps each frame in a regular file of its own."""

    def open_file(self, key: ChunkKey) -> int | None:
        """Return a descriptor of the frame's file, open for reading; ``None`` if there is none.

        The caller closes it. A frame that replaces this one is another file.

        Raises:
            StoreError: it cannot be opened, or the store was closed.
        """
        ...

    def put_file(
        self, key: ChunkKey, size: int, fill: Callable[[int], None], deadline: Deadline
    ) -> WriteOutcome:
        """Store a frame of *size* bytes, which *fill* writes into an empty file.

        Args:
            key: of the chunk.
            size: bytes of the frame; they are reserved.
            fill: called with a descriptor, open for reading and writing until it returns. If it
                raises a ``StoreError`` or an ``OSError``, the outcome is ``Failed``.
                The file is published after it, whole, or not at all.
            deadline: as of a write.
        """
        ...
