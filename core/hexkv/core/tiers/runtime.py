"""The runtime of a process with tiers, built once by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol

from hexkv.core.io.rules import LaneRules
from hexkv.core.io.scheduler import Lane
from hexkv.core.notices import Notices
from hexkv.core.runtime import Runtime
from hexkv.core.tiers.index.ages import Ages
from hexkv.core.tiers.index.history import History
from hexkv.core.tiers.stores.bandwidth import ComputeRate, SerdeStats
from hexkv.core.tiers.stores.checked import CheckedSerde
from hexkv.ports import (
    CacheEvent,
    Change,
    ChunkKey,
    EventSink,
    Member,
    Peers,
    Reason,
)

if TYPE_CHECKING:
    from hexkv.core.frames.codec import FrameCodec
    from hexkv.core.memory.pool import BlockPool

RAW = "raw"
"""The name in frames for a payload without a serde."""


def _nothing() -> None:
    pass


class KnownLife(Protocol):
    """A process, as directories know it."""

    @property
    def member(self) -> Member:
        """Its present life; one that began while directories were down may become a later one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRuntime(Runtime):
    """The runtime of a process with tiers: also its pool, codec, serdes and peers."""

    pool: BlockPool
    codec: FrameCodec
    events: Sequence[EventSink] = ()
    computing: ComputeRate = field(default_factory=ComputeRate)
    """The speed of the model."""

    speeds: SerdeStats = field(default_factory=SerdeStats)
    """The measured speeds of the serdes."""

    history: History = field(default_factory=History)
    """The history of missing chunks."""

    closing: Callable[[], None] = _nothing
    """Called after the tiers were closed; must not raise."""

    directory: Callable[[], str | None] = _nothing
    """Returns why a directory does not get the content of the tiers; see ``Health.directory``."""

    life: KnownLife | None = None
    """The identity of this process in a directory, if its chunks are reported to one."""

    peers: Peers | None = None
    """Other processes to fetch chunks from and to send chunks to."""

    occupied: Callable[[], None] = _nothing
    """Called before a chunk is decoded in a caller's own thread, whose host may have other work."""

    lanes: Iterator[int] = field(default_factory=count)
    """The numbers of lanes."""

    ages: Ages = field(init=False)
    """How long chunks stay unused."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ages", Ages(self.clock, self.telemetry))
        checked = {name: CheckedSerde.of(serde) for name, serde in self.serdes.items()}
        object.__setattr__(self, "serdes", checked)

    def lane(self, name: str, rules: LaneRules, notices: Notices) -> Lane:
        """Return a lane with workers of its own, whose log lines are among *notices*."""
        # A number of its own: a tier of the same name may still be closing.
        name = f"{name} {next(self.lanes)}"
        return Lane(name, rules, self.executor, self.clock, self.telemetry, notices, self.steps)

    def tell(self, change: Change, tier: str, keys: Sequence[ChunkKey]) -> None:
        """Report a change on a tier to the event sinks."""
        if keys and change is Change.REMOVED:
            self.ages.gone(tier, keys)
        if keys and self.events:
            event = CacheEvent(change, tier, tuple(keys))
            for sink in self.events:
                sink.emit(event)

    def note(self, keys: Sequence[ChunkKey], tier: str, cause: Reason, detail: str = "") -> None:
        """Record why chunks are not on a tier."""
        if keys:
            self.history.note(keys, tier, cause, self.clock.wall(), detail)
