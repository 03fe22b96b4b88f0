"""Administration of a cache that is being built: the needs of its verbs, and its address."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from hexkv.core.engine.keyed_admin import KeyedAdmin
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.composition.tiers import TierOpener, naming
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import AdminAccess, Clock, PeerAccess


def let_attach(
    admin: KeyedAdmin,
    stack: TierStack,
    loaded: Loaded,
    registry: Registry,
    clock: Clock,
    block: int | None,
    peers: PeerAccess | None,
) -> None:
    """Let *admin* open the tiers that are to be attached to *stack*.

    Args:
        admin: of the cache.
        stack: its tiers.
        loaded: its configuration.
        registry: the installed plugins.
        clock: of the cache.
        block: bytes of the largest frame; ``None`` where frames are of any size.
        peers: for stores that read from peers.
    """
    opener = TierOpener(loaded, registry, clock, stack.pool, block, peers)

    def open_tier(section: Mapping[str, object]) -> TierPlan:
        names = [tier.name for tier in stack.tiers]
        return opener.added(section, names, stack.runtime.serdes)

    admin.open_tier = open_tier


_EVERY_INTERFACE = ("0.0.0.0", "[::]")  # noqa: S104 - compared with, never bound


def reachable(address: str) -> str:
    """Return *address* for other hosts: this host's name in place of "every interface"."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in _EVERY_INTERFACE else address


def admin_address(loaded: Loaded, rank: int = 0) -> str:
    """Return the configured address of administration; empty: it is not served."""
    address = loaded.settings.admin.get("address")
    if not isinstance(address, str):
        return ""
    return address.replace("{rank}", str(rank)).replace("{pid}", str(os.getpid()))


def serve_admin(
    admin: KeyedAdmin, loaded: Loaded, registry: Registry, clock: Clock, *, rank: int = 0
) -> None:
    """Serve *admin* until its cache ends, if a checked configuration gives an address.

    Args:
        admin: of the cache.
        loaded: its configuration.
        registry: the installed plugins.
        clock: of the cache.
        rank: the value of ``{rank}`` in the address; ``{pid}`` is the process.

    Raises:
        ConfigError: it cannot be served there.
    """
    if not loaded.settings.admin:
        return
    values = dict(loaded.settings.admin)
    if address := admin_address(loaded, rank):
        values["address"] = address
    with naming(loaded, ("admin",)):
        access: AdminAccess = registry.open("admin", "socket", values, OpenContext(clock))
        admin.at_close(access.serve(admin).close)
