"""Engines by instance id, for hosts that build theirs in several places."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock

from hexkv.core.engine import CacheEngine
from hexkv.ports import ConfigError


class EngineRegistry:
    """Holds one engine per id. Whoever composes the program holds the registry."""

    def __init__(self) -> None:
        self._engines: dict[str, tuple[Hashable, CacheEngine]] = {}
        self._lock = Lock()

    def get_or_create(
        self, instance: str, configuration: Hashable, build: Callable[[], CacheEngine]
    ) -> CacheEngine:
        """The engine of *instance*, built on the first call.

        Args:
            instance: id of the engine.
            configuration: everything that decides how the engine is built, as one value.
            build: called under the registry's lock, at most once per life of an engine.

        Raises:
            ConfigError: the engine exists with another configuration.
        """
        with self._lock:
            known = self._engines.get(instance)
            if known is None:
                engine = build()
                self._engines[instance] = configuration, engine
                return engine
            if known[0] != configuration:
                raise ConfigError(f"engine {instance!r} exists already, with another configuration")
            return known[1]

    def destroy(self, instance: str) -> bool:
        """Close the engine of *instance* and forget it. Whether there was one."""
        with self._lock:
            _, engine = self._engines.pop(instance, (None, None))
        if engine is None:
            return False
        engine.close()
        return True
