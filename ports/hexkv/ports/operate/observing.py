"""Observation of a process from outside: metrics, readiness, traces, and the content of its tiers.

An adapter of the kind ``observe`` is an :class:`Observer`. The composition root has it follow the
tiers of the process, if it publishes events, trace its calls, and serve an :class:`Observed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.operate.spans import SpanSink
from hexkv.ports.operate.telemetry import CacheEvent


class NamedPrompt(NamedTuple):
    """Consecutive chunks of a prompt, and their tokens."""

    identity: str
    """Canonical JSON of the namespace."""

    keys: Sequence[ChunkKey]
    ends: Sequence[int]
    """The position behind each chunk, counted from the first token of *tokens*."""

    tokens: memoryview
    """Little-endian uint32, at least ``ends[-1]`` of them. The caller's: valid during the call."""

    after: ChunkKey | None = None
    """The chunk before the first one; ``None`` at the beginning of the prompt."""


@runtime_checkable
class PromptSink(Protocol):
    """A sink of the tokens by which chunks are named: keys alone do not reveal them."""

    def named(self, prompt: NamedPrompt) -> None:
        """Receive the chunks of *prompt*, which a call is about to store or to look up.

        From any thread, once a call. Must not block or raise; copies the data that it keeps.
        """
        ...


class ContentFeed(PromptSink, Protocol):
    """A publisher of the content of tiers: an event sink that knows prompts, too."""

    def emit(self, event: CacheEvent) -> None:
        """See :class:`hexkv.ports.EventSink`."""
        ...


class Observed(Protocol):
    """The data that an observer serves. Called from its threads; never blocks or raises."""

    def metrics(self) -> str:
        """Return all metrics, in Prometheus' text format 0.0.4; empty once it has ended."""
        ...

    def unready(self) -> str:
        """Return why no requests should be sent here at present; empty if they may be."""
        ...

    def degraded(self) -> str:
        """Return the parts that do not work, of a process that is ready; empty if all do."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Makes one process observable from outside. Safe from any thread."""

    def follow(self, tiers: Mapping[str, bool], *, rank: int = 0) -> ContentFeed | None:
        """Return a feed for the content of tiers; ``None`` to publish none. Binds no address yet.

        Args:
            tiers: by name; True for those that keep chunks in memory. A tier that is attached
                later counts as one that does not.
            rank: of the process among those that share a model. Only the first one publishes.
        """
        ...

    def trace(self, model: str, *, rank: int = 0) -> SpanSink | None:
        """Return a sink for the calls of one engine; ``None`` to trace none. Sends nothing yet.

        Args:
            model: the model of the engine's KV.
            rank: as for :meth:`follow`. Every rank traces.
        """
        ...

    def serve(self, observed: Observed, *, rank: int = 0) -> None:
        """Serve *observed*, publish the feed and send the traces, as configured.

        Until :meth:`close`. A call that raised may be made again.

        Raises:
            ConfigError: it is not possible at the configured places.
        """
        ...

    def close(self) -> None:
        """End everything within a second. Never raises; twice is allowed."""
        ...
