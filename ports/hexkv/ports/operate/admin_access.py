"""The port for remote administration: an adapter serves it, and connects to it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.operate.administration import Administration


class ServedAdministration(Protocol):
    """Administration that is served."""

    def close(self) -> None:
        """Stop serving; running verbs end at their next chunk. Never raises; twice is allowed."""
        ...


@runtime_checkable
class AdminAccess(Protocol):
    """Access to administration from outside: an adapter of the kind ``admin``."""

    def serve(self, administration: Administration) -> ServedAdministration:
        """Serve *administration* until the result is closed. Keeps no strong reference to it.

        Raises:
            ConfigError: it cannot be served at the configured place.
        """
        ...

    def connect(self) -> Administration:
        """Return the administration at the other end, once that has answered.

        Its verbs raise ``StoreUnreachable`` if the other end is gone or refuses access.
        """
        ...
