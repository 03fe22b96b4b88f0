"""How much memory this process may still take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping: the tightest of the machine and its cgroups.

    Args:
        root: where ``proc`` and ``sys`` are mounted.
    """
    machine = _meminfo(root / "proc/meminfo")
    if machine is None:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min((machine, *_cgroups(root))))


def _meminfo(path: Path) -> int | None:
    """``MemAvailable`` of Linux; ``None`` elsewhere."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _cgroups(root: Path) -> Iterator[int]:
    """What each cgroup (version 2) around this process has left, where it has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    top = root / "sys/fs/cgroup"
    inside = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = top / inside.lstrip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(top):
            return
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # the root of all cgroups has no limit; nor has one without the controller
        if limit != "max":
            # Page cache counts as used, but gives way: a disk tier fills it by its nature.
            yield int(limit) - used + int(stat.get("inactive_file", 0))
