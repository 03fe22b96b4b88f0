"""Whether a running server's weights were replaced.

Its scheduler records an update from disk, and every other one for which a new ``weight_version``
was given. All others are counted by :mod:`hexkv.adapters.sglang.updates`.
"""

from __future__ import annotations

import logging
from importlib import import_module

from hexkv.adapters.sglang.identity import server_arguments
from hexkv.adapters.sglang.updates import CHANGED
from hexkv.ports import ConfigError

log = logging.getLogger("hexkv.sglang")

_RECORDED = {"model_path", "weight_version"}
"""What SGLang changes in its configuration after weights were replaced, and at no other time."""


class Weights:
    """The weights that a namespace was made for."""

    def __init__(self, *, vouched: bool) -> None:
        """Take those that the server has now.

        Args:
            vouched: True if the operator says which they are, by ``model.weights``.

        Raises:
            ConfigError: they are not those that the server began with, and nothing says which.
        """
        if not CHANGED.watched and server_arguments() is not None:
            log.warning(
                "this SGLang changes weights in ways that are not known here: give every update a"
                " new weight_version"
            )
        self._updates = _updates()
        self._replaced = False
        if self._updates and not vouched:
            raise ConfigError(
                "the weights were replaced since the server started: set model.weights to what"
                " tells them from all others"
            )

    @property
    def replaced(self) -> bool:
        """True once the server has other weights."""
        if not self._replaced and _updates() != self._updates:
            self._replaced = True
            log.error(
                "the server's weights were replaced: nothing is read or stored any more. Restart"
                " it, or attach hexkv again with a new model.weights"
            )
        return self._replaced


def _updates() -> int:
    """How many changes of weights were counted or recorded in this process."""
    return CHANGED.seen + _recorded()


def _recorded() -> int:
    """How many updates SGLang has recorded; older versions record none."""
    try:
        context = import_module("sglang.srt.runtime_context").get_context()
        changes = context.overrides_log()
    except (ImportError, AttributeError, ValueError, RuntimeError):
        return 0
    return sum(not _RECORDED.isdisjoint(fields) for _, fields in changes)
