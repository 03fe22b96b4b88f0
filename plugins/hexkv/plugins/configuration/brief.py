"""The brief form: ``gigabytes`` and ``disk`` in place of ``pool`` and ``tiers``; a host's share.

The keys are replaced by what they stand for before anything is checked, so all else knows the long
form alone. In a host's own configuration they, and any other key, may stand below ``hexkv`` or be
written ``hexkv.KEY``, beside keys of others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path as FilePath

from hexkv.plugins.configuration.places import Path
from hexkv.plugins.configuration.sizes import human_size
from hexkv.plugins.configuration.sources import ConfigLayers
from hexkv.plugins.configuration.values import Value, at_home
from hexkv.plugins.support.available import available_bytes
from hexkv.ports import ConfigError

_WORD = "hexkv"
_GIGABYTE = 10**9
_SHARE = 4
"""A host without a configured pool takes this part of the free memory for it: a quarter."""

_LEAST = 64 * 2**20

_POOL: Path = ("pool", "bytes")


def unfold(extra: Mapping[str, object], source: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return the keys of *extra* below ``hexkv``, and those beside it.

    ``{"hexkv.pool.bytes": 1}`` is ``{"hexkv": {"pool": {"bytes": 1}}}``. *source* is the name of
    *extra* in messages.

    Raises:
        ConfigError: a key is given twice, or ``hexkv`` is no section.
    """
    inside: dict[str, object] = {}
    section = extra.get(_WORD, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{_WORD} (from {source}): is a value, not a section")
    inside.update(section)
    beside = {name: value for name, value in extra.items() if name != _WORD}
    for name in [name for name in beside if name.startswith(f"{_WORD}.")]:
        *way, last = name.split(".")[1:]
        node = inside
        for word in way:
            found = node.get(word, {})
            if not isinstance(found, Mapping):
                raise ConfigError(f"{name} (from {source}): {word} is a value, not a section")
            node[word] = node = dict(found)
        if last in node:
            raise ConfigError(f"{name} (from {source}): given twice")
        node[last] = beside.pop(name)
    return inside, beside


def expand(layers: ConfigLayers, processes: int | None) -> list[str]:
    """Replace the brief keys in *layers*, and return the mistakes found.

    Args:
        layers: all layers, merged.
        processes: of a serving engine on this machine that load this configuration: they divide
            ``gigabytes``, and without a size of the pool each takes its part of a share of the free
            memory. ``None``: one, and no share.
    """
    wrong: list[str] = []
    gigabytes, disk = layers.values.get("gigabytes"), layers.values.get("disk")
    of = f" for each of {processes} processes" if processes and processes > 1 else ""
    if gigabytes is not None:
        if not isinstance(gigabytes, int | float) or isinstance(gigabytes, bool):
            return wrong  # the schema has the message
        origin = layers.origins[("gigabytes",)]
        if _POOL in layers.origins:
            wrong.append(f"gigabytes (from {origin}): pool.bytes is given, too: leave one out")
        elif not _LEAST <= gigabytes * _GIGABYTE <= 2**50:
            wrong.append(
                f"gigabytes (from {origin}): should be a number of 10^9 bytes, from 0.07"
                " to a million, such as 64"
            )
        else:
            size = int(gigabytes * _GIGABYTE) // (processes or 1)
            _put(layers, "gigabytes", _POOL, size, f"{origin}, gigabytes{of}")
    elif processes and _POOL not in layers.origins and not layers.values.get("node"):
        free = available_bytes()
        origin = f"a quarter of {human_size(free)} of free memory{of}"
        size = max(_LEAST, free // _SHARE // processes)
        layers.assign([*map(str, _POOL)], size, origin)
    if disk and isinstance(disk, str):
        origin = layers.origins[("disk",)]
        if any(place[:1] == ("tiers",) for place in layers.origins):
            wrong.append(f"disk (from {origin}): tiers are given, too: leave one out")
        else:
            tier: dict[str, Value] = {"store": "disk", "settings": {"root": disk}}
            tier["budget"] = _half(disk)
            _put(layers, "disk", ("tiers",), [{"store": "memory"}, tier], f"{origin}, disk")
    return wrong


def _put(layers: ConfigLayers, brief: str, place: Path, value: Value, origin: str) -> None:
    """Set *value* at *place* in place of the key *brief*."""
    del layers.values[brief]
    layers.assign([*map(str, place)], value, origin)


def _half(path: str) -> int | None:
    """Return half the bytes of the file system of *path*; ``None`` if that is not known."""
    try:
        folder = FilePath(at_home(path)).absolute()
        at = next(each for each in (folder, *folder.parents) if each.exists())
        found = os.statvfs(at)
    except (OSError, ValueError):  # the store has the message
        return None
    return max(1, found.f_frsize * found.f_blocks // 2)
