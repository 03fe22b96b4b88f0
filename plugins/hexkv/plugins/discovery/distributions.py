"""The distribution of each adapter and command of this project, for users who lack it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hexkv.plugins.spec import Kind

_BRINGS: dict[str, list[tuple[Kind | Literal["command"], str]]] = {
    "hexkv-admin": [
        ("admin", "socket"),
        *(("command", name) for name in ("admin", "trace")),
    ],
    "hexkv-archives": [("command", "export"), ("command", "import")],
    "hexkv-blending": [("segments", "anywhere")],
    "hexkv-cachegen": [
        *(("serde", f"cachegen{level}") for level in ("", "-fine", "-small", "-tiny")),
        *(("serde", name) for name in ("fp8", "int4", "int8")),
    ],
    "hexkv-contracts": [("command", "check"), ("command", "new-adapter")],
    "hexkv-cuda": [("memory", "pinned")],
    "hexkv-directory": [
        ("command", "directory"),
        ("directory", "embedded"),
        ("directory", "static"),
    ],
    "hexkv-fleet": [("command", "fleet")],
    "hexkv-gds": [("store", "gds")],
    "hexkv-hf": [("command", name) for name in ("blend", "demo", "quality", "tokens", "warm")],
    "hexkv-infinistore": [("store", "infinistore")],
    "hexkv-lmcache": [("command", "config.from-lmcache"), ("store", "lm")],
    "hexkv-lmserver": [("command", "serve"), ("store", "hexkv")],
    "hexkv-local": [
        *(("command", name) for name in ("explain", "fsck", "inspect")),
        *(("store", name) for name in ("disk", "fs", "heap")),
    ],
    "hexkv-lossless": [("serde", "rans"), ("serde", "zstd")],
    "hexkv-mooncake": [("channel", "mooncake"), ("store", "mooncake")],
    "hexkv-nixl": [("channel", "nixl"), ("store", "nixl")],
    "hexkv-node": [("command", "node"), ("memory", "shared"), ("node", "unix")],
    "hexkv-observe": [("command", "top"), ("observe", "server")],
    "hexkv-peer": [("store", "peers")],
    "hexkv-peers": [("peers", "service")],
    "hexkv-plan": [("command", name) for name in ("bench", "plan", "report", "serdes", "size")],
    "hexkv-obstore": [("store", "obstore")],
    "hexkv-operate": [("operate", "verbs")],
    "hexkv-redis": [("directory", "redis"), ("store", "redis")],
    "hexkv-s3": [("store", "s3")],
    "hexkv-shm": [("channel", "shm")],
    "hexkv-tcp": [("channel", "tcp")],
}

_BROUGHT = {brought: name for name, brings in _BRINGS.items() for brought in brings}

COMMANDS: Mapping[str, str] = {
    name: distribution for (kind, name), distribution in _BROUGHT.items() if kind == "command"
}
"""The distribution to install for each command of ours that ``hexkv`` itself does not bring."""


GROUPS: Mapping[str, frozenset[str]] = {
    "Commands to run": frozenset({"demo", "directory", "node", "serve"}),
    "Commands to look": frozenset(
        {"adapters", "admin", "config", "explain", "fleet", "inspect", "top", "trace"}
    ),
    "Commands to plan": frozenset(
        {"bench", "blend", "plan", "quality", "report", "serdes", "size"}
    ),
    "Commands for data": frozenset({"export", "fsck", "import", "tokens", "warm"}),
    "Commands to develop": frozenset({"check", "completion", "new-adapter"}),
}
"""The commands of ours, by their heading in help."""


def distribution_of(kind: Kind, name: str) -> str | None:
    """Return the distribution to install for adapter *name*, if it is one of ours."""
    return _BROUGHT.get((kind, name))
