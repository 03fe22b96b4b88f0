"""The errors that hexkv raises on purpose.

The tree::

    * HexKVError
      x ConfigError              the configuration describes nothing that can be built
      x AdapterUnavailable       an adapter is known, but its dependency is missing
      x InvalidRequest           the arguments of a call are invalid
        + InvalidTokens            ... its tokens are not integers in [0, 2**32), or too many
        + LayoutMismatch           ... its KV has another layout than the namespace
      x EngineClosed             the engine was closed before the call, or is a parent process's
      x EngineBusy               the thread is already inside another call of the engine
      x PoolExhausted            no block of the pool came free before the deadline
      x CollectiveBroken         a rank was lost from those that load together
      x StoreError               a store could not do an operation
        + StoreUnreachable         ... and trying again later may help
        + StoreFull                ... it has no room left, in its budget or on its medium
        + StoreBusy                ... another engine or process owns it
        + CorruptFrame             ... the bytes differ from those stored under that key

A miss is not an error: it is an outcome (:mod:`hexkv.ports.outcomes`). Errors of the
``InvalidRequest`` branch, ``ConfigError``, ``EngineClosed`` and ``EngineBusy`` reach the caller
of the engine; those of the ``StoreError`` branch and ``PoolExhausted`` never do on the serving
path, where they become outcomes. ``CollectiveBroken`` does not either: each rank then reads for
itself.
"""

from __future__ import annotations


class HexKVError(Exception):
    """Base of every error hexkv raises on purpose."""

    setting: str = ""
    """The setting because of which an adapter cannot be opened; empty if there is none."""


class ConfigError(HexKVError):
    """The configuration describes nothing that can be built."""


class AdapterUnavailable(HexKVError):
    """The adapter is known, but it cannot be loaded on this machine."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        self.name = name
        self.reason = reason
        self.hint = hint
        advice = f" ({hint})" if hint else ""
        super().__init__(f"adapter {name!r} is not available: {reason}{advice}")


class InvalidRequest(HexKVError, ValueError):
    """The arguments of a call are invalid."""


class InvalidTokens(InvalidRequest):
    """Tokens must be integers in ``[0, 2**32)``, in a sequence or a one-dimensional buffer.

    Their number must not exceed the longest prompt that the cache is configured for.
    """


class LayoutMismatch(InvalidRequest):
    """The KV to store or load has another layout than the namespace."""


class EngineClosed(HexKVError):
    """The engine was closed before the call, or belongs to the process that forked this one."""


class EngineBusy(HexKVError):
    """The thread is inside another call: the caller is a signal handler or a callback."""


class PoolExhausted(HexKVError):
    """No block of the pool came free before the deadline."""


class CollectiveBroken(HexKVError):
    """A member of a collective was lost or late; it stays broken until all are connected again."""


class StoreError(HexKVError):
    """A store could not do an operation."""


class StoreUnreachable(StoreError):
    """The store did not answer; trying again later may help."""


class StoreFull(StoreError):
    """The store has no room left, in its own capacity or on its medium."""


class StoreBusy(StoreError):
    """Another engine owns the store: it holds its lock."""


class CorruptFrame(StoreError):
    """The bytes differ from those stored under that key; trying again will not help."""
