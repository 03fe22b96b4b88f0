"""Recording: what was asked of a cache, call by call, for planning and reports.

An observer that is able to (:class:`SupportsRecording`) gives the engine a :class:`CallSink`, which
learns each call after its end. What is written anywhere names chunks by salted digests only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.health import TierHealth
from hexkv.ports.keys import ChunkKey


class RecordedKind(StrEnum):
    """What a call did."""

    LOOKUP = "lookup"
    """Asked how much of a request's prompt is there. Only lookups that pin are recorded: others are
    questions, not requests."""

    RETRIEVE = "retrieve"
    STORE = "store"


class RecordedStep(NamedTuple):
    """What took time within a call; see :class:`hexkv.ports.TraceStep`."""

    name: str
    tier: str
    seconds: float


class RecordedCall(NamedTuple):
    """One call of a cache, after its end."""

    kind: RecordedKind
    began: float
    """In seconds of the cache's clock; in a file that was read, of the wall clock."""

    seconds: float
    tokens: int
    """In the whole prompt."""

    keys: Sequence[ChunkKey]
    """The chunks that it was about, in the order of the prompt."""

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
    """What the host calls the request, where it says so; the same for its calls."""

    by_key: bool = False
    """True if the host named the chunks itself: they may begin anywhere in a prompt."""

    steps: Sequence[RecordedStep] = ()
    """Where its time went, in order, where that is known."""


@runtime_checkable
class CallSink(Protocol):
    """Told of each call of a cache."""

    def record(self, call: RecordedCall) -> None:
        """One call, after its end. From any thread; must not block or raise."""
        ...


class RecordedCache(NamedTuple):
    """What a record says of its cache."""

    model: str
    chunk_tokens: int
    """Tokens of a full chunk."""

    chunk_bytes: int
    """Bytes of the frame of one, as it was computed."""

    compute_rate: float | None = None
    """Tokens per second that the model computes, where that is known."""

    tiers: Callable[[], Sequence[TierHealth]] = lambda: ()
    """How full the tiers are now. May wait as long as a lookup; never raises."""


@runtime_checkable
class SupportsRecording(Protocol):
    """An observer that can write a record of calls."""

    def recording(self, cache: RecordedCache, *, rank: int = 0) -> CallSink | None:
        """Begin a record of *cache*; ``None`` if none is wanted. Ends with the observer.

        Args:
            cache: what the record is of.
            rank: of the process among those that share a model. Only the first one records.

        Raises:
            ConfigError: it cannot be written where the settings say.
        """
        ...
