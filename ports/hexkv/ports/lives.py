"""Lives of nodes, in the order that a directory gives them: no clock says which is later.

A node asks for the last life that is known of it, and begins a later one. Where the directory was
away then, it does so when it joins, and its channel answers as that life from then on.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.clock import Deadline


@runtime_checkable
class SupportsLives(Protocol):
    """A directory that says which life of a node was the last."""

    def last_life(self, name: str, deadline: Deadline) -> int:
        """Return the generation of the last known life of a node, also of a silent one; or 0.

        Raises:
            StoreUnreachable: no answer came in time.
        """
        ...


@runtime_checkable
class SupportsRenewal(Protocol):
    """A channel that may answer as a later life than the one that it served as."""

    def renew(self, generation: int) -> None:
        """Tell peers that connect from now on that this is life *generation*."""
        ...
