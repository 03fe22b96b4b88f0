"""The chunking port: the bounds of a prompt's chunks, and which chunks continue each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Bounds(NamedTuple):
    """The bounds of one prompt's chunks: two columns, one row per chunk.

    Chunks are in order, not empty, and do not overlap. A chunk that starts where the one
    before it ends continues it: its key covers that one, too. A chunk after a gap, like
    the first one, is named by its own tokens alone.
    """

    starts: Sequence[int]
    """Token position at which each chunk starts."""

    ends: Sequence[int]
    """Token position at which each chunk ends, exclusive."""


@runtime_checkable
class Chunker(Protocol):
    """Cuts prompts. A pure function of the tokens: no state, safe on every thread."""

    @property
    def scheme(self) -> str:
        """A short ASCII name of the meaning of the cuts, for instance ``prefix/256``.

        Part of every key's identity: chunkers of different schemes share no keys. Settings
        that only decide which chunks are kept do not belong here.
        """
        ...

    def cut(self, packed: memoryview) -> Bounds:
        """Return the bounds of one prompt's chunks, in time proportional to its length.

        Appended tokens change only the chunks that end within the last few tokens: otherwise
        no turn of a conversation would find the chunks that the turn before it stored.

        Args:
            packed: the tokens as contiguous little-endian uint32, of format ``B``; the
                caller's again when the call returns.
        """
        ...
