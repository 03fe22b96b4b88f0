"""The channel by NIXL: peers read each other's registered memory, and negotiate over TCP."""

from __future__ import annotations

import logging
from typing import Any

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.peers.over_tcp import TcpPeers
from hexkv.adapters.nixl.memory import NixlMemory
from hexkv.ports import Clock, MemoryRegion, StoreError, SupportsRegistration

log = logging.getLogger(__name__)

_REGISTERING = 60.0
"""Seconds for registering a pool: with RDMA every page of it is pinned."""


class NixlChannel(TcpPeers):
    """Reads from peers by NIXL, and lets them read. Loans are negotiated over TCP.

    Args:
        address: where :meth:`serve` listens; port 0 takes a free one.
        clock: for deadlines.
        options: as of :class:`TcpPeers`.

    Raises:
        AdapterUnavailable: NIXL is not installed.
    """

    def __init__(self, address: Address, clock: Clock, **options: Any) -> None:
        self._nixl = NixlMemory()
        super().__init__(address, clock, memory=self._nixl, **options)

    def register(self, region: MemoryRegion) -> None:
        """Have peers read *region*. Chunks that lie elsewhere are sent over TCP."""
        try:
            self._nixl.register(region, _REGISTERING)
        except StoreError as error:
            log.warning("NIXL cannot use this pool, its chunks are sent over TCP: %s", error)

    def close(self) -> None:
        super().close()
        self._nixl.close()


def _registers(channel: NixlChannel) -> SupportsRegistration:
    return channel  # mypy checks here that it can register the pool's memory
