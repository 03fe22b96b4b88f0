"""Directories of the tests' own: served in this process or another, on free ports."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.client import RemoteDirectory
from hexkv.adapters.directory.server import DirectoryServer
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.server import listen
from hexkv.contracts.doubles import ManualClock
from hexkv.plugins.clock import SystemClock
from processes import PATIENCE, held_port, listening_ports

SECRET = b"a secret of the tests"


class Served:
    """A directory in a thread, and the clock of its members."""

    def __init__(self, clock, port=0, **options):
        self.clock = clock
        self.cell = Cell(clock, **options)
        self._server = DirectoryServer(
            listen("127.0.0.1", port), self.cell, SystemClock(), secret=SECRET, patience=PATIENCE
        )
        self.address = Address(*self._server.address)
        self._thread = Thread(target=self._server.run, daemon=True)
        self._thread.start()

    def forget(self):
        """Be as after a new start, for connections that stay."""
        self.cell.__init__(self.clock)

    def close(self):
        self._server.stop()
        self._thread.join(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class DirectoryProcess:
    """``hexkv directory``, which may be killed and started again at the same port."""

    program = "hexkv.plugins"

    def __init__(self, *options):
        self.options = options
        self.port = held_port()
        self.process = None
        self.start()

    def start(self):
        command = [sys.executable, "-m", self.program, "directory", "--json"]
        command += ["--port", str(self.port), *self.options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )
        said = ""
        while "}" not in said:
            line = self.process.stdout.readline()
            assert line, "the directory did not start"
            said += line
        assert json.loads(said) == {"address": str(self.address)}
        assert self.port in listening_ports(self.process.pid), "somebody else listens there"

    @property
    def address(self):
        return Address("127.0.0.1", self.port)

    def kill(self):
        """As a machine goes down: no farewell."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class LyingDirectory(DirectoryProcess):
    """Says that everybody has everything, while it is told to."""

    program = "peers.lying_directory"

    def lie(self, *, lying):
        self.process.send_signal(signal.SIGUSR1 if lying else signal.SIGUSR2)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def served(clock):
    with Served(clock) as found:
        yield found


@pytest.fixture
def client():
    """Opens clients of a directory at an address; closes them."""
    with ExitStack() as opened:

        def client(address, **options):
            found = RemoteDirectory(address, patience=PATIENCE, **{"secret": SECRET, **options})
            opened.callback(found.close)
            return found

        yield client
