"""Where keys come from: the settings, or what is usual at Amazon's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Protocol

from hexkv.adapters.net.errors import OutOfTime, time_left
from hexkv.adapters.s3._signing import Credentials
from hexkv.ports import AdapterUnavailable, Clock, Deadline, StoreError

_FRESH = 60.0
"""Seconds for which keys are used without asking again: awscrt renews them long before they end."""


class Found(Protocol):
    """What is used of awscrt's credentials."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None


class Provider(Protocol):
    """What is used of awscrt's providers."""

    def get_credentials(self) -> Future[Found]:
        """The keys, soon."""
        ...


Source = Callable[[Deadline], Credentials]
"""Gives the keys of now. Raises ``OutOfTime`` or a ``StoreError``."""


def given(keys: Credentials) -> Source:
    """Always *keys*."""
    return lambda _: keys


class Chain:
    """The first keys that any of the usual places has, renewed as they end.

    Args:
        provider: looks for them.
        clock: says when it is time to ask again.
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
        # Of any kind, by where it looked last.
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
    """Looks in the environment, the shared files, the container and the machine, in this order.

    Raises:
        AdapterUnavailable: awscrt is missing, which knows these places.
    """
    need_awscrt("without access_key and secret_key, it has to look for them")
    from awscrt.auth import AwsCredentialsProvider

    provider: Provider = AwsCredentialsProvider.new_default_chain()
    return provider


def need_awscrt(why: str) -> None:
    """See to it that awscrt is there.

    Raises:
        AdapterUnavailable: it is not.
    """
    try:
        import awscrt.s3  # noqa: F401 - only whether it can be
    except ImportError as error:
        raise AdapterUnavailable(
            "s3", f"awscrt is missing: {why}", "pip install hexkv-s3[crt]"
        ) from error
