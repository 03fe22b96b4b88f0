"""The limits of one client of a node, in size and in time."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.adapters.net.rpc.asked import ClientBounds


@dataclass(frozen=True, slots=True)
class ClientLimits(ClientBounds):
    """The limits of one client."""

    leased_bytes: int
    """Bytes of the pool that it may lease at a time."""
