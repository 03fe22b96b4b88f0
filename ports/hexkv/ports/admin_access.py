"""How administration is reached from outside, and served to those who may."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.administration import Administration


class ServedAdministration(Protocol):
    """Administration that is served."""

    def close(self) -> None:
        """Serve no more: ends what is under way at its next chunk. Never raises; twice is fine."""
        ...


@runtime_checkable
class AdminAccess(Protocol):
    """A way to administration from outside: an adapter of the kind ``admin``."""

    def serve(self, administration: Administration) -> ServedAdministration:
        """Serve *administration* until that is closed. Keeps no strong reference to it.

        Raises:
            ConfigError: that cannot be done where the settings say.
        """
        ...

    def connect(self) -> Administration:
        """Return the administration at the other end, which has answered.

        Its verbs raise ``StoreUnreachable`` where the other end is gone or does not let us in.
        """
        ...
