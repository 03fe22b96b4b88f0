"""The messages of the scheduler side to the workers, once per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hexkv.ports import Reason


class RankClient(Protocol):
    """A way to one rank's engine: :class:`~hexkv.adapters.vllm.lookup.channel.ChannelClient`."""

    def ask(self, op: str, tokens: bytes = b"", *, wanted: bool = True, **more: object) -> int: ...
    def take(self, number: int, seconds: float = 0.0) -> Mapping[str, object] | None: ...
    def drop(self, number: int) -> None: ...
    def close(self) -> None: ...


class Scope(NamedTuple):
    """The properties that make a request's KV differ from others of the same model and tokens."""

    lora: str = ""
    """Name of the LoRA adapter; its content is known in the workers, once it is loaded."""

    salt: str = ""
    """vLLM's ``cache_salt``."""

    inputs: str = ""
    """Digest of the images, sounds, ... that stand behind placeholder tokens."""

    adapter: int = 0
    """vLLM's number of the LoRA adapter; 0: there is none."""


class Kept(NamedTuple):
    """The KV that a prefiller has kept for one decoder."""

    hold: str = ""
    """Name of its pin on the node; none if empty."""

    fresh: int = -1
    """Token from which on chunks were made for this decoder; -1: unknown."""


class Computed(NamedTuple):
    """A prompt that was announced, and is computed with a step."""

    request: str
    scope: Scope
    tokens: bytes
    """All of its chunks, as uint32 of this machine."""

    hold: str = ""
    """Name of the pin that keeps them for a decoder; none if empty."""


@dataclass(frozen=True, slots=True)
class Load:
    """Chunks to put into a request's blocks."""

    request: str
    scope: Scope
    tokens: bytes
    """Tokens of the chunks and of all before, as uint32 of this machine."""

    start: int
    """Positions before this one are shared with other requests: they must not be written."""

    end: int
    """Chunks end here."""

    blocks: Sequence[int]
    """Blocks from the request's first one on."""

    later: bool = False
    """True if the request waits outside of any step until this is done."""

    kept: Kept = Kept()  # noqa: RUF009 - frozen
    """The KV to release then."""

    parent: str = ""
    """W3C's ``traceparent`` of the request; empty where it is not traced."""


@dataclass(frozen=True, slots=True)
class Save:
    """Chunks whose KV is complete after the step."""

    request: str
    scope: Scope
    tokens: bytes
    start: int
    end: int
    blocks: Sequence[int]
    hashes: Sequence[bytes] = ()
    """vLLM's, of the blocks from the one before *start* (or the first) on, with KV events only."""

    parent: str = ""


class Reused(NamedTuple):
    """A save whose blocks vLLM gives to another request."""

    step: int
    """The number of the step that planned it."""

    request: str


class Missed(NamedTuple):
    """The tokens of a request that are not loaded because no tier was found to hold them."""

    reason: Reason
    chunks: int
    tokens: int


@dataclass(slots=True)
class Step:
    """All loads and saves of one step."""

    number: int = 0
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    computed: list[Computed] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    reused: list[Reused] = field(default_factory=list)
    """Saves of earlier steps whose blocks are written in this one."""

    timed: bool = False
    """True if the workers report the seconds that it takes."""

    idle: bool = False
    """True if no request computes anything in it."""

    waits: bool = False
    """True if it is idle, and a request waits for an answer of a rank or another engine."""

    replaced: bool = False
    """True if the model's weights are not those that its KV is named after: no load is right."""
