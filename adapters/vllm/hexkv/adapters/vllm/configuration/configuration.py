"""The settings of this adapter, and how they combine with an engine's configuration.

``kv_connector_extra_config`` holds both: the keys of :class:`ConnectorSettings`, ``config`` for
a YAML file, and the other keys of an engine's configuration (``tiers``, ``pool``, ...).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial

from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.plugins.composition.checking import check
from hexkv.plugins.configuration.brief import unfold
from hexkv.plugins.configuration.config import DEFAULT, Loaded, load
from hexkv.plugins.configuration.places import render
from hexkv.plugins.discovery.registry import Registry
from hexkv.ports import ConfigError

FILE = "config"
"""The key that names a YAML file; else ``HEXKV_CONFIG`` does."""


SOURCE = "kv_connector_extra_config"
"""The source of a value in messages."""

# A step of vLLM waits for these calls, and vLLM gives a process five seconds to end.
_DEADLINES = {"lookup": 1.0, "retrieve": 5.0, "store": 1.0, "close": 4.0}

KEY = "hexkv"
"""The key of this configuration in that of vLLM's offloading."""

_WITHIN_STEPS = "sync_load_budget_bytes"
"""The key there that makes vLLM 0.33 load up to that many bytes within a step."""

BLOCK_TOKENS = 1
"""Tokens of a block's chunk behind vLLM's offloading: the tokens that vLLM counts are inside."""

LOCAL = frozenset({"memory", "heap", "disk"})
"""Stores that know their content without a call to another process; any other is remote."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the connector and of its engine."""

    connector: ConnectorSettings
    engine: Loaded


def configure(
    extra: Mapping[str, object],
    registry: Registry,
    *,
    block_tokens: int,
    environ: Mapping[str, str] | None = None,
    ranks: int = 1,
) -> Configuration:
    """The configuration that ``kv_connector_extra_config``, file and environment give.

    Args:
        extra: the former; stronger than both others. Its keys may be written ``hexkv.KEY``.
        registry: the installed adapters.
        block_tokens: tokens in a block of vLLM: chunks are made of whole blocks.
        environ: in place of the process's environment.
        ranks: on this machine, which divide its memory.

    Raises:
        ConfigError: an unknown key, a bad value, a tier that there is not, or chunks or tails that
            are not whole blocks.
    """
    inside, beside = unfold(extra, SOURCE)
    if twice := sorted(inside.keys() & beside.keys()):
        raise ConfigError(f"{KEY}.{twice[0]} (from {SOURCE}): given twice")
    return _configure({**beside, **inside}, registry, block_tokens, environ, ranks)


def _configure(
    extra: Mapping[str, object],
    registry: Registry,
    block_tokens: int,
    environ: Mapping[str, str] | None,
    ranks: int,
) -> Configuration:
    own = [field.name for field in fields(ConnectorSettings)]
    values = {name: value for name, value in extra.items() if name in own}
    rest = {name: value for name, value in extra.items() if name not in own and name != FILE}
    file = extra.get(FILE)
    if file is not None and not isinstance(file, str | os.PathLike):
        raise ConfigError(f"{FILE} (from {SOURCE}): the path of a file, not {file!r}")
    connector = registry.parse("device", "vllm", values, lambda at: f"{render(at)} (from {SOURCE})")
    if not isinstance(connector, ConnectorSettings):
        raise ConfigError("another adapter is called 'vllm'")

    known = [*own, FILE]
    defaults: dict[str, object] = {"deadlines": _DEADLINES}
    read = partial(load, file, environ, rest, source=SOURCE, beside=known, processes=ranks)
    loaded = read(defaults=defaults)
    chunk = loaded.settings.chunk.size
    if chunk % block_tokens:
        if loaded.origin(("chunk", "size")) != DEFAULT:
            raise ConfigError(
                f"{loaded.locate(('chunk', 'size'))}: {chunk} tokens are not whole blocks of"
                f" {block_tokens}, in which vLLM keeps KV here"
            )
        chunk = -(-chunk // block_tokens) * block_tokens
    tail = loaded.settings.chunk.tail
    if loaded.origin(("chunk", "tail")) == DEFAULT:
        tail = block_tokens if chunk > block_tokens and loaded.settings.chunk.seeded else 0
    elif tail % block_tokens:
        raise ConfigError(
            f"{loaded.locate(('chunk', 'tail'))}: {tail} tokens are not whole blocks of"
            f" {block_tokens}, in which vLLM keeps KV here"
        )
    if (chunk, tail) != (loaded.settings.chunk.size, loaded.settings.chunk.tail):
        defaults["chunk"] = {"size": chunk, "tail": tail}
        loaded = read(defaults=defaults)
    tiers = [tier.name for tier in loaded.settings.tiers]
    strange = [name for name in connector.reset_clears if name not in tiers]
    if strange and not loaded.settings.node:  # whose tiers are configured with it
        raise ConfigError(
            f"reset_clears (from {SOURCE}): there is no tier {strange[0]!r}, only"
            f" {', '.join(map(repr, tiers)) or 'none'}"
        )
    remote = any(tier.store not in LOCAL for tier in loaded.settings.tiers)
    return Configuration(connector.resolved(remote=remote), loaded)


def configure_offloading(
    extra: Mapping[str, object], registry: Registry, *, ranks: int = 1
) -> Configuration:
    """The same for hexkv behind vLLM's offloading, from the key ``hexkv`` of its configuration.

    Raises:
        ConfigError: as above, or there is a size of a chunk, which is vLLM's block here. Or vLLM is
            to load within steps.
    """
    wanted, beside = unfold(extra, SOURCE)
    # The other keys are vLLM's, which ignores unknown ones.
    if not wanted and (near := get_close_matches(KEY, beside, n=1)):
        raise ConfigError(f"{near[0]} (from {SOURCE}): unknown key, did you mean {KEY!r}?")
    # A load within a step has to be right when the step begins; here one that fails never ends.
    if str(extra.get(_WITHIN_STEPS, 0)) != "0":
        raise ConfigError(
            f"{_WITHIN_STEPS} (from {SOURCE}): hexkv loads between steps here: leave out"
            f" {_WITHIN_STEPS}"
        )
    if "chunk" in wanted:
        raise ConfigError("hexkv: a configuration without chunk: vLLM sets the block size")
    chunk = {"chunk": {"size": BLOCK_TOKENS}}
    configured = _configure({**wanted, **chunk}, registry, BLOCK_TOKENS, None, ranks)
    return _checked(configured, registry)


def verify(extra: Mapping[str, object], registry: Registry) -> Configuration:
    """Refuse a configuration that nothing can be built from, before vLLM's blocks are known.

    Raises:
        ConfigError: an unknown key, a bad value, or an adapter that is not installed.
    """
    return _checked(configure(extra, registry, block_tokens=1), registry)


def _checked(configured: Configuration, registry: Registry) -> Configuration:
    check(configured.engine, registry)
    return configured
