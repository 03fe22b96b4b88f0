"""Registers GPUDirect Storage with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl

if TYPE_CHECKING:
    from hexkv.adapters.gds.store import Driver


@dataclass(frozen=True, slots=True)
class GdsSettings:
    """Settings of the store ``gds``."""

    root: FilePath
    """The directory, created if need be; on a file system that cuFile reads."""

    directory: Literal["disk", "fs"] = "disk"
    """The kind of directory: ``disk`` of one machine, ``fs`` of a file system that hosts share."""

    driver: Literal["cufile", "kvikio"] = "cufile"
    """``cufile`` calls cuFile for each frame; ``kvikio`` divides frames among threads, and goes by
    the host where cuFile has no way."""

    library: FilePath = ""
    """cuFile's library; empty: the system's, or that of NVIDIA's wheel."""

    def __post_init__(self) -> None:
        if not self.root:
            raise SettingError("root", "names the directory")
        if self.library and self.driver != "cufile":
            raise SettingError("library", "is cuFile's; kvikio finds it without help")


def _open(settings: GdsSettings, context: OpenContext) -> object:
    from hexkv.adapters.gds.cufile import CuFile, library_path
    from hexkv.adapters.gds.store import GdsStore
    from hexkv.plugins.file_store import open_files

    def driver() -> Driver:
        if settings.driver == "kvikio":
            from hexkv.adapters.gds.by_kvikio import Kvikio

            return Kvikio()
        path = settings.library or library_path()
        if path is None:
            raise OSError("there is no libcufile")
        return CuFile(path)

    with about("root"):
        files = open_files(settings.directory, settings.root, context)
    return GdsStore(files, settings.root, driver)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "gds",
            "files that GPUs read by themselves, by cuFile; else as disk",
            _open,
            GdsSettings,
            isolate={"root": "folder"},
            contract=2,
        )
    ]
