"""The cache of segments: KV computed alone, found and given back wherever its tokens stand.

What a blender asks, beside the cache by tokens whose ``segments`` it is. Safe from any thread;
calls, errors and deadlines are as those of :mod:`hexkv.ports.prefix_cache`, and a miss is a hole.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Self

from hexkv.ports.blend_report import BlendReport
from hexkv.ports.blending import PromptParts, RetrievedParts
from hexkv.ports.chunker import Bounds
from hexkv.ports.device import DeviceKV
from hexkv.ports.keys import Namespace
from hexkv.ports.results import StoreReport
from hexkv.ports.tokens import Tokens


class LayeredSegments(Protocol):
    """A retrieve of parts under way: an iterator over the layers, which come in order.

    When an iteration gives a layer, the device holds that layer's KV of the prefix and of the
    segments. Every layer comes, also if nothing was found.
    """

    @property
    def parts(self) -> PromptParts:
        """What is there, as far as is known by now.

        A chunk that turns out to be damaged makes it less at any layer: who has used more begins
        again without it.
        """
        ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> int:
        """Wait for the next layer and return its number."""
        ...

    def result(self) -> RetrievedParts:
        """Return what was loaded. Only after the last layer."""
        ...


class SegmentCache(Protocol):
    """Segments by their tokens, in prompts of which they are parts."""

    def cut(self, tokens: Tokens) -> Bounds:
        """Where the segments of a prompt lie, by the separator that is configured."""
        ...

    def find(
        self, tokens: Tokens, *, recomputed: float = 0.0, namespace: Namespace | None = None
    ) -> PromptParts:
        """What the tiers hold of a prompt: its longest prefix, then segments. Loads nothing.

        Segments are left out that come from their tier more slowly than what they save: the
        share of the work on their tokens that is not *recomputed* all the same, in [0, 1].
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
        """Load prefix and segments into *device*, each where it stands in the prompt.

        The keys of segments are as they were stored: to be rotated by each run's ``offset``.
        Positions in holes are not touched.

        Args:
            tokens: the prompt.
            device: a window on as many positions as there are tokens.
            skip: tokens at the front whose exact KV the device holds already.
            parts: what :meth:`find` gave for this prompt; by default it is asked here.
            recomputed: see there.
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

        Until the context is left the segments' chunks are held in memory, all of them.
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
        """Store one segment, which *device* holds as computed alone, at positions from 0 on."""
        ...

    def register(self, tokens: Tokens, *, namespace: Namespace | None = None) -> int:
        """Have :meth:`find` know a segment that was stored before, or by another process.

        Return how many of its first tokens the tiers hold.
        """
        ...

    def forget(self, tokens: Tokens, *, namespace: Namespace | None = None) -> int:
        """Delete one segment from every tier. How many chunks are known to be deleted."""
        ...

    def report(self, blend: BlendReport) -> None:
        """Count a request as its host computed it. Never raises."""
        ...


class SegmentAccess(Protocol):
    """The way from the cache by tokens to the one of segments."""

    @property
    def segments(self) -> SegmentCache:
        """The cache of segments, on the same tiers. It ends with this one."""
        ...
