"""Other processes of a test: what they listen at, and what they are about to do."""

import os
import secrets
import signal
import socket
from contextlib import closing, suppress
from threading import Event

from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline

PATIENCE = 60.0
"""Seconds after which what a busy machine does only late counts as not done at all."""

STARTING = 600.0
"""Seconds for the start of a process of Python, whose imports a busy machine prolongs tenfold."""

BUS = 10_000
"""How far above the port of a cluster's node the others talk to it."""

_HELD = []
MOST_HELD = 2000
"""Sockets that a process may hold: a whole run needs hundreds, a loop for some port thousands."""


def held_port(bus=0):
    """A port of 127.0.0.1 that nobody has but who is told of it.

    A socket that never listens keeps it for as long as this process lives. The kernel then gives
    it to nobody who asks for any port, and still refuses who connects there; but lets the server
    listen that names it and sets SO_REUSEADDR, as all of ours do, and any number of times.

    Args:
        bus: how far above it a second one is held, as a node of a cluster needs it.
    """
    while True:
        sockets = [socket.socket() for _ in range(2 if bus else 1)]
        try:
            for sock in sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sockets[0].bind(("127.0.0.1", 0))
            port = sockets[0].getsockname()[1]
            for sock in sockets[1:]:
                sock.bind(("127.0.0.1", port + bus))
        except (OSError, OverflowError):  # the second is somebody's, or beyond the last port
            for sock in sockets:
                sock.close()
        else:
            _HELD.extend(sockets)
            assert len(_HELD) <= MOST_HELD, "held ports are given back at the end of the process"
            return port


def until(reached, seconds=PATIENCE):
    """Ask again and again: what another process is about to do can only be polled."""
    patience, pause = Deadline.after(SystemClock(), seconds), Event()
    while not reached():
        assert not patience.expired, f"it did not come to that in {seconds:.0f} s"
        pause.wait(0.01)


def freeze(process):
    """Stop *process* where it is; when this returns none of its threads runs any more."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def ended(process):
    """True if *process* has ended. It is not reaped: until it is, no other has its number."""
    if process.returncode is None:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return True


def signal_session(process, number):
    """Send signal *number* to *process* and to each one in the session that it leads.

    Nothing is sent once *process* is reaped, for its number may be that of another session then.
    Wait for its end with :func:`ended`.
    """
    if process.returncode is None:
        os.killpg(process.pid, number)  # noqa: TID251 - the one place


def kill_session(process):
    """End *process* and each one in the session that it leads, at once. Return its exit code."""
    signal_session(process, signal.SIGKILL)
    return process.wait()


def free_port():
    """A port that nobody had a moment ago, for who cannot listen at a held one.

    It is one that the kernel gives to nobody who asks for any, and below those of clusters' buses.
    """
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def listening_ports(pid):
    """TCP ports at which a process listens, from the kernel's tables."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # what the process has closed meanwhile
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            for line in file.readlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and columns[9] in inodes:
                    found.add(int(columns[1].rpartition(":")[2], 16))
    return found
