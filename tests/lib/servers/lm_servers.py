"""`hexkv serve` as the tests start it, and clients that know both wires by their bytes alone."""

import hmac
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from zlib import crc32

from hexkv.contracts.store import BehindProxy
from processes import PATIENCE, freeze, held_port, listening_ports, until

SMALL = ("--budget", "160MiB", "--transit", "96MiB", "--largest", "80MiB", "--patience", "30")


class Served:
    """A server process; `start` takes the same port again."""

    def __init__(self, *options, port=0):
        self.options = options
        self.process = None
        self.port = port or held_port()
        self.start()

    def start(self):
        command = [sys.executable, "-m", "hexkv.plugins", "serve", "--json"]
        command += ["--port", str(self.port), *self.options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        lines = []
        while (line := self.process.stdout.readline()) and line.rstrip() != "}":
            lines.append(line)
        if not line:
            _, errors = self.process.communicate(timeout=PATIENCE)
            raise AssertionError(f"the server did not start: {errors}")
        (address, *_) = json.loads("".join([*lines, "}"]))["addresses"]
        self.port = int(address.rpartition(":")[2])
        assert self.port in listening_ports(self.process.pid), "somebody else listens there"

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def resident(self):
        """Bytes of memory that the process has beside its pool, by far its largest mapping.

        The pool is touched piece by piece in the background, sooner or later after the start.
        """
        sizes = []
        with open(f"/proc/{self.process.pid}/smaps") as file:
            for line in file:
                if line.startswith("Size:"):
                    size = int(line.split()[1])
                elif line.startswith("Rss:"):
                    sizes.append((size, int(line.split()[1])))
        return 1024 * sum(resident for _, resident in sorted(sizes)[:-1])

    @property
    def threads(self):
        """Threads that the process has."""
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    @property
    def connections(self):
        """Connections that the process has, beside what it listens at."""
        folder, found = f"/proc/{self.process.pid}/fd", -1
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                found += os.readlink(f"{folder}/{name}").startswith("socket:")
        return found

    def alone(self):
        """Wait until every connection is over, for whoever closed one heard nothing of its end."""
        until(lambda: not self.connections)

    def clear(self):
        """Delete what was stored over either wire, and what was on its way when this was called."""
        self.alone()
        with closing(RawHexkv(self.address)) as raw:
            if keys := raw.keys():
                raw.ask(4, len(keys), b"".join(keys))
                raw.answer()
        with closing(RawLM(self.address)) as raw:
            for name in raw.names():
                raw.ask(1, name, 0, (0,) * 7)
            raw.names()

    def freeze(self):
        freeze(self.process)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        """End it as an operator does. The exit code, and the warnings of its log but for clients
        turned away."""
        self.thaw()
        self.process.terminate()
        _, errors = self.process.communicate(timeout=PATIENCE)
        usual = "connections turned away", " INFO "
        lines = [it for it in errors.splitlines(True) if not any(part in it for part in usual)]
        return self.process.returncode, "".join(lines)

    def kill(self):
        """As a machine goes down: no farewell."""
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


@contextmanager
def served(*options):
    server = Served(*(options or SMALL))
    try:
        yield server
    finally:
        if server.process.poll() is None:
            code, errors = server.stop()
            assert (code, errors) == (0, "")


class BreakableServer(BehindProxy):
    """A server that dies, stands still and gets less room, behind a proxy that does the rest."""

    can = BehindProxy.can | {"kill", "full"}

    def __init__(self, server, proxy):
        super().__init__(proxy)
        self.server = server
        self._options = server.options

    def kill(self):
        self.server.kill()

    def start(self):
        self.server.start()

    def stall(self):
        self.server.freeze()

    def resume(self):
        self.server.thaw()

    def fill(self):
        # One that is full makes room: what it never has room for is a chunk that is too large.
        self._restart((*self._options, "--largest", "512KiB"))

    def mend(self):
        super().mend()
        if self.server.options != self._options:
            self._restart(self._options)

    def _restart(self, options):
        self.server.kill()
        self.server.options = options
        self.server.start()


PLAIN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    peer = listener.accept()[0]
kept = memoryview(bytearray(int(sys.argv[1])))
while order := peer.recv(1):
    if order == b"w":
        left = kept
        while left:
            left = left[peer.recv_into(left):]
        peer.sendall(b"!")
    else:
        peer.sendall(kept)
"""
"""A process that takes so many bytes, or gives them, and knows nothing else."""


class Loopback:
    """What a connection between two processes can do."""

    def __init__(self, size):
        command = [sys.executable, "-c", PLAIN, str(size)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        port = int(self.process.stdout.readline())
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)

    def write(self, frame):
        self.sock.sendall(b"w")
        self.sock.sendall(frame)
        assert self.sock.recv(1) == b"!"

    def read(self, into):
        self.sock.sendall(b"r")
        while into:
            got = self.sock.recv_into(into)
            assert got, "the process is gone"
            into = into[got:]

    def close(self):
        self.sock.close()
        self.process.communicate(timeout=PATIENCE)


class RawHexkv:
    """The `hexkv://` wire, byte by byte, and nothing of the store."""

    def __init__(self, address, secret=b""):
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), PATIENCE)
        try:
            self._greet(secret)
        except BaseException:
            self.sock.close()
            raise

    def _greet(self, secret):
        hello = struct.pack("<8sHH4x32s", b"hexkvTCP", 1, 0, bytes(32))
        self.sock.sendall(hello)
        challenge = self.exactly(56)
        self.sock.sendall(hmac.digest(secret, b"client" + hello + challenge, "sha256"))
        assert self.exactly(40)[0] == 0

    def exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise EOFError(len(data))
            data += part
        return data

    def ask(self, kind, count, body):
        self.sock.sendall(request(kind, count, body, patience=1000))

    def answer(self):
        """Status, entries, body."""
        head = struct.unpack("<4sBBHIIII", self.exactly(24))
        return head[2], head[4], self.exactly(head[6])

    def get(self, key):
        self.ask(2, 1, key)
        self.answer()
        size = struct.unpack("<QI", self.exactly(12))[0]
        return None if size >= 2**64 - 2 else self.exactly(size)

    def put(self, key, frame):
        self.ask(3, 1, key + len(frame).to_bytes(8, "little"))
        assert self.answer()[2] == b"\0"
        self.sock.sendall(frame)
        assert self.answer()[2] == b"\0"

    def keys(self):
        found, after = set(), bytes(48)
        while True:
            self.ask(6, 1, after)
            _, count, body = self.answer()
            if not count:
                return found
            for start in range(0, len(body), 64):
                after = body[start : start + 48]
                found.add(after)

    def close(self):
        self.sock.close()


def request(kind, count, body, *, patience=0, status=0):
    bare = struct.pack("<4sBBHIII", b"hxkv", kind, status, 0, count, patience, len(body))
    return bare + crc32(body, crc32(bare)).to_bytes(4, "little") + body


class RawLM:
    """The historic wire, byte by byte; keys are chunks' as the store `lm` names them."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), PATIENCE)

    exactly = RawHexkv.exactly

    def ask(self, command, name, length=0, numbers=(1, 2, 0, 0, 0, 0, 0)):
        self.sock.sendall(struct.pack("<9i150s", command, length, *numbers, name.ljust(150)))

    def answer(self):
        return struct.unpack("<9i", self.exactly(36))

    @staticmethod
    def name(key):
        return f"hexkv@1@0@{key.hex()}@uint8".encode()

    def get(self, key):
        self.ask(2, self.name(key))
        code, length, *_ = self.answer()
        return self.exactly(length) if code == 200 else None

    def put(self, key, frame):
        self.ask(1, self.name(key), len(frame), (4, 6, 0, len(frame), 0, 0, 0))
        self.sock.sendall(frame)
        self.ask(3, self.name(key))
        assert self.answer()[0] == 200

    def names(self):
        """Of every value, whoever stored it."""
        self.ask(4, b"x")
        return [name for name in self.exactly(self.answer()[1]).split(b"\n") if name]

    def keys(self):
        ours = [name.split(b"@") for name in self.names() if name.startswith(b"hexkv@")]
        return {bytes.fromhex(digits.decode()) for _, _, _, digits, _ in ours}

    def close(self):
        self.sock.close()
