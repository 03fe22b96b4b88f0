"""No exception leaves a hook: one that did would end vLLM for every request."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

log = logging.getLogger("vllm.hexkv")

Hook = TypeVar("Hook", bound=Callable[..., Any])

_SAID: set[tuple[str, str]] = set()
_MOST = 1000


def guarded(answer: object, *, then: Callable[[Any], None] | None = None) -> Callable[[Hook], Hook]:
    """A method that gives *answer* where it fails itself, after *then* put its object right.

    What happened is logged with its trace once for each hook and kind of error, and in a line
    each time.
    """

    def wrap(hook: Hook) -> Hook:
        @functools.wraps(hook)
        def safe(self: object, *args: object, **named: object) -> object:
            try:
                return hook(self, *args, **named)
            except Exception as error:  # noqa: BLE001 - see above: the cache may fail, vLLM not
                _say(hook.__name__, error)
                if then is not None:
                    then(self)
                return answer

        return cast("Hook", safe)

    return wrap


def _say(hook: str, error: Exception) -> None:
    kind = hook, type(error).__name__
    new = kind not in _SAID and len(_SAID) < _MOST
    _SAID.add(kind)
    log.log(
        logging.ERROR if new else logging.WARNING,
        "%s failed, the cache is left out: %s: %s",
        *kind,
        error,
        exc_info=new,
    )
