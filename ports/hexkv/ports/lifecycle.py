"""The life of a cache: it runs, may be frozen, says how it is, and is closed."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from hexkv.ports.health import Health
from hexkv.ports.telemetry import Telemetry


class CacheLifecycle(Protocol):
    """What every cache has beside its requests. Safe from any thread; a context manager.

    All but ``health`` and ``close`` raise ``EngineClosed`` once the cache is closed. In a forked
    child everything does, but for what gives something back, which does nothing there. A signal
    handler or a callback that comes in the middle of a call of its thread gets ``EngineBusy``; what
    it closes or releases goes when that call is over.
    """

    @property
    def telemetry(self) -> Telemetry:
        """What receives every count and duration."""
        ...

    def freeze(self, frozen: bool = True, why: str = "") -> None:
        """While frozen, store nothing: what is cached stays as it is.

        *why* is for :attr:`Health.why`.
        """
        ...

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything queued is written. True if that came within *seconds*."""
        ...

    def health(self) -> Health:
        """Return the state of the cache and of its tiers. Also after :meth:`close`."""
        ...

    def close(self) -> None:
        """Refuse new calls, wait for those under way up to a deadline, give everything back.

        Never raises. Calling it twice is allowed.
        """
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
