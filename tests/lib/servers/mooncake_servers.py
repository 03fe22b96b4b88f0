"""A real Mooncake for tests: a master and storage nodes, each a process of our own.

And what tests of stores on it have in common.
"""

import ctypes
import importlib.util
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from urllib.parse import quote

import pytest

from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Failed, Item, Miss, Stored, StoreError, StoreUnreachable
from processes import PATIENCE, freeze, held_port, until

LOOPBACK = {"MC_TCP_BIND_ADDRESS": "127.0.0.1"}
"""Without it, a client that notes down where it is looks for a network, and there may be none."""

_NODE = """
import sys
from mooncake.store import MooncakeDistributedStore
node = MooncakeDistributedStore()
master, metadata, size = sys.argv[1:]
code = node.setup("127.0.0.1", metadata, int(size), 16 << 20, "tcp", "", master)
print("ready" if code == 0 else code, node.get_hostname(), flush=True)
sys.stdin.read()
"""


def need_mooncake():
    """Skip where the library or what it stands on is missing; in CI nothing is."""
    try:
        import mooncake.store  # noqa: F401 - only whether it can be
    except ImportError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{error}, and CI skips nothing")
        pytest.skip(
            f"{error}: pip install mooncake-transfer-engine-non-cuda,"
            " apt-get install libibverbs1 libnuma1 libcurl4"
        )


def soon(seconds=PATIENCE):
    """A deadline of real time."""
    return Deadline.after(SystemClock(), seconds)


def until_stored(store, frames):
    """Write *frames*, by their keys, until all are taken: a tier takes its time to come back."""
    items = [Item(key, memoryview(frame)) for key, frame in frames.items()]
    stored = [Stored(len(frame)) for frame in frames.values()]

    def taken():
        try:
            return store.write(items, soon()) == stored
        except StoreError:
            return False  # it is not connected yet

    until(taken)


def is_gone(outcome, since, ttl):
    """Whether *outcome* is that of a chunk whose only node is gone, and was there at *since*.

    It fails, or it is missed, where the master may have forgotten the node by then: that does so
    *ttl* seconds after the node's last sign of life, of which it gives one each second.
    """
    if outcome == Miss():
        return SystemClock().now() - since > ttl - 1.5
    return isinstance(outcome, Failed) and isinstance(outcome.error, StoreUnreachable)


class Region:
    """Memory as a pool has it."""

    def __init__(self, size):
        self._map = mmap.mmap(-1, size)
        self.buffer = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))


class RegionSink:
    """Rooms in a region, one behind the other."""

    def __init__(self, region, start):
        self._buffer = region.buffer
        self._next = start

    def room(self, index, size):
        start, self._next = self._next, self._next + size
        return self._buffer[start : start + size]


class Master:
    """``mooncake_master`` on loopback, which may be killed, frozen and started again.

    With *notes* it keeps notes for the nodes, too, of where they find each other.
    """

    def __init__(self, folder, *options, port=None, notes=False):
        self._log = folder / "master.log"
        self._process = None
        self.port = port or held_port()
        self.metrics = held_port()
        self.metadata = "P2PHANDSHAKE"
        self._options = list(options)
        self._ports = [self.port, self.metrics]
        if notes:
            port = held_port()
            self._ports.append(port)
            self.metadata = f"http://127.0.0.1:{port}/metadata"
            self._options += [
                "--enable_http_metadata_server=true",
                f"--http_metadata_server_port={port}",
            ]

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        binary = Path(importlib.util.find_spec("mooncake").origin).with_name("mooncake_master")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(binary, "--rpc_address=127.0.0.1", f"--rpc_port={self.port}"),
                    *("--metrics_host=127.0.0.1", f"--metrics_port={self.metrics}"),
                    *("--logtostderr=true", *self._options),
                ],
                stdout=log,
                stderr=log,
            )
        until(self._listens)
        return self

    def names(self):
        """Of every object, as the master lists them on its page for people."""
        url = f"http://127.0.0.1:{self.metrics}/get_all_keys"
        with urllib.request.urlopen(url, timeout=PATIENCE) as page:
            return page.read().decode().split()

    def note(self, name):
        """What it keeps of the node *name*: among other things, where its bytes are to be had."""
        with urllib.request.urlopen(self._note(name), timeout=PATIENCE) as page:
            return json.load(page)

    def change_note(self, name, **changes):
        """Send everybody who meets the node from now on elsewhere."""
        body = json.dumps(self.note(name) | changes).encode()
        request = urllib.request.Request(self._note(name), body, method="PUT")
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    def _note(self, name):
        return f"{self.metadata}?key={quote(f'mooncake/ram/{name}', safe='')}"

    def freeze(self):
        freeze(self._process)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        """As a machine goes down: no farewell."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _listens(self):
        assert self._process.poll() is None, self._log.read_text()
        return all(_listener(port) == self._process.pid for port in self._ports)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()


class Node:
    """A process that lends memory to the store of *master*."""

    def __init__(self, folder, master, size=512 << 20):
        self._log = folder / "node.log"
        self._master = master
        self._size = size
        self._process = None
        self.name = ""

    def start(self):
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _NODE),
                    *(self._master.address, self._master.metadata, str(self._size)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | LOOPBACK | {"MC_STORE_CLIENT_SETUP_RETRIES": "1"},
            )
        too_late = Timer(PATIENCE, self._process.kill)
        too_late.start()
        said = map(str.split, iter(self._process.stdout.readline, ""))
        names = (words[1] for words in said if words[:1] == ["ready"])
        self.name = next(names, "")
        too_late.cancel()
        assert self.name, self._log.read_text()[-2000:]
        return self

    def has(self, place):
        """Whether replicas at *place*, as the master calls it, are in its memory."""
        return _listener(int(place.rpartition(":")[2])) == self._process.pid

    def freeze(self):
        freeze(self._process)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()


def _listener(port):
    """The process that listens on *port*, at least of loopback; ``None`` if nobody does, as yet."""
    wanted = {f"{address}:{port:04X}" for address in ("0100007F", "00000000")}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] in wanted and fields[3] == "0A":
            return _owner(f"socket:[{fields[9]}]")
    return None


def _owner(inode):
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if any(os.readlink(file) == inode for file in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:
                continue  # it ended, or is somebody else's
    return None


_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_made = []
"""The network of this process's own, as an open file, once there is one."""


@contextmanager
def secluded():
    """This thread, and what it starts, in a network of their own, where that is allowed.

    Mooncake's clients listen on all addresses, whatever they are told. With this nobody but
    the tests reaches them. It is the same network each time: Mooncake's own threads stay in the
    one that they met.
    """
    if os.geteuid() or sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if not _enter(libc):
            yield  # a container that forbids it
            return
        try:
            yield
        finally:
            assert libc.setns(home, _NEWNET) == 0
    finally:
        os.close(home)


def _enter(libc):
    """Bring this thread into that network, made when it is first asked for. Whether it is there."""
    if _made:
        return libc.setns(_made[0], _NEWNET) == 0
    if libc.unshare(_NEWNET):
        return False
    _raise_loopback()
    _made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
    return True


def _raise_loopback():
    import fcntl
    import struct

    up_and_running = 0x41
    with socket.socket() as any_socket:
        request = struct.pack("16sh22x", b"lo", up_and_running)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
