"""Recording of a cache's calls, for planning and reports.

An observer with this ability (:class:`SupportsRecording`) gives the engine a :class:`CallSink`,
which receives each call after its end. Written records name chunks by salted digests only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.operate.health import TierHealth


class RecordedKind(StrEnum):
    """The kind of a recorded call."""

    LOOKUP = "lookup"
    """A lookup of a request's prompt. Only lookups that pin are recorded: others are questions,
    not requests."""

    RETRIEVE = "retrieve"
    STORE = "store"


class RecordedStep(NamedTuple):
    """A timed step within a call; see :class:`hexkv.ports.TraceStep`."""

    name: str
    tier: str
    seconds: float


class RecordedCall(NamedTuple):
    """One call of a cache, after its end."""

    kind: RecordedKind
    began: float
    """In seconds of the cache's clock; in a record that was read from a file, of the wall clock."""

    seconds: float
    tokens: int
    """Tokens in the whole prompt."""

    keys: Sequence[ChunkKey]
    """The chunks of the call, in the order of the prompt."""

    start: int
    """Position of the first token in them."""

    end: int
    """Position behind the last token in them. The last chunk may be shorter than the others."""

    tiers: Mapping[str, int]
    """Tokens by tier: found, loaded or stored there."""

    misses: Mapping[str, int] = {}
    """Tokens of a retrieve that were not loaded, by reason."""

    present: int = 0
    """Tokens of a store that were there already."""

    request: str = ""
    """The host's id of the request, equal in all its calls; empty if unknown."""

    by_key: bool = False
    """True if the host named the chunks itself: they may begin anywhere in a prompt."""

    steps: Sequence[RecordedStep] = ()
    """The timed steps of the call, in order; empty if unknown."""


@runtime_checkable
class CallSink(Protocol):
    """A sink of a cache's calls."""

    def record(self, call: RecordedCall) -> None:
        """Receive one call, after its end. From any thread; must not block or raise."""
        ...


class RecordedCache(NamedTuple):
    """The description of a cache in its record."""

    model: str
    chunk_tokens: int
    """Tokens of a full chunk."""

    chunk_bytes: int
    """Bytes of a full chunk's frame before encoding."""

    compute_rate: float | None = None
    """Tokens per second that the model computes; ``None`` if unknown."""

    tiers: Callable[[], Sequence[TierHealth]] = lambda: ()
    """Return the tiers and their use now. May wait as long as a lookup; never raises."""


@runtime_checkable
class SupportsRecording(Protocol):
    """An observer that can write a record of calls."""

    def recording(self, cache: RecordedCache, *, rank: int = 0) -> CallSink | None:
        """Begin a record of *cache*; ``None`` if none is wanted. Ends with the observer.

        Args:
            cache: the recorded cache.
            rank: of the process among those that share a model. Only the first one records.

        Raises:
            ConfigError: it cannot be written at the configured place.
        """
        ...
