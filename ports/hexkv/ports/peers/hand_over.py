"""An ability of stores: another process can take over their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey


class PlacedFrame(NamedTuple):
    """One frame in a file that is handed over."""

    key: ChunkKey
    offset: int
    """Offset in the file, in bytes; a multiple of ``frame.PAGE``."""

    size: int
    """Bytes of the frame."""


class FrameFile(NamedTuple):
    """A file without a name, and the frames that a store keeps in it."""

    descriptor: int
    """Closed by the creator of this value, after the call that it is passed to."""

    end: int
    """Bytes of the used part: no process may still write behind it."""

    frames: Sequence[PlacedFrame]
    """The frames, the least valuable first. The file's other pages are unused."""


@runtime_checkable
class SupportsHandOver(Protocol):
    """A store that can leave its memory to a store of the same kind in another process.

    One thread at a time calls it. The new store gets the file when it is opened
    (``plugins.spec.OpenContext.inherited``), and is frozen until :meth:`thaw`: until then the old
    process may take everything back.
    """

    def hand_over(self, keys: Sequence[ChunkKey]) -> FrameFile | None:
        """Freeze, and return the places of the frames of *keys* alone, in that order, each once.

        From now on the store accepts no write and changes no listed frame, even if it is deleted;
        :meth:`~hexkv.ports.ChunkStore.close` does not change it, either. ``None``: this memory
        cannot be handed over, and the store goes on.
        """
        ...

    def thaw(self) -> None:
        """Take the memory as this store's own, and free the frames deleted while frozen."""
        ...
