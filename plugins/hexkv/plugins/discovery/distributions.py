"""The distribution of each adapter of this project, for users who configured it without."""

from __future__ import annotations

from hexkv.plugins.spec import Kind

_BRINGS: dict[str, list[tuple[Kind, str]]] = {
    "hexkv-admin": [("admin", "socket")],
    "hexkv-cachegen": [
        *(("serde", f"cachegen{level}") for level in ("", "-fine", "-small", "-tiny")),
        *(("serde", name) for name in ("fp8", "int4", "int8")),
    ],
    "hexkv-cuda": [("memory", "pinned")],
    "hexkv-directory": [("directory", "embedded"), ("directory", "static")],
    "hexkv-gds": [("store", "gds")],
    "hexkv-infinistore": [("store", "infinistore")],
    "hexkv-lmcache": [("store", "lm")],
    "hexkv-lmserver": [("store", "hexkv")],
    "hexkv-local": [
        ("memory", "mmap"),
        *(("store", name) for name in ("disk", "fs", "heap", "memory")),
    ],
    "hexkv-lossless": [("serde", "rans"), ("serde", "zstd")],
    "hexkv-mooncake": [("channel", "mooncake"), ("store", "mooncake")],
    "hexkv-nixl": [("channel", "nixl"), ("store", "nixl")],
    "hexkv-node": [("memory", "shared"), ("node", "unix")],
    "hexkv-observe": [("observe", "server")],
    "hexkv-peer": [("store", "peers")],
    "hexkv-obstore": [("store", "obstore")],
    "hexkv-redis": [("directory", "redis"), ("store", "redis")],
    "hexkv-s3": [("store", "s3")],
    "hexkv-shm": [("channel", "shm")],
    "hexkv-tcp": [("channel", "tcp")],
}

_BROUGHT = {adapter: name for name, brings in _BRINGS.items() for adapter in brings}


def distribution_of(kind: Kind, name: str) -> str | None:
    """Return the distribution to install for adapter *name*, if it is one of ours."""
    return _BROUGHT.get((kind, name))
