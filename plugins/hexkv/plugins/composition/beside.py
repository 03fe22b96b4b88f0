"""The cache of segments beside an engine's, which ``hexkv-blending`` builds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hexkv.core.engine.beside import EngineParts
from hexkv.plugins.composition.tiers import naming
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.schema import SegmentSettings
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Clock


def open_segments(
    loaded: Loaded, registry: Registry, clock: Clock
) -> Callable[[EngineParts], object] | None:
    """Return the function that builds it; ``None`` if it is neither installed nor configured.

    Raises:
        ConfigError, AdapterUnavailable: it is configured, and cannot be built.
    """
    rules = loaded.settings.segments
    context = OpenContext(clock)
    if rules != SegmentSettings():
        with naming(loaded, ("segments",)):
            build = registry.open("segments", "anywhere", {}, context)
    else:
        build = dict(registry.open_all("segments", context)).get("anywhere")
    if build is None:
        return None
    return partial(build, separator=rules.separator, minimum=rules.minimum, index_bytes=rules.index)
