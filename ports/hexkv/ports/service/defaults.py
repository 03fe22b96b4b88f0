"""What holds and services do that have no layers, and no tiers in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Self

from hexkv.ports.abilities.on_device import DeviceRoom
from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.keys import ChunkKey
from hexkv.ports.lease import Lease
from hexkv.ports.outcomes import Reason
from hexkv.ports.runtime.clock import Deadline


class WholeChunks:
    """The calls of a :class:`~hexkv.ports.ServiceHold` whose chunks come whole."""

    lent = False
    replaced = 0

    def known(self, deadline: Deadline) -> bool:
        """Return True: all is known at once."""
        del deadline
        return True

    def keep(self, deadline: Deadline, encoded: Collection[str] = ()) -> bool:
        """Return True: it has no limit."""
        del deadline, encoded
        return True

    def once(self, group: int, then: Callable[[], None]) -> None:
        """Call *then*: all layers are here."""
        del group
        then()

    def go_on(self, group: int, deadline: Deadline) -> None:
        """Do nothing: all layers are here."""

    def used(self, deadline: Deadline) -> None:
        """Do nothing: there is no faster tier."""

    def release(self) -> None:
        """Release all leases."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FarTiers:
    """The calls of a :class:`~hexkv.ports.ChunkService` that concern tiers of this process."""

    near = False
    in_place: Collection[str] = ()
    block_bytes: int | None = None
    write_step: int | None = None
    expiring: Collection[str] = ()

    def assign(self, prefix: bytes, tenant: str) -> None:
        """Do nothing: the other process knows its tenants."""

    compute_rate: float | None = None

    def computes(self, tokens_per_second: float | None) -> None:
        """Do nothing: the other process knows which rate is configured for its tiers."""

    def lend(self, wanted: Sequence[ChunkSpec], owner: str) -> tuple[Sequence[Lease], str]:
        """Return nothing: chunks of another process are held."""
        del wanted, owner
        return (), ""

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Do nothing: the other process notes the use of what it reads."""

    def keep(self, owner: str, keys: Sequence[ChunkKey]) -> None:
        """Do nothing: the other process keeps what it reads."""

    def why_absent(self, key: ChunkKey) -> Reason | None:
        """Return ``None``: holds have the reasons."""
        del key
        return None

    def why_dropped(self, key: ChunkKey) -> Reason:
        """Return ``DROPPED``: the other process notes the reasons."""
        del key
        return Reason.DROPPED

    def worth_loading(self, tier: str, saved: float) -> bool:
        """Return True: only the other process knows the speed of its tiers."""
        del tier, saved
        return True

    def spare(self, tier: str, tokens: int) -> float:
        """Return infinity, as for an unknown speed."""
        del tier, tokens
        return inf

    def reads_to_devices(self, tier: str) -> bool:
        """Return False: a device is reached from the memory that is shared."""
        del tier
        return False

    def read_to_room(
        self, tier: str, wanted: Sequence[ChunkSpec], room: DeviceRoom, deadline: Deadline
    ) -> int:
        """Read nothing."""
        del tier, wanted, room, deadline
        return 0

    def drop(self, wanted: Sequence[ChunkSpec], reason: Reason) -> bool:
        """Return False: nothing is counted here."""
        del wanted, reason
        return False

    def expire(self) -> None:
        """Do nothing: the other process ends pins."""

    def on_shortage(self, reap: Callable[[], bool], first_end: Callable[[], float]) -> None:
        """Do nothing: the other process ends holds by their limits."""
