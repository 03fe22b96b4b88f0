"""The life cycle of a cache: freezing, flushing, health and closing."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from hexkv.ports.operate.health import Health
from hexkv.ports.operate.telemetry import Telemetry


class CacheLifecycle(Protocol):
    """The calls of every cache beside its requests. Safe from any thread; a context manager.

    All but ``health`` and ``close`` raise ``EngineClosed`` once the cache is closed. In a forked
    child every call does, except those that release something, which do nothing there. A signal
    handler or a callback in the middle of a call of its thread gets ``EngineBusy``; its calls that
    close or release something take effect at the end of that call.
    """

    @property
    def telemetry(self) -> Telemetry:
        """The sink of all counts and durations."""
        ...

    def computes(self, tokens_per_second: float | None) -> None:
        """Note how fast the host computes prompts like its next one, as it has measured.

        Chunks on tiers that bring fewer tokens per second are not loaded. ``None``: it is not
        known, and all are loaded. A configured rate overrides this.
        """
        ...

    def freeze(self, frozen: bool = True, why: str = "") -> None:
        """Store nothing while frozen: the cached chunks stay unchanged.

        *why* becomes :attr:`Health.why`.
        """
        ...

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all queued writes are done. True if they ended within *seconds*."""
        ...

    def health(self) -> Health:
        """Return the state of the cache and of its tiers. Also after :meth:`close`."""
        ...

    def close(self) -> None:
        """Refuse new calls, wait up to a deadline for those under way, and release everything.

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
