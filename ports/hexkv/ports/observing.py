"""What a process shows of itself from outside: numbers, whether it works, and what it holds.

An adapter of the kind ``observe`` is an :class:`Observer`. The composition root has it follow the
tiers of the process, if it publishes events, trace its calls, and serve what an :class:`Observed`
says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.spans import SpanSink
from hexkv.ports.telemetry import CacheEvent


class NamedPrompt(NamedTuple):
    """Consecutive chunks of a prompt, and their tokens."""

    identity: str
    """Of the namespace."""

    keys: Sequence[ChunkKey]
    ends: Sequence[int]
    """The position behind each chunk, counted from the first token that is given."""

    tokens: memoryview
    """Little-endian uint32, at least ``ends[-1]`` of them. The caller's: valid during the call."""

    after: ChunkKey | None = None
    """The chunk before the first one; ``None`` at the beginning of the prompt."""


@runtime_checkable
class PromptSink(Protocol):
    """Told which tokens chunks are named by. Keys alone say that to nobody."""

    def named(self, prompt: NamedPrompt) -> None:
        """Chunks of *prompt* are about to be stored, or were asked for.

        From any thread, once a call. Must not block or raise; copies what it keeps.
        """
        ...


class ContentFeed(PromptSink, Protocol):
    """What publishes the content of tiers: an event sink that knows prompts, too."""

    def emit(self, event: CacheEvent) -> None:
        """See :class:`hexkv.ports.EventSink`."""
        ...


class Observed(Protocol):
    """What an observer serves. Called from its threads; never blocks, and does not raise."""

    def metrics(self) -> str:
        """All numbers, in Prometheus' text format 0.0.4; empty once it has ended."""
        ...

    def unready(self) -> str:
        """Why no requests should be sent here at present; empty if they may be."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Shows one process from outside. Safe from any thread."""

    def follow(self, tiers: Mapping[str, bool], *, rank: int = 0) -> ContentFeed | None:
        """Follow what tiers hold; ``None`` if nothing is to be published. Binds no address yet.

        Args:
            tiers: by name; True for those that keep chunks in memory. A tier that is attached
                later counts as one that does not.
            rank: of the process among those that share a model. Only the first one publishes.
        """
        ...

    def trace(self, model: str, *, rank: int = 0) -> SpanSink | None:
        """Trace the calls of one engine; ``None`` if nobody is to know of them. Sends nothing yet.

        Args:
            model: whose KV it is.
            rank: as of :meth:`follow`. Each one traces.
        """
        ...

    def serve(self, observed: Observed, *, rank: int = 0) -> None:
        """Serve *observed*, publish what was followed and send what was traced, as settings say.

        Until :meth:`close`. A call that raised may be made again.

        Raises:
            ConfigError: that is not possible there.
        """
        ...

    def close(self) -> None:
        """End everything within a second. Never raises; twice is allowed."""
        ...
