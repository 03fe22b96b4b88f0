"""Hashes and checksums by the names that a configuration and frames use."""

from __future__ import annotations

from hexkv.core.frames.codec import FrameCodec
from hexkv.core.keys.hashing import BLAKE2B, SHA256
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import AdapterUnavailable, HashFunction


def hash_algorithm(name: str) -> HashFunction:
    """Return the hash that a configuration calls *name*: ``sha256``, ``blake2b`` or ``blake3``.

    Not an extension point: hosts that name chunks differently miss each other, so there are only
    hashes that all of them can have.

    Raises:
        AdapterUnavailable: BLAKE3 is not installed.
    """
    if name == "blake3":
        return _blake3()
    return {"sha256": SHA256, "blake2b": BLAKE2B}[name]


def frame_codec(registry: Registry, checksum: str) -> FrameCodec:
    """Return a codec that seals with *checksum*, and opens frames of any installed one.

    Raises:
        ConfigError: no such checksum is installed.
        AdapterUnavailable: it cannot be imported here.
    """
    context = OpenContext(SystemClock())
    others = [other for _, other in registry.open_all("checksum", context, without=[checksum])]
    return FrameCodec(registry.open("checksum", checksum, {}, context), others)


def _blake3() -> HashFunction:
    try:
        from blake3 import blake3
    except ImportError as error:
        hint = 'pip install "hexkv[blake3]"'
        raise AdapterUnavailable("blake3", "it is not installed", hint) from error

    def digest(data: bytes | memoryview) -> bytes:
        found: bytes = blake3(data).digest()
        return found

    return HashFunction("blake3", digest)
