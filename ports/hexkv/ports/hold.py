"""Reads and writes under way in the keyed cache: holds on chunks, and publishings to wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from hexkv.ports.lease import Lease
from hexkv.ports.outcomes import Reason
from hexkv.ports.runtime.clock import Deadline


class Hold(Protocol):
    """Chunks being read into memory, and then held there until they are released.

    Safe from any thread. A context manager that releases.
    """

    @property
    def done(self) -> bool:
        """True once every chunk has arrived or is known to be missing. Never blocks."""
        ...

    def wait(self, deadline: Deadline) -> bool:
        """Wait until it is done. False if *deadline* passed first; may be called again."""
        ...

    @property
    def leases(self) -> Sequence[Lease | None]:
        """A lease for each chunk that arrived, in order, ``None`` for every other one.

        Valid until :meth:`release`, which releases them; a caller that needs one for longer
        takes a share of it. Empty after the release.
        """
        ...

    @property
    def reasons(self) -> Sequence[Reason | None]:
        """For each chunk why it is missing; ``None`` if it arrived or is still on its way."""
        ...

    @property
    def origins(self) -> Sequence[str]:
        """For each chunk the name of the tier from which it arrived; empty if it did not."""
        ...

    def release(self) -> None:
        """Release all leases and cancel reads not yet begun. Calling it twice is allowed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Publishing(Protocol):
    """Chunks being written to the tiers."""

    @property
    def done(self) -> bool:
        """True once no tier has anything left to write."""
        ...

    def wait(self, deadline: Deadline) -> bool:
        """Wait until it is done. False if *deadline* passed first."""
        ...

    @property
    def tiers(self) -> Mapping[str, Sequence[bool]]:
        """By tier, True for each chunk that it holds, as far as known by now."""
        ...
