"""Catches exceptions in hooks: one that left a hook would end the host for every request."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

Hook = TypeVar("Hook", bound=Callable[..., Any])

_MOST = 1000
"""Kinds of errors that are remembered."""


class Guard:
    """Keeps errors of the cache from one host, and logs them to *log*."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[tuple[str, str]] = set()

    def __call__(
        self, answer: object, *, then: Callable[[Any], None] | None = None
    ) -> Callable[[Hook], Hook]:
        """Return a method that returns *answer* if it fails, after *then* repaired its object.

        A callable answer is called with the method's arguments. Errors are logged with a traceback
        once for each hook and kind of error, and in a line each time.
        """
        guard = self

        def wrap(hook: Hook) -> Hook:
            @functools.wraps(hook)
            def safe(self: object, *args: object, **named: object) -> object:
                try:
                    return hook(self, *args, **named)
                except Exception as error:  # noqa: BLE001 - see above: the cache may fail, its host not
                    guard._log_once(hook.__name__, error)
                    if then is not None:
                        then(self)
                    return answer(*args, **named) if callable(answer) else answer

            return cast("Hook", safe)

        return wrap

    def _log_once(self, hook: str, error: Exception) -> None:
        kind = hook, type(error).__name__
        new = kind not in self._logged and len(self._logged) < _MOST
        if new:
            self._logged.add(kind)
        self._log.log(
            logging.ERROR if new else logging.WARNING,
            "%s failed, the cache is left out: %s: %s",
            *kind,
            error,
            exc_info=new,
        )
