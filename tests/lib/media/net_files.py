"""A network file system for tests: SSHFS, over an SFTP server of our own, without SSH between.

Debian's packages ``sshfs`` and ``openssh-sftp-server`` have it all, and FUSE is what mounts it.
Every mount is one host: it has a connection and caches of its own, and the kernel's beside them.
"""

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager, suppress
from threading import Event, Thread

from hexkv.contracts.store import BehindProxy
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline

SERVER = "/usr/lib/openssh/sftp-server"
PATIENCE = 60.0
"""Seconds after which what does not start counts as broken."""


class SftpServer:
    """Gives files to whoever connects to a port of loopback; may be killed and started again."""

    def __init__(self):
        self.port = 0
        self._listener = None
        self._thread = None
        self._processes = []

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._thread = Thread(target=self._listen, args=(self._listener,), daemon=True)
        self._thread.start()

    def _listen(self, listener):
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    self._processes.append(subprocess.Popen([SERVER], stdin=peer, stdout=peer))

    def kill(self):
        """As a machine goes down: no farewell. The files stay."""
        if self._listener is None:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listener = None
        self._thread.join(PATIENCE)  # whom it has just accepted, it has a process for
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()


class BreakableFiles(BehindProxy):
    """A server that dies, behind a proxy, through which a directory is mounted."""

    can = BehindProxy.can | {"kill"}

    def __init__(self, server, proxy):
        super().__init__(proxy)
        self.server = server

    def kill(self):
        self.server.kill()

    def start(self):
        self.server.start()


@contextmanager
def mounted(address, exported, at, *options):
    """The directory *exported* of the server at *address*, mounted *at* a directory."""
    assert shutil.which("sshfs"), "sshfs is missing: apt-get install sshfs openssh-sftp-server"
    at.mkdir()
    host, _, port = address.rpartition(":")
    wanted = ",".join([f"directport={port}", "reconnect", *options])
    command = ["sshfs", "-f", f"{host}:{exported}", str(at), "-o", wanted]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        patience, pause = Deadline.after(SystemClock(), PATIENCE), Event()
        while not os.path.ismount(at):
            assert process.poll() is None, "sshfs ended"
            assert not patience.expired, "sshfs did not mount"
            pause.wait(0.01)
        yield at
    finally:
        # Lazily: a call that hangs in there must not hold up the end.
        subprocess.run(["umount", "--lazy", str(at)], check=True)
        process.terminate()
        process.wait(PATIENCE)
