"""Administration of a cache that is being built, and its address."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.index.tenants import Tenant
from hexkv.plugins.composition.tiers import TierOpener, naming
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import AdapterUnavailable, AdminAccess, Administration, Clock, ConfigError


class Administered(Protocol):
    """A cache with administration."""

    @property
    def admin(self) -> Administration: ...

    def at_close(self, work: Callable[[], None]) -> None:
        """Do *work*, which never raises and refers to nothing of the cache, when it closes."""
        ...


class Administer(Protocol):
    """Returns the administration of a cache: what an adapter of kind ``operate`` builds."""

    def __call__(
        self,
        opener: TierOpener,
        stack: TierStack,
        deadlines: Deadlines,
        tenants: Sequence[Tenant],
        calls: Calls,
    ) -> Administration:
        """Return the administration of *stack*.

        Args:
            opener: opens tiers that are attached.
            stack: the tiers.
            deadlines: of verbs that only read (``lookup``), of the others (``store``), of pins.
            tenants: named in the states of namespaces.
            calls: of the cache, in which the verbs are done.
        """
        ...


def administration(
    opener: TierOpener, stack: TierStack, deadlines: Deadlines, tenants: Sequence[Tenant]
) -> Callable[[Calls], Administration] | str:
    """Return what builds the administration of a cache, or why there is none.

    Arguments as of :class:`Administer`.
    """
    try:
        administer: Administer = opener.registry.open(
            "operate", "verbs", {}, OpenContext(opener.clock)
        )
    except (ConfigError, AdapterUnavailable) as error:
        return str(error)
    return partial(administer, opener, stack, deadlines, tenants)


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
    cache: Administered, loaded: Loaded, registry: Registry, clock: Clock, *, rank: int = 0
) -> None:
    """Serve the administration of *cache* until that ends, if a configuration gives an address.

    Args:
        cache: an engine, or a cache of chunks.
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
        cache.at_close(access.serve(cache.admin).close)
