"""Finds the memory near a GPU, and requests it."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

_MBIND = {"x86_64": 237, "aarch64": 235}
"""The number of the system call, which no C library has a function for (``man 2 mbind``)."""

_PREFERRED = 1
"""``MPOL_PREFERRED``: when this node is full others help out, and no process is killed."""

_NODES = 1024
"""Bits of the mask, the kernel's own limit."""


def node_near(address: str, root: Path = Path("/sys")) -> int | None:
    """The NUMA node of the PCI device at *address*; ``None`` if it is not known.

    Args:
        address: for instance ``0000:3b:00.0``.
        root: where sysfs is mounted.
    """
    try:
        node = int((root / "bus/pci/devices" / address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1 on machines of one node, and in many virtual ones


def prefer(address: int, size: int, node: int) -> None:
    """Take those pages of a range that were not touched yet from *node*.

    Raises:
        OSError: the system has no such node or no such call, or does not allow it.
    """
    number = _MBIND.get(platform.machine())
    if number is None or not 0 <= node < _NODES:
        raise OSError(f"memory of NUMA node {node} cannot be asked for on this machine")
    words = _NODES // (8 * ctypes.sizeof(ctypes.c_ulong))
    mask = (ctypes.c_ulong * words)()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask[node // bits] = 1 << node % bits
    call = ctypes.CDLL(None, use_errno=True).syscall
    done = call(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(size),
        ctypes.c_long(_PREFERRED),
        mask,
        ctypes.c_ulong(_NODES),
        ctypes.c_ulong(0),
    )
    if done:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
