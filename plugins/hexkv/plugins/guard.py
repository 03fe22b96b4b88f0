"""No exception leaves a hook: one that did would end the host for every request."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

Hook = TypeVar("Hook", bound=Callable[..., Any])

_MOST = 1000
"""Kinds of errors that are remembered."""


class Guard:
    """Keeps errors of the cache from one host. *log* is told what happened."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: set[tuple[str, str]] = set()

    def __call__(
        self, answer: object, *, then: Callable[[Any], None] | None = None
    ) -> Callable[[Hook], Hook]:
        """A method that gives *answer* where it fails itself, after *then* put its object right.

        A callable answer is called with the method's arguments. What happened is logged with
        its trace once for each hook and kind of error, and in a line each time.
        """
        guard = self

        def wrap(hook: Hook) -> Hook:
            @functools.wraps(hook)
            def safe(self: object, *args: object, **named: object) -> object:
                try:
                    return hook(self, *args, **named)
                except Exception as error:  # noqa: BLE001 - see above: the cache may fail, its host not
                    guard._say(hook.__name__, error)
                    if then is not None:
                        then(self)
                    return answer(*args, **named) if callable(answer) else answer

            return cast("Hook", safe)

        return wrap

    def _say(self, hook: str, error: Exception) -> None:
        kind = hook, type(error).__name__
        new = kind not in self._said and len(self._said) < _MOST
        if new:
            self._said.add(kind)
        self._log.log(
            logging.ERROR if new else logging.WARNING,
            "%s failed, the cache is left out: %s: %s",
            *kind,
            error,
            exc_info=new,
        )
