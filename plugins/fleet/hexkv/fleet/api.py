"""Every node of a fleet, from a program: ``hexkv fleet`` for scripts.

Needs the directory's requirements. As in :mod:`hexkv.api`, importing this starts nothing.

* :func:`open_fleet` returns a :class:`Fleet`
* arguments of its verbs: as those of :mod:`hexkv.adapters.admin.api`
* results of its verbs: :class:`NodeState`, :class:`FleetReport`
* :func:`size_fleet` estimates the size of a directory: :class:`FleetSize`
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hexkv.adapters.admin.api import connect
from hexkv.fleet.fleet import Fleet
from hexkv.fleet.nodes import NodeState
from hexkv.fleet.reports import FleetReport
from hexkv.fleet.sizing import FleetSize, size_fleet
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.tiers import naming
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Administration, ConfigError, Directory, StoreUnreachable

__all__ = ["Fleet", "FleetReport", "FleetSize", "NodeState", "open_fleet", "size_fleet"]


def open_fleet(
    config: str | os.PathLike[str] | Mapping[str, object] | None = None,
    *,
    nodes: Sequence[str] = (),
    secret_file: str = "",
    tls_ca: str = "",
    partial: bool = False,
) -> Fleet:
    """Open the nodes that a directory names, and others. The result is a context manager.

    Args:
        config: a configuration, or a file of one, of which the sections ``directory`` and ``admin``
            count: the directory, and the secret that the nodes' administration requires. ``None``:
            the file that ``HEXKV_CONFIG`` names, if any.
        nodes: addresses of the administration of further nodes, in the form of
            :func:`hexkv.adapters.admin.api.connect`.
        secret_file: a file that holds the secret instead, which only its owner can read.
        tls_ca: a file of authorities, for nodes that speak TLS; else that of *config*.
        partial: whether verbs may leave out nodes that cannot be reached.

    Raises:
        ConfigError: it names neither a directory nor a node, or something is wrong with it.
        AdapterUnavailable, StoreError: the directory cannot be opened.
    """
    loaded = load(None, overrides=config) if isinstance(config, Mapping) else load(config)
    settings = loaded.settings
    if not (settings.directory.adapter or nodes):
        raise ConfigError("name nodes, or a configuration with a section directory")
    admin = settings.admin
    secret = "" if secret_file else str(admin.get("secret") or "")
    file = secret_file or ("" if secret else str(admin.get("secret_file") or ""))
    authorities = tls_ca or str(admin.get("tls_ca") or "")
    clock = SystemClock()
    directory: Directory | None = None
    if settings.directory.adapter:
        with naming(loaded, ("directory", "settings")):
            directory = discover().open(
                "directory",
                settings.directory.adapter,
                settings.directory.settings,
                OpenContext(clock),
            )

    def reach(address: str) -> Administration:
        if not address.startswith("/"):
            return connect(address, secret=secret, secret_file=file, tls_ca=authorities)
        # A socket's mode protects it, and some nodes of a fleet may require a secret besides.
        try:
            return connect(address)
        except StoreUnreachable:
            if not (secret or file):
                raise
            return connect(address, secret=secret, secret_file=file)

    return Fleet(
        reach,
        clock,
        directory=directory,
        addresses=nodes,
        partial=partial,
    )
