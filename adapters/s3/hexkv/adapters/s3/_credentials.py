"""Sources of access keys: the settings, or Amazon's default chain."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Protocol

from hexkv.adapters.net.errors import OutOfTime, time_left
from hexkv.adapters.s3._signing import Credentials
from hexkv.ports import AdapterUnavailable, Clock, Deadline, StoreError

_FRESH = 60.0
"""Seconds for which keys are reused: awscrt renews them long before they expire."""


class CrtCredentials(Protocol):
    """The part of awscrt's credentials that is used."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None


class Provider(Protocol):
    """The part of awscrt's providers that is used."""

    def get_credentials(self) -> Future[CrtCredentials]:
        """A future of the keys."""
        ...


Source = Callable[[Deadline], Credentials]
"""Returns the current keys. Raises ``OutOfTime`` or a ``StoreError``."""


def given(keys: Credentials) -> Source:
    """A source that always returns *keys*."""
    return lambda _: keys


class Chain:
    """The first keys found in the default places, renewed before they expire.

    Args:
        provider: finds the keys.
        clock: for the time to query the provider again.
    """

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._lock = Lock()
        self._kept: tuple[Credentials, float] | None = None

    def __call__(self, deadline: Deadline) -> Credentials:
        kept = self._kept
        if kept is not None and self._clock.now() < kept[1]:
            return kept[0]
        if not self._lock.acquire(timeout=time_left(deadline)):
            raise OutOfTime
        try:
            found = self._provider.get_credentials().result(time_left(deadline))
        except TimeoutError as error:
            raise OutOfTime from error
        # The exception's type depends on the place searched last.
        except Exception as error:
            raise StoreError(
                f"no keys: none in the settings, and none in any of the usual places ({error})"
            ) from error
        finally:
            self._lock.release()
        keys = Credentials(found.access_key_id, found.secret_access_key, found.session_token or "")
        self._kept = keys, self._clock.now() + _FRESH
        return keys


def chain_provider() -> Provider:
    """A provider that searches environment, shared files, container and machine, in this order.

    Raises:
        AdapterUnavailable: awscrt is missing, which implements the search.
    """
    need_awscrt("without access_key and secret_key, it has to look for them")
    from awscrt.auth import AwsCredentialsProvider

    provider: Provider = AwsCredentialsProvider.new_default_chain()
    return provider


def need_awscrt(why: str) -> None:
    """Check that awscrt is installed.

    Raises:
        AdapterUnavailable: it is not.
    """
    try:
        import awscrt.s3  # noqa: F401 - only to test the import
    except ImportError as error:
        raise AdapterUnavailable(
            "s3", f"awscrt is missing: {why}", "pip install hexkv-s3[crt]"
        ) from error
