"""The chunking port: where a prompt is cut, and which cuts belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Bounds(NamedTuple):
    """Where the chunks of one prompt lie: two columns, one row per chunk.

    Chunks are in order, not empty, and do not overlap. A chunk that starts where the one
    before it ends continues it: its name covers that one, too. A chunk after a gap, like
    the first one, stands for itself and is named by its own tokens alone.
    """

    starts: Sequence[int]
    """Token position at which each chunk starts."""

    ends: Sequence[int]
    """Token position at which each chunk ends, itself outside."""


@runtime_checkable
class Chunker(Protocol):
    """Cuts prompts. A pure function of the tokens: no state, safe on every thread."""

    @property
    def scheme(self) -> str:
        """What the cuts mean, in a short ASCII word, for instance ``prefix/256``.

        Part of every key's identity: chunkers of different schemes share no keys. Settings
        that only decide which chunks are kept at all do not belong here.
        """
        ...

    def cut(self, packed: memoryview) -> Bounds:
        """The bounds of the chunks of one prompt, in time proportional to its length.

        Tokens that follow change no chunk but those that end within the last few tokens:
        else no turn of a conversation would find what the turn before it stored.

        Args:
            packed: the tokens as contiguous little-endian uint32, of format ``B``; the
                caller's again when the call returns.
        """
        ...
