"""The first line in the log of an engine, a node or a server."""

from __future__ import annotations

import logging

from hexkv.core.tiers.health import health_of
from hexkv.core.tiers.local import LocalChunks
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.sizes import human_size
from hexkv.plugins.discovery.discovery import installed_version
from hexkv.plugins.discovery.registry import Registry, words
from hexkv.plugins.observing import logs

log = logging.getLogger(__name__)


def begin_log(loaded: Loaded, registry: Registry) -> None:
    """Give log lines the level and the form that a configuration sets; log broken plugins."""
    settings = loaded.settings.log
    logs.configure(settings.level or "", settings.format or "")
    for origin, error in registry.broken.items():
        log.warning("plugin %s is broken: %s", origin, words(error))


def report_start(loaded: Loaded, chunks: object) -> None:
    """Log the version, the configuration's file, and the tiers with their sizes.

    Args:
        loaded: the configuration.
        chunks: its cache by key.
    """
    having = f"the node at {loaded.settings.node}"
    if isinstance(chunks, LocalChunks):
        stack = chunks.stack
        tiers = ", ".join(
            f"{tier.name} of {_size(tier.budget_bytes)}" for tier in health_of(stack).tiers
        )
        having = f"a pool of {_size(stack.pool.capacity)}, tiers {tiers}"
    file = loaded.file or "without a configuration file"
    log.info("hexkv %s starts (%s): %s", installed_version("hexkv"), file, having)


def _size(size: int | None) -> str:
    return "any size" if size is None else human_size(size)
