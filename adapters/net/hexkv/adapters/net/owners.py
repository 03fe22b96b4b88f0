"""The user of the process at the other end of a loopback connection, by the kernel's tables.

A TCP connection has an address, never a user. Where both ends are in one network namespace, the
kernel lists both, each with the user who made its socket. This module queries one of them by
``NETLINK_SOCK_DIAG`` (sock_diag(7)), which takes 17 us. If that is not available, it reads the
list: ``/proc/net/tcp`` and ``tcp6`` (proc_pid_net(5)), which takes milliseconds. Users are numbered
as in the user namespace of this process.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct, error, unpack
from typing import NamedTuple

TABLES = "/proc/self/net"
"""The tables of this process's network namespace."""

_LOOKS = 3
"""Reads of the tables for one connection: one read may miss a row while others come and go."""

_THEIRS = (1, 4, 5)
"""States of an end that a process has open: ESTABLISHED, FIN_WAIT1, FIN_WAIT2. It may have closed
its own direction, and still wait for an answer."""

_OURS = (1, 8)
"""States of this end at the same time: ESTABLISHED, CLOSE_WAIT."""

_USER, _INODE = 3, 5
"""Fields of a row after its state."""

_ALL_USERS = ["0", "0", "4294967295"]
"""The map of a user namespace that has every user under its own number."""

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
"""Linux's NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY and NLM_F_REQUEST."""

_HEAD = Struct("=IHHII")
"""``struct nlmsghdr``: length, type, flags, sequence, port."""

_QUESTION = Struct("=BB2xI2s2s16s16s4x8s")
"""``struct inet_diag_req_v2``: family, protocol, states, ports and addresses, cookie."""

_ANSWER = Struct("=xB2x48x12xII")
"""``struct inet_diag_msg``: state, user, inode."""


class _End(NamedTuple):
    """An end of a connection."""

    address: IPv4Address | IPv6Address
    port: int

    def row(self) -> str:
        """Return the end as in the tables: words of four bytes as numbers of this machine."""
        packed = self.address.packed
        words = unpack(f"={len(packed) // 4}I", packed)
        return f"{''.join(f'{word:08X}' for word in words)}:{self.port:04X}"

    def mapped(self) -> _End:
        """Return an IPv4 end as an IPv6 socket has it."""
        return _End(IPv6Address(f"::ffff:{self.address}"), self.port)


def owner_of(sock: socket.socket, tables: str = TABLES) -> int | None:
    """Return the user who made the socket at the other end of *sock*, a connection of a server.

    ``None`` if unknown: the other end is not in this network namespace, is closed, or the kernel
    does not list it. The answer is valid as long as the connection lasts: *sock* is checked to be
    open afterwards, so no other connection has had its ports in between.
    """
    try:
        theirs, ours = _end(sock.getpeername()), _end(sock.getsockname())
        for look in range(_LOOKS + 1):
            # The list only if there is no answer: reading it walks through all connections.
            owner = _read(theirs, ours, tables) if look else _ask(theirs, ours)
            if not _is_open(sock):
                return None
            if owner is not None:
                return owner
    except (OSError, ValueError, IndexError, error):  # the file is no table
        return None
    return None


def own_user(tables: str = TABLES) -> int | None:
    """Return the user of this process; ``None`` if the kernel cannot distinguish it from others.

    Then the tables cannot be read; or its number is the overflow number, which stands for all users
    that the user namespace of this process does not map.
    """
    user = os.geteuid()
    try:
        with open(f"{tables}/tcp", "rb") as table:
            table.readline()
        with open("/proc/sys/kernel/overflowuid") as file:
            overflow = int(file.read())
        with open("/proc/self/uid_map") as file:
            everybody = file.read().split() == _ALL_USERS
    except (OSError, ValueError):
        return None
    return user if user != overflow or everybody else None


def _end(name: tuple[str, int]) -> _End:
    """Return the end as IPv4 if its address is one that is mapped into IPv6."""
    host, port = name[:2]
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return _End(mapped or address, port)


def _ask(theirs: _End, ours: _End) -> int | None:
    """Return the owner of the end *theirs*, if the kernel answers for this one connection."""
    family = socket.AF_INET if isinstance(theirs.address, IPv4Address) else socket.AF_INET6
    ports = [end.port.to_bytes(2, "big") for end in (theirs, ours)]
    addresses = [end.address.packed for end in (theirs, ours)]
    states = sum(1 << state for state in _THEIRS)
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, states, *ports, *addresses, b"\xff" * 8)
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        head = _HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, 1, 0)
        kernel.sendto(head + body, (0, 0))
        answer, (port, _) = kernel.recvfrom(4096, socket.MSG_DONTWAIT)  # it is there already
        if port == 0 and _HEAD.unpack_from(answer)[1] == _BY_FAMILY:
            state, user, inode = _ANSWER.unpack_from(answer, _HEAD.size)
            return _owner(user, inode) if state in _THEIRS else None
    return None


def _read(theirs: _End, ours: _End, tables: str) -> int | None:
    """Return the owner of the end *theirs*, as in the tables."""
    if isinstance(theirs.address, IPv4Address):
        # The client may have made a socket of IPv6, and mapped the address.
        places = [("tcp", theirs, ours), ("tcp6", theirs.mapped(), ours.mapped())]
    else:
        places = [("tcp6", theirs, ours)]
    for table, far, near in places:
        ends = f" {far.row()} {near.row()} "
        rows = [f"{ends}{state:02X} ".encode() for state in _THEIRS]
        with suppress(FileNotFoundError), open(f"{tables}/{table}", "rb") as file:  # no IPv6
            for line in file:
                if row := next(filter(line.__contains__, rows), None):
                    fields = line.partition(row)[2].split()
                    return _owner(int(fields[_USER]), int(fields[_INODE]))
    return None


def _owner(user: int, inode: int) -> int | None:
    """Return *user* if a process has the socket open; otherwise the number has no meaning."""
    return user if inode else None


def _is_open(sock: socket.socket) -> bool:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _OURS
