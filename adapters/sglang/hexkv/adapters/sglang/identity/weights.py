"""The weights that a running server has, and the caches that end with them.

An identity lives as long as the weights do. A model's files are noted before it is loaded
(:mod:`hexkv.adapters.sglang.identity.files`), all changes of weights are counted from then on
(:mod:`hexkv.adapters.sglang.identity.updates`), and each one ends the caches for the weights
before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps

from hexkv.adapters.sglang.identity import updates
from hexkv.adapters.sglang.identity.files import FILES
from hexkv.adapters.sglang.identity.updates import CHANGED
from hexkv.adapters.sglang.wrapping import Plain
from hexkv.ports import ConfigError

log = logging.getLogger("hexkv.sglang")

REPLACED = "weights were replaced"
"""Why a cache is off, in its health, metrics and log."""


def watch() -> None:
    """Note the files of models as they are loaded, and count changes of weights from then on."""
    updates.watch(_loading)


def _loading(plain: Plain) -> Plain:
    @wraps(plain)
    def load(scheduler: object, *args: object, **named: object) -> object:
        arguments = getattr(scheduler, "server_args", None)
        _note(arguments)
        answer = plain(scheduler, *args, **named)
        updates.watch()  # by now it is imported
        _note(arguments)  # files that were downloaded
        FILES.loaded = True
        return answer

    return load


def _note(arguments: object | None) -> None:
    """Note the files that *arguments* name. A server without hexkv starts with any files."""
    try:
        from hexkv.adapters.sglang.identity.identity import files_of

        FILES.note(files_of(arguments))
    except Exception as error:  # noqa: BLE001 - what has no note is refused where it is needed
        log.debug("the model's files cannot be looked at: %s", error)


class Weights:
    """The weights that a namespace is made for: from now on, until the next change of any."""

    def __init__(self, *, vouched: str, server: bool) -> None:
        """Take the weights that the server has now.

        Args:
            vouched: the operator's text for the weights, ``model.weights``.
            server: True if this is a process of a server, not of a test of its parts.

        Raises:
            ConfigError: the weights are not known, or SGLang's own memory may hold KV
                of others.
        """
        if server and not FILES.loaded:
            raise ConfigError(
                "SGLang loaded its model without hexkv's plugin, so changes of weights are not"
                " seen: name hexkv in SGLANG_PLUGINS, or leave that unset, and restart the server"
            )
        if CHANGED.unsettled:
            raise ConfigError(
                "an update of the weights has begun: attach hexkv after its end"
                " (/end_weight_update)"
            )
        if CHANGED.seen and not vouched:
            raise ConfigError(
                f"{REPLACED} since it started: set model.weights to a text of these weights alone"
            )
        if CHANGED.flushed != CHANGED.seen:
            raise ConfigError(
                f"{REPLACED}, and SGLang may still hold KV of the ones before: empty its cache"
                " (POST /flush_cache), then attach hexkv again"
            )
        known = CHANGED.vouched.setdefault(vouched, CHANGED.seen) if vouched else CHANGED.seen
        if known != CHANGED.seen:
            raise ConfigError(
                f"model.weights: {vouched!r} stands for weights that were replaced since: set it to"
                " a text that only the new ones have"
            )
        self.off = ""
        """Why nothing may be read or stored; empty while everything may."""

        self._then: Callable[[str], None] | None = None
        CHANGED.ends.add(self)

    def end(self) -> None:
        """Stop: the weights change."""
        if not self.off:
            self.off = REPLACED
            if self._then is not None:
                self._then(self.off)

    def follow(self, then: Callable[[str], None]) -> None:
        """Call *then* with the reason once the weights change; at once if they did already."""
        self._then = then
        if self.off:
            then(self.off)
