"""The built-in adapters and commands of ``hexkv``, registered in the same way as any plugin's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hexkv.core.frames.codec import CRC32
from hexkv.core.policies import POLICIES
from hexkv.plugins.spec import AdapterSpec, CommandSpec, NoSettings, OpenContext, hookimpl
from hexkv.ports import ChunkStore, HashFunction, MemoryProvider, Policy


@dataclass(frozen=True, slots=True)
class MmapSettings:
    """Settings of the memory provider ``mmap``."""

    huge_pages: bool = True
    """Ask for transparent huge pages, where the system offers them."""

    prefault: bool = False
    """Back the whole pool by memory at start, instead of each page at its first use."""


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    for name, policy in POLICIES.items():
        summary = (policy.__doc__ or "").partition("\n")[0]
        yield AdapterSpec("policy", name, summary, _policy(policy), contract=2)
    yield AdapterSpec(
        "checksum",
        "xxh3-128",
        "XXH3, 128 bits: faster than memory",
        _xxh3_128,
        requires=("xxhash",),
        hint="pip install xxhash",
        contract=2,
    )
    yield AdapterSpec("checksum", "crc32", "CRC-32 of the standard library", _crc32, contract=2)
    yield AdapterSpec(
        "memory", "mmap", "plain host memory, huge pages", _mmap, MmapSettings, contract=2
    )
    yield AdapterSpec(
        "store", "memory", "chunks in this process's memory", _memory, isolate={}, contract=2
    )


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    yield CommandSpec("adapters", "List the installed adapters", _adapters)
    yield CommandSpec("completion", "Print what a shell completes words by", _completion)
    yield CommandSpec("config", "Show, check or convert a configuration", _config)


def _policy(policy: Callable[[], Policy]) -> Callable[[NoSettings, OpenContext], Policy]:
    return lambda _settings, _context: policy()


def _xxh3_128(_settings: NoSettings, _context: OpenContext) -> HashFunction:
    import xxhash

    return HashFunction("xxh3-128", xxhash.xxh3_128_digest)


def _crc32(_settings: NoSettings, _context: OpenContext) -> HashFunction:
    return CRC32


def _mmap(settings: MmapSettings, _context: OpenContext) -> MemoryProvider:
    from hexkv.plugins.memory.mapping import MmapMemory

    return MmapMemory(huge_pages=settings.huge_pages, prefault=settings.prefault)


def _memory(_settings: NoSettings, context: OpenContext) -> ChunkStore:
    from hexkv.plugins.memory.store import MemoryStore

    return MemoryStore(context.clock)


def _adapters(arguments: Sequence[str]) -> int:
    from hexkv.plugins.cli.adapters import run

    return run(arguments)


def _completion(arguments: Sequence[str]) -> int:
    from hexkv.plugins.cli.completion import run

    return run(arguments)


def _config(arguments: Sequence[str]) -> int:
    from hexkv.plugins.cli.config import run

    return run(arguments)
