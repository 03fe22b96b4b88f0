"""The settings of this adapter, and how they combine with an engine's configuration.

SGLang's extra configuration holds all: keys of its own, those of :class:`SGLangSettings`,
``config`` for a YAML file, and the other keys of an engine's configuration (``tiers``, ...).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from hexkv.adapters.sglang.settings import SGLangSettings
from hexkv.plugins.configuration.brief import unfold
from hexkv.plugins.configuration.config import DEFAULT, Loaded, load
from hexkv.plugins.configuration.places import render
from hexkv.plugins.discovery.registry import Registry
from hexkv.ports import ConfigError

FILE = "config"
"""The key that names a YAML file; else ``HEXKV_CONFIG`` does."""

SOURCE = "SGLang's extra_config"
"""The source of a value in messages."""

SGLANGS = {
    "allocator",
    "backend_name",
    "class_name",
    "hicache_storage_pass_prefix_keys",
    "interface_v1",
    "module_path",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "tp_lcm_size",
}
"""Keys that SGLang reads and leaves in."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the adapter and of its engine."""

    chosen: SGLangSettings
    engine: Loaded


class RawConfig:
    """The settings as given, until the number of tokens in a page is known."""

    def __init__(
        self,
        extra: Mapping[str, object],
        registry: Registry,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Read all settings, and refuse invalid ones.

        Args:
            extra: SGLang's extra configuration; stronger than file and environment. Its keys may
                be written ``hexkv.KEY``.
            registry: the installed adapters.
            environ: in place of the process's environment.

        Raises:
            ConfigError: an unknown key, or a bad value.
        """
        inside, beside = unfold(extra, SOURCE)
        if twice := sorted(inside.keys() & beside.keys()):
            raise ConfigError(f"hexkv.{twice[0]} (from {SOURCE}): given twice")
        extra = {**beside, **inside}
        own = {field.name for field in fields(SGLangSettings)}
        values = {name: value for name, value in extra.items() if name in own}
        chosen = registry.parse(
            "device", "sglang", values, lambda at: f"{render(at)} (from {SOURCE})"
        )
        if not isinstance(chosen, SGLangSettings):
            raise ConfigError("another adapter is called 'sglang'")
        file = extra.get(FILE)
        if file is not None and not isinstance(file, str | os.PathLike):
            raise ConfigError(f"{FILE} (from {SOURCE}): the path of a file, not {file!r}")
        known = own | SGLANGS | {FILE}
        self.chosen = chosen
        self._file, self._environ = file, environ
        self._rest = {name: value for name, value in extra.items() if name not in known}
        self._loaded = load(file, environ, self._rest, source=SOURCE, beside=sorted(known))

    def with_pages(self, tokens: int, ranks: int = 1) -> Configuration:
        """The configuration for pages of *tokens* tokens, which chunks are then.

        Args:
            tokens: of a page.
            ranks: on this machine, which divide its memory.

        Raises:
            ConfigError: another size of chunks is configured, or chains that SGLang does not have.
        """
        wanted = {"size": tokens, "seeded": False, "tail": 0}
        for name, value in wanted.items():
            place = ("chunk", name)
            found = getattr(self._loaded.settings.chunk, name)
            if self._loaded.origin(place) != DEFAULT and found != value:
                raise ConfigError(
                    f"{self._loaded.locate(place)}: is {found}; under SGLang it is {value}, for a"
                    " chunk is a page as SGLang names it (--page-size)"
                )
        chunk = self._rest.get("chunk")
        given = chunk if isinstance(chunk, Mapping) else {}
        rest = {**self._rest, "chunk": {**given, **wanted}}
        loaded = load(self._file, self._environ, rest, source=SOURCE, processes=ranks)
        return Configuration(self.chosen, loaded)
