"""Where a result comes from: what decides its numbers, and nothing that names anybody."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("hexkv", "hexkv-kernels", "hexkv-local", "numpy", "torch", "xxhash")


class NoRoom(Exception):
    """The file system does not have the room that a benchmark needs."""


def describe(folder: Path) -> dict[str, object]:
    """The machine, with the file system that *folder* is on, as JSON values."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": load(),
        "file_system": file_system(folder),
        "file_system_free_bytes": shutil.disk_usage(folder).free,
    }


def load() -> float:
    """Processes that wanted to run in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that do the work."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def file_system(folder: Path) -> str:
    """The kind of file system that *folder* is on, for instance ``ext4``."""
    best, kind = Path(), "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    for mount in mounts:
        _, point, found, *_ = mount.split(" ")
        # Later lines hide earlier ones of the same place.
        at = Path(point.replace("\\040", " "))
        if folder.resolve().is_relative_to(at) and len(at.parts) >= len(best.parts):
            best, kind = at, found
    return kind


def check_room(folder: Path, wanted: int) -> None:
    """Check that *folder* has room for *wanted* bytes.

    Raises:
        NoRoom: it has not.
    """
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise NoRoom(f"{free:,} bytes are free under {folder}, and {wanted:,} are needed")


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in found if key.strip() == name), "")


def forget(folder: Path) -> None:
    """Have the system forget the contents of files in *folder*: they are on the disk only."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
