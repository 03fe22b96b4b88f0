"""Unix sockets: the process at the other end, and descriptors that are passed along."""

from __future__ import annotations

import os
import socket
import struct
from array import array
from fcntl import F_GET_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from typing import NamedTuple

_PEER = struct.Struct("3i")

_MOST = 4
"""Descriptors that the other end may send at a time, by default; the kernel closes those beyond."""

SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
"""Seals of memory that other processes map: its size cannot change again."""


class Peer(NamedTuple):
    """A process at the other end of a Unix socket, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """Return the process that was at the other end of a Unix socket when it was connected."""
    return Peer(*_PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)))


def receive_descriptors(
    sock: socket.socket, most: int, together: int = _MOST
) -> tuple[bytes, list[int]]:
    """Receive the next bytes, *most* at most, and up to *together* descriptors that come along.

    The caller closes the descriptors, used or not.

    Raises:
        OSError: the connection breaks, or nothing comes in time.
    """
    descriptors = array("i")
    room = socket.CMSG_SPACE(together * descriptors.itemsize)
    said, extra, _, _ = sock.recvmsg(most, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return said, list(descriptors)


def is_sealed(descriptor: int, size: int) -> bool:
    """True if the file of *descriptor* has *size* bytes, and cannot shrink.

    No access to a mapping of it ends in ``SIGBUS``.
    """
    try:
        seals = fcntl(descriptor, F_GET_SEALS)
    except OSError:  # a file without support for seals
        return False
    return seals & SEALS == SEALS and os.fstat(descriptor).st_size >= size
