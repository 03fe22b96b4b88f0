"""What the verbs of administration take and give: a choice of chunks, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hexkv.ports._kinds import check_kinds, check_parts
from hexkv.ports.errors import InvalidRequest
from hexkv.ports.health import TierHealth
from hexkv.ports.keys import KEY_BYTES, NAMESPACE_BYTES, ChunkKey
from hexkv.ports.reasons import Reason


@dataclass(frozen=True, slots=True)
class Selection:
    """Chunks: all of them, or those of some keys, of some namespaces, or of one tenant."""

    everything: bool = False
    keys: tuple[ChunkKey, ...] = ()
    namespaces: tuple[bytes, ...] = ()
    """How the keys begin: ``NAMESPACE_BYTES`` each."""

    tenant: str = ""
    oldest: float = 1.0
    """The part of these that each tier values least, in ``(0, 1]``: what it would evict first."""

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
    """How far a verb has come."""

    chunks: int
    of: int


Watch = Callable[[Progress], bool]
"""Told how far a verb has come, in its thread. False stops it before the next chunks."""


@dataclass(frozen=True, slots=True)
class WorkReport:
    """What became of the chunks that a verb was about."""

    chunks: int = 0
    """Chunks that were selected."""

    done: int = 0
    """Chunks that are where, and as, they were wanted, those that were so before included."""

    absent: int = 0
    """Chunks that were not there any more."""

    failed: int = 0
    """Chunks that stayed as they were."""

    saved_bytes: int = 0
    """How much less room they take on the tier; negative for more."""

    stopped: bool = False
    """True if the verb was stopped before its end."""

    left: Mapping[str, str] = field(default_factory=dict)
    """By tier why more of what was selected may be there."""

    kept: tuple[ChunkKey, ...] = ()
    """The first 1,000 chunks that only a drained tier holds."""

    @property
    def complete(self) -> bool:
        """True if nothing failed, and nothing is left."""
        return not (self.failed or self.stopped or self.left or self.kept)


class Why(NamedTuple):
    """Why a chunk would come from a tier, or would not."""

    reason: Reason

    when: float | None = None
    """Wall-clock seconds at which that happened, where something happened."""

    detail: str = ""


class TierState(NamedTuple):
    """A tier, and what is done with it."""

    health: TierHealth
    policy: str
    """Empty where only the store knows what it holds."""

    reads: bool
    writes: str
    """``all``, ``evicted`` or ``none``."""

    promotes: bool
    shared: bool
    """True if others add and remove chunks beside this cache."""


class NamespaceState(NamedTuple):
    """What lies under one namespace."""

    prefix: bytes
    """How its keys begin."""

    identity: str
    """Canonical JSON of the namespace, in which a salt is a digest; empty if it is not known."""

    tenant: str
    """Empty for nobody in particular."""

    chunks: Mapping[str, int]
    """By tier, of those whose content is known."""
