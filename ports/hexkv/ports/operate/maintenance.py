"""Arguments and results of the verbs of administration: selections, reports and states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hexkv.ports.errors import InvalidRequest
from hexkv.ports.keys import KEY_BYTES, NAMESPACE_BYTES, ChunkKey
from hexkv.ports.operate.health import TierHealth
from hexkv.ports.outcomes import Reason
from hexkv.ports.runtime._kinds import check_kinds, check_parts


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of chunks: all, or those of some keys, of some namespaces, or of one tenant."""

    everything: bool = False
    keys: tuple[ChunkKey, ...] = ()
    namespaces: tuple[bytes, ...] = ()
    """Prefixes of keys, of ``NAMESPACE_BYTES`` each."""

    tenant: str = ""
    oldest: float = 1.0
    """Share of these in ``(0, 1]``, the least valuable on each tier: those it would evict first."""

    def __post_init__(self) -> None:
        check_kinds("Selection", bool, everything=self.everything)
        check_kinds("Selection", str, tenant=self.tenant)
        check_kinds("Selection", float, oldest=self.oldest)
        check_parts("Selection", "keys", self.keys, bytes)
        check_parts("Selection", "namespaces", self.namespaces, bytes)
        if (self.everything, bool(self.keys), bool(self.namespaces), bool(self.tenant)).count(
            True
        ) != 1:
            raise InvalidRequest("select everything, or keys, or namespaces, or a tenant")
        if any(len(key) != KEY_BYTES for key in self.keys):
            raise InvalidRequest(f"a key has {KEY_BYTES} bytes")
        if any(len(prefix) != NAMESPACE_BYTES for prefix in self.namespaces):
            raise InvalidRequest(f"a namespace has {NAMESPACE_BYTES} bytes")
        if not 0 < self.oldest <= 1:
            raise InvalidRequest("the oldest part of a selection is in (0, 1]")


class Progress(NamedTuple):
    """The progress of a verb: chunks done, of all chunks."""

    chunks: int
    of: int


Watch = Callable[[Progress], bool]
"""Called with the progress of a verb, in its thread. False stops it before the next chunks."""


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The outcome of a verb for its chunks."""

    chunks: int = 0
    """Chunks that were selected."""

    done: int = 0
    """Chunks that are now where, and as, they were wanted, including those that already were."""

    absent: int = 0
    """Chunks that were already gone."""

    failed: int = 0
    """Chunks that are unchanged because of a failure."""

    saved_bytes: int = 0
    """Bytes of room on the tier that were saved; negative if they take more."""

    stopped: bool = False
    """True if the verb was stopped before its end."""

    left: Mapping[str, str] = field(default_factory=dict)
    """By tier why more of the selected chunks may be there."""

    kept: tuple[ChunkKey, ...] = ()
    """The first 1,000 chunks that only a drained tier holds."""

    @property
    def complete(self) -> bool:
        """True if nothing failed, and nothing is left."""
        return not (self.failed or self.stopped or self.left or self.kept)


class Why(NamedTuple):
    """Why a chunk would be read from a tier, or would not."""

    reason: Reason

    when: float | None = None
    """Time of the event in wall-clock seconds; ``None`` if the reason is no event."""

    detail: str = ""


class TierState(NamedTuple):
    """A tier, and its rules."""

    health: TierHealth
    policy: str
    """Name of the eviction policy; empty if only the store knows its content."""

    reads: bool
    writes: str
    """Which chunks are written: ``all``, ``evicted`` or ``none``."""

    promotes: bool
    shared: bool
    """True if other processes add and remove chunks beside this cache."""


class NamespaceState(NamedTuple):
    """The chunks of one namespace."""

    prefix: bytes
    """The first bytes of its keys."""

    identity: str
    """Canonical JSON of the namespace, in which a salt is a digest; empty if it is unknown."""

    tenant: str
    """Name of the tenant; empty if it belongs to none."""

    chunks: Mapping[str, int]
    """The number of chunks by tier, of the tiers whose content is known."""
