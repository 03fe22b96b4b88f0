"""Lives of nodes, ordered by a directory instead of by clocks.

A node queries its last known life, and begins a later one. If the directory cannot be reached at
that time, the node does so when it joins, and its channel answers as that life from then on.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.runtime.clock import Deadline


@runtime_checkable
class SupportsLives(Protocol):
    """A directory that knows the last life of each node."""

    def last_life(self, name: str, deadline: Deadline) -> int:
        """Return the generation of the last known life of a node, also a silent one; 0 if none.

        Raises:
            StoreUnreachable: no answer came in time.
        """
        ...


@runtime_checkable
class SupportsRenewal(Protocol):
    """A channel that can change to a later life than the one it began to serve as."""

    def renew(self, generation: int) -> None:
        """Report life *generation* to peers that connect from now on."""
        ...
