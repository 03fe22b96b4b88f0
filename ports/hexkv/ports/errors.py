"""Everything hexkv raises on purpose.

The tree::

    * HexKVError
      x ConfigError              the configuration does not describe something that can be built
      x AdapterUnavailable       an adapter is known, but its dependency is missing
      x InvalidRequest           the caller asked for something that means nothing
        + InvalidTokens            ... its tokens are not integers in [0, 2**32), or too many
        + LayoutMismatch           ... its KV is not shaped as the engine's
      x EngineClosed             the engine was closed before the call, or is a parent process's
      x EngineBusy               the call came out of the middle of another one of its thread
      x PoolExhausted            no block of the pool came free before the deadline
      x CollectiveBroken         a rank was lost from those that load together
      x StoreError               a store could not do what it was asked
        + StoreUnreachable         ... and trying again later may help
        + StoreFull                ... it has no room left, in its budget or on its medium
        + StoreBusy                ... somebody else owns it
        + CorruptFrame             ... the bytes are not what was put under that key

A miss is not an error: it is an outcome (:mod:`hexkv.ports.outcomes`). Errors of the
``InvalidRequest`` branch, ``ConfigError``, ``EngineClosed`` and ``EngineBusy`` reach the caller
of the engine; those of the ``StoreError`` branch and ``PoolExhausted`` never do on the serving
path, where they become outcomes. Nor does ``CollectiveBroken``: its ranks read for themselves.
"""

from __future__ import annotations


class HexKVError(Exception):
    """Base of every error hexkv raises on purpose."""

    setting: str = ""
    """The adapter's setting that is to blame, where an adapter cannot be opened for one."""


class ConfigError(HexKVError):
    """The configuration does not describe something that can be built."""


class AdapterUnavailable(HexKVError):
    """The adapter is known, but it cannot be loaded on this machine."""

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        self.name = name
        self.reason = reason
        self.hint = hint
        advice = f" ({hint})" if hint else ""
        super().__init__(f"adapter {name!r} is not available: {reason}{advice}")


class InvalidRequest(HexKVError, ValueError):
    """The caller asked for something that means nothing."""


class InvalidTokens(InvalidRequest):
    """Tokens must be integers in ``[0, 2**32)``, in a sequence or a one-dimensional buffer.

    And no more of them than the longest prompt that the cache was configured for.
    """


class LayoutMismatch(InvalidRequest):
    """The KV offered or asked for is not shaped as the namespace says."""


class EngineClosed(HexKVError):
    """The engine was closed before the call, or is the process's that this one was forked from."""


class EngineBusy(HexKVError):
    """The thread is in the middle of another call: this is a signal handler or a callback."""


class PoolExhausted(HexKVError):
    """No block of the pool came free before the deadline."""


class CollectiveBroken(HexKVError):
    """A member of a collective was lost, or not in time; all are apart until they met again."""


class StoreError(HexKVError):
    """A store could not do what it was asked."""


class StoreUnreachable(StoreError):
    """The store did not answer; trying again later may help."""


class StoreFull(StoreError):
    """The store has no room left, in its own capacity or on its medium."""


class StoreBusy(StoreError):
    """Somebody else owns the store: another engine holds its lock."""


class CorruptFrame(StoreError):
    """The stored bytes are not what was put under that key; trying again will not help."""
