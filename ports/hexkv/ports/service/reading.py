"""The reading side of a service: where chunks are, whether loading pays, and holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from hexkv.ports.abilities.on_device import DeviceRoom
from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.keys import ChunkKey
from hexkv.ports.lease import Lease
from hexkv.ports.outcomes import Reason
from hexkv.ports.runtime.clock import Deadline
from hexkv.ports.service.holding import HoldTerms, ServiceHold


class ServiceReads(Protocol):
    """The calls of a :class:`~hexkv.ports.ChunkService` that find and read chunks."""

    def match(
        self,
        keys: Sequence[ChunkKey],
        deadline: Deadline,
        *,
        served: bool = True,
        below: int = 0,
        loads: bool = False,
    ) -> Sequence[str | None]:
        """Return the first tier of each chunk; see :meth:`ChunkLeases.match`.

        Args:
            keys: the chunks.
            deadline: of the answer.
            served: False includes tiers that deliver a chunk later than it is computed.
            below: all chunks have fewer tokens than this; tiers that keep none are not queried.
            loads: the caller loads them next: the tiers are those of its earlier question.
        """
        ...

    def hold(
        self,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        terms: HoldTerms = HoldTerms(),  # noqa: B008 - a tuple
    ) -> ServiceHold:
        """Hold chunks as every keyed cache does; does not wait for another process."""
        ...

    def lend(self, wanted: Sequence[ChunkSpec], owner: str) -> tuple[Sequence[Lease], str]:
        """Return leases of chunks that the first tier keeps raw in memory, and its name.

        Of all *wanted*, or of none. Nothing is read or queried, and no use is noted.
        """
        ...

    @property
    def in_place(self) -> Collection[str]:
        """The tiers whose chunks are leased where they lie, without a read."""
        ...

    @property
    def compute_rate(self) -> float | None:
        """Tokens per second that the model computes, if known here."""
        ...

    def computes(self, tokens_per_second: float | None) -> None:
        """Note how fast the model computes; see :meth:`CacheLifecycle.computes`."""
        ...

    def worth_loading(self, tier: str, saved: float) -> bool:
        """True if loading KV from *tier* is faster than computing the share *saved* of it.

        Also True if that is unknown.
        """
        ...

    def spare(self, tier: str, tokens: int) -> float:
        """Return the seconds that loading *tokens* saves over computing; infinity if unknown."""
        ...

    def why_absent(self, key: ChunkKey) -> Reason | None:
        """Return why no tier serves a chunk; ``None`` if that is unknown. Queries no store."""
        ...

    def why_dropped(self, key: ChunkKey) -> Reason:
        """Return why the last write of a chunk was dropped; ``DROPPED`` if that is unknown."""
        ...

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Note that one request uses these chunks."""
        ...

    def keep(self, owner: str, keys: Sequence[ChunkKey]) -> None:
        """Pin chunks for a request until the end of *owner*."""
        ...

    def reads_to_devices(self, tier: str) -> bool:
        """True if the store of *tier* can read into a device's memory."""
        ...

    def read_to_room(
        self, tier: str, wanted: Sequence[ChunkSpec], room: DeviceRoom, deadline: Deadline
    ) -> int:
        """Read chunks of such a tier into *room*, one frame's payload behind the other.

        Return how many of the first arrived there and were verified by the device.
        """
        ...
