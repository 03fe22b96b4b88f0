"""Administration of a running cache, from a program: ``hexkv admin`` for scripts.

As in :mod:`hexkv.api`, importing this starts nothing.

* :func:`connect` returns an :class:`Administration`
* arguments of its verbs: :class:`Selection`, and a :data:`Watch` that receives :class:`Progress`
* results of its verbs: :class:`WorkReport`, :class:`Health`, :class:`TierState`,
  :class:`NamespaceState`, :class:`Why`
"""

from __future__ import annotations

from hexkv.ports import (
    Administration,
    Health,
    NamespaceState,
    Progress,
    Selection,
    TierState,
    Watch,
    Why,
    WorkReport,
)

__all__ = [
    "Administration",
    "Health",
    "NamespaceState",
    "Progress",
    "Selection",
    "TierState",
    "Watch",
    "Why",
    "WorkReport",
    "connect",
]


def connect(
    address: str, *, secret: str = "", secret_file: str = "", tls_ca: str = ""
) -> Administration:
    """Return the administration of a running cache, after a first answer from it.

    Its verbs raise ``StoreUnreachable`` once the cache is gone. Nothing is held between two of
    them, so nothing has to be closed.

    Args:
        address: the path of a Unix socket, or ``host:port``.
        secret: the secret that both ends share, if the other end requires one.
        secret_file: a file that holds it instead, which only its owner can read.
        tls_ca: a file of authorities, for an end that speaks TLS.

    Raises:
        ConfigError: an argument is invalid.
        StoreUnreachable: nothing answers there, or it does not let this process in.
    """
    from hexkv.plugins.clock import SystemClock
    from hexkv.plugins.discovery.discovery import discover
    from hexkv.plugins.spec import OpenContext
    from hexkv.ports import AdminAccess

    given = {"secret": secret, "secret_file": secret_file, "tls_ca": tls_ca}
    settings = {"address": address} | {name: value for name, value in given.items() if value}
    registry = discover()
    # Errors are about arguments of this function, not about a file.
    registry.parse("admin", "socket", settings, lambda place: ".".join(map(str, place)))
    access: AdminAccess = registry.open("admin", "socket", settings, OpenContext(SystemClock()))
    return access.connect()
