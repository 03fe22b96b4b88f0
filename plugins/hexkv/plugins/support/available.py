"""The memory that this process may still take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that can be taken without swapping: the least of machine and cgroups.

    Args:
        root: where ``proc`` and ``sys`` are mounted.
    """
    machine = _meminfo(root / "proc/meminfo")
    if machine is None:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min((machine, *_cgroups(root))))


def _meminfo(path: Path) -> int | None:
    """Return ``MemAvailable`` of Linux; ``None`` elsewhere."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


_FILES = (
    # Of version 2, and of version 1, whose files are below a folder of each controller.
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "memory",
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def _cgroups(root: Path) -> Iterator[int]:
    """Yield the bytes that each cgroup around this process has left, if it has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    # By controller: none in version 2, several in one line where version 1 mounts them so.
    inside = {
        name: path
        for _, names, path in (line.split(":", 2) for line in lines)
        for name in names.split(",")
    }
    for controller, mount, limit, used, idle in _FILES:
        top = root / mount
        group = top / inside.get(controller, "/").lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            try:
                most = (folder / limit).read_text().strip()
                now = int((folder / used).read_text())
                rows = (folder / "memory.stat").read_text().splitlines()
            except OSError:
                continue  # the root of all cgroups has no limit, and no file without the controller
            if most != "max":
                # Page cache counts as used, but is reclaimable: a disk tier fills it by its nature.
                yield int(most) - now + int(dict(row.split() for row in rows).get(idle, 0))
