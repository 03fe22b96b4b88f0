"""The cache of segments: KV computed alone, found and loaded at any place of its tokens.

A blender uses it beside the cache by tokens. Safe from any thread; calls, errors and deadlines are
as those of :mod:`hexkv.ports.prefix_cache`, and a miss is a hole.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Self

from hexkv.blending.ports.parts import PromptParts, RetrievedParts
from hexkv.blending.ports.report import BlendReport
from hexkv.ports.device import DeviceKV
from hexkv.ports.keys import Namespace, Tokens
from hexkv.ports.prefix_cache import PrefixCache
from hexkv.ports.results import StoreReport
from hexkv.ports.runtime.chunker import Bounds


class LayeredSegments(Protocol):
    """A retrieve of parts under way: an iterator over the layers, which come in order.

    When an iteration returns a layer, the device holds that layer's KV of the prefix and of the
    segments. Every layer is returned, also if nothing was found.
    """

    @property
    def parts(self) -> PromptParts:
        """The parts that are there, as far as known by now.

        A chunk that turns out to be damaged reduces them at any layer: a caller that has used
        more begins again without it.
        """
        ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> int:
        """Wait for the next layer and return its number."""
        ...

    def result(self) -> RetrievedParts:
        """Return the result of the load. Only after the last layer."""
        ...


class SegmentCache(Protocol):
    """Segments by their tokens, in prompts of which they are parts."""

    def cut(self, tokens: Tokens) -> Bounds:
        """Return the bounds of a prompt's segments, by the configured separator."""
        ...

    def find(
        self, tokens: Tokens, *, recomputed: float = 0.0, namespace: Namespace | None = None
    ) -> PromptParts:
        """Return the parts of a prompt on the tiers: its longest prefix, then segments. Loads none.

        Leaves out segments whose load takes longer than the work that they save. *recomputed* is
        the share of the work on their tokens that is done anyway, in [0, 1].
        """
        ...

    def retrieve(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        parts: PromptParts | None = None,
        recomputed: float = 0.0,
        namespace: Namespace | None = None,
    ) -> RetrievedParts:
        """Load prefix and segments into *device*, each at its place in the prompt.

        The keys of segments are loaded as stored; the caller rotates them by each run's
        ``offset``. Positions in holes are not touched.

        Args:
            tokens: the prompt.
            device: a window on as many positions as there are tokens.
            skip: tokens at the front whose exact KV the device holds already.
            parts: the result of :meth:`find` for this prompt; by default this calls it.
            recomputed: as for :meth:`find`.
            namespace: of this request.
        """
        ...

    def retrieve_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        parts: PromptParts | None = None,
        recomputed: float = 0.0,
        namespace: Namespace | None = None,
    ) -> AbstractContextManager[LayeredSegments]:
        """:meth:`retrieve`, layer by layer: segments are read while the host computes.

        All chunks of the segments are held in memory until the context is left.
        """
        ...

    def store(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> StoreReport:
        """Store one segment, whose KV in *device* was computed alone, at positions from 0 on."""
        ...

    def register(self, tokens: Tokens, *, namespace: Namespace | None = None) -> int:
        """Make a segment known to :meth:`find` that was stored before, or by another process.

        Return how many of its first tokens the tiers hold.
        """
        ...

    def forget(self, tokens: Tokens, *, namespace: Namespace | None = None) -> int:
        """Delete one segment from every tier. Return how many chunks are known to be deleted."""
        ...

    def report(self, blend: BlendReport) -> None:
        """Count a request by its host's report. Never raises."""
        ...


class SegmentedCache(PrefixCache, Protocol):
    """A cache by tokens that has a cache of segments beside it."""

    @property
    def segments(self) -> SegmentCache:
        """The cache of segments, on the same tiers. It ends with this one."""
        ...
