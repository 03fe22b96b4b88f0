"""What calls stand on: tiers of this process, or those of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hexkv.ports import Clock, Deadline, Executor


class Timed(Protocol):
    """Time, and how to wait."""

    @property
    def clock(self) -> Clock: ...
    @property
    def executor(self) -> Executor: ...


class Leased(Protocol):
    """Memory of which calls have leases."""

    def sweep(self, owner: str) -> int:
        """Take back all that *owner* still holds."""
        ...

    def close(self) -> Mapping[str, int]:
        """End it; what is still leased, by owner."""
        ...


class Pinned(Protocol):
    """Pins, which end by themselves."""

    def expire(self) -> None:
        """End those whose time is over."""
        ...


class Ground(Protocol):
    """What calls lease from, and what the last one closes."""

    @property
    def runtime(self) -> Timed: ...
    @property
    def pool(self) -> Leased: ...
    @property
    def pins(self) -> Pinned: ...

    def end(self, owner: str) -> None:
        """A call is over."""
        ...

    def flush(self, deadline: Deadline) -> bool:
        """Write what is queued."""
        ...

    def close(self, deadline: Deadline) -> None:
        """End everything."""
        ...


class Waiting(Protocol):
    """Prefetches that nobody has picked up."""

    def reap(self) -> bool:
        """Cancel what is past its time."""
        ...

    def close(self) -> None:
        """Cancel everything."""
        ...
