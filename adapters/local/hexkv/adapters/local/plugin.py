"""The plugin for compressed memory and local disk. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import (
    AdapterSpec,
    BackDoor,
    CommandSpec,
    NoSettings,
    OpenContext,
    SettingError,
    about,
    hookimpl,
)


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Settings of the store ``disk``."""

    root: FilePath
    """The directory, created if need be. Engines may share it."""

    direct: Literal["auto", "on", "off"] = "auto"
    """Whether frames bypass the page cache: if possible, always or fail, or never."""

    exclusive: bool = False
    """Let no other engine use the directory."""

    quarantine_files: int = 16
    """How many damaged chunks are kept under ``quarantine/``; 0 deletes them."""

    quarantine_bytes: int = 256 << 20
    """How many bytes they may have, on top of the tier's budget."""

    def __post_init__(self) -> None:
        for name in ("quarantine_files", "quarantine_bytes"):
            if getattr(self, name) < 0:
                raise SettingError(name, "must not be negative")


@dataclass(frozen=True, slots=True)
class SharedFileSettings:
    """Settings of the store ``fs``."""

    root: FilePath
    """The directory, on a file system that the hosts share; created if need be."""

    ttl: float | None = None
    """Seconds after which a chunk that was not written again is removed, roughly."""

    def __post_init__(self) -> None:
        if self.ttl is not None and not 1.0 <= self.ttl <= 1e9:
            raise SettingError("ttl", "is from a second to thirty years, or null")


def _open_heap(settings: NoSettings, context: OpenContext) -> object:
    del settings
    from hexkv.adapters.local.heap import HeapStore

    return HeapStore(
        context.clock, context.budget, passes_on=context.passes_on, inherited=context.inherited
    )


def _open_disk(settings: DiskSettings, context: OpenContext) -> object:
    from hexkv.adapters.local.disk import DiskStore

    with about("root"):
        return DiskStore(
            settings.root,
            capacity=context.budget,
            direct=settings.direct,
            exclusive=settings.exclusive,
            quarantine_files=settings.quarantine_files,
            quarantine_bytes=settings.quarantine_bytes,
        )


def _open_fs(settings: SharedFileSettings, context: OpenContext) -> object:
    from hexkv.adapters.local.fs import SharedFileStore

    with about("root"):
        return SharedFileStore(settings.root, context.clock, ttl=settings.ttl)


def _behind_disk(settings: DiskSettings) -> BackDoor:
    from hexkv.adapters.local.back_door import FileDoor

    return FileDoor(settings.root)


def _explain(arguments: Sequence[str]) -> int:
    from hexkv.adapters.local.explain import run

    return run(arguments)


def _inspect(arguments: Sequence[str]) -> int:
    from hexkv.adapters.local.inspect import run

    return run(arguments)


def _fsck(arguments: Sequence[str]) -> int:
    from hexkv.adapters.local.fsck import run

    return run(arguments)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "heap",
            "frames of any size in this process's memory: compressed memory",
            _open_heap,
            isolate={},
            contract=2,
        ),
        AdapterSpec(
            "store",
            "disk",
            "one file per chunk in a directory",
            _open_disk,
            DiskSettings,
            back_door=_behind_disk,
            isolate={"root": "folder"},
            contract=2,
        ),
        AdapterSpec(
            "store",
            "fs",
            "one file per chunk in a directory that many hosts share",
            _open_fs,
            SharedFileSettings,
            isolate={"root": "folder"},
            contract=2,
        ),
    ]


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [
        CommandSpec("explain", "Say how much of a prompt a directory holds", _explain),
        CommandSpec("fsck", "Verify the directory of a disk tier, and repair it", _fsck),
        CommandSpec("inspect", "Describe the frames in a directory", _inspect),
    ]
