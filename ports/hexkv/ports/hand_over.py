"""Stores whose memory another process can go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey


class PlacedFrame(NamedTuple):
    """One frame in a file that is handed over."""

    key: ChunkKey
    offset: int
    """Where it begins, in bytes; a multiple of ``frame.PAGE``."""

    size: int
    """Bytes of the frame."""


class FrameFile(NamedTuple):
    """A file without a name, and what a store keeps in it."""

    descriptor: int
    """Whoever made this closes it, after the call that it is passed to."""

    end: int
    """Bytes: nothing that anybody may still write to lies behind."""

    frames: Sequence[PlacedFrame]
    """What is worth least comes first. Pages of the file beside them are nobody's."""


@runtime_checkable
class SupportsHandOver(Protocol):
    """A store that can leave its memory to a store of the same kind in another process.

    One thread at a time calls it. The store that is to go on gets the file when it is opened
    (``plugins.spec.OpenContext.inherited``), and is frozen until :meth:`thaw`: the process before
    may take everything back.
    """

    def hand_over(self, keys: Sequence[ChunkKey]) -> FrameFile | None:
        """Freeze, and say where the frames of *keys* lie, in that order, each once; no others.

        From now on no write is taken, and no frame that is listed is changed, whether or not it
        is deleted; :meth:`~hexkv.ports.ChunkStore.close` does not change it, either. ``None``:
        this memory cannot be passed on, and the store goes on.
        """
        ...

    def thaw(self) -> None:
        """The memory is this store's. Free what was deleted meanwhile."""
        ...
