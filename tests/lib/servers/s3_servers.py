"""S3 servers for tests: our own processes, on free ports of loopback."""

import http.client
import re
import secrets
import signal
import ssl
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from socket import create_connection
from urllib.parse import quote

import trustme

from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.store import BehindProxy
from processes import PATIENCE, freeze, held_port, until
from servers.s3_double import ACCESS_KEY, BUCKET, SECRET_KEY


class Double:
    """The small strict S3, which may be killed, frozen and started again at the same place."""

    def __init__(self, *options, certificate=None, trusting=False, port=0):
        self.owner = secrets.token_hex(8)
        self.certificate = certificate
        self.port = port or held_port()
        self._options = ["--owner", self.owner, *options]
        if certificate is not None:
            self._options += ["--certificate", str(certificate.server)]
        if trusting:
            self._options.append("--trusting")
        self._process = None

    @property
    def endpoint(self):
        if self.certificate is not None:
            return f"https://localhost:{self.port}"
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self):
        """What a store needs to know."""
        found = {
            "endpoint": self.endpoint,
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }
        if self.certificate is not None:
            found["tls_ca"] = str(self.certificate.authorities)
        return found

    def start(self):
        command = [sys.executable, str(Path(__file__).with_name("s3_double.py"))]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port), *self._options], stdout=subprocess.PIPE, text=True
        )
        line = self._process.stdout.readline()
        # It says where it listens: so it is our process that does.
        assert line == f"{self.port}\n", "the double did not start"
        return self

    def freeze(self):
        freeze(self._process)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        """As a machine goes down: no farewell, and nothing is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def objects(self, prefix):
        """The back door to what is stored below *prefix*."""
        return Objects(self._connect, prefix, {"x-owner": self.owner}, BUCKET)

    def limit(self, size):
        """Take no object, or part of one, of more than *size* bytes from now on; -1: none."""
        self._set("largest", str(size))

    def archive(self, name):
        """Keep the object of this name, and let it be read no more until it is put anew."""
        self._set("archived", name)

    def _set(self, what, value):
        with closing(self._connect()) as line:
            line.request("PUT", f"/-/{what}", value, headers={"x-owner": self.owner})
            assert line.getresponse().status == 200

    def uploads(self):
        """How many uploads in parts have begun and not ended."""
        with closing(self._connect()) as line:
            line.request("GET", "/-/uploads", headers={"x-owner": self.owner})
            return int(line.getresponse().read())

    def _connect(self):
        if self.certificate is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        trust = ssl.create_default_context(cafile=str(self.certificate.authorities))
        return http.client.HTTPSConnection("localhost", self.port, timeout=PATIENCE, context=trust)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()


class Moto:
    """AWS's most used stand-in, from PyPI, in a process of its own. It believes every signature."""

    def __init__(self):
        self.port = held_port()
        self._process = None

    @property
    def settings(self):
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(self._made)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def objects(self, prefix):
        """The back door to what is stored below *prefix*."""
        headers = {"authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/x/us-east-1/s3/x"}
        return Objects(self._connect, prefix, headers, BUCKET)

    def _connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def _made(self):
        """Whether it listens; then it has the bucket, too."""
        assert self._process.poll() is None, "moto ended"
        try:
            with closing(self._connect()) as line:
                line.request("PUT", f"/{BUCKET}", headers=self.objects("").headers)
                return line.getresponse().status == 200
        except ConnectionError:
            return False


class OwnDouble(BehindProxy):
    """A double of a test's own, to be broken by the contract of the ways of failing."""

    can = BehindProxy.can | {"kill", "full"}

    def __init__(self, double, proxy):
        super().__init__(proxy)
        self.double = double

    @property
    def settings(self):
        return self.double.settings | {"endpoint": f"http://{self.proxy.address}"}

    def kill(self):
        self.double.kill()

    def start(self):
        self.double.start()

    def fill(self):
        self.double.limit(1000)

    def mend(self):
        super().mend()
        self.double.limit(1 << 40)


@contextmanager
def own_double():
    """A double that nobody else needs, behind a proxy."""
    with Double() as double, FaultProxy(("127.0.0.1", double.port)) as proxy:
        yield OwnDouble(double, proxy)


class Objects:
    """The back door to what a store keeps below its prefix: plain requests of another client."""

    def __init__(self, connect, prefix, headers, bucket):
        self._connect = connect
        self.prefix = prefix
        self.headers = headers
        self._bucket = bucket

    def get(self, key):
        return self.get_name(self.prefix + key.hex())

    def put(self, key, frame):
        self.put_name(self.prefix + key.hex(), frame)

    def delete(self, key):
        self.delete_name(self.prefix + key.hex())

    def keys(self):
        found = (name.removeprefix(self.prefix) for name in self.names())
        return {bytes.fromhex(name) for name in found if re.fullmatch("[0-9a-f]{96}", name)}

    def clear(self):
        for name in self.names():
            self.delete_name(name)

    def get_name(self, name):
        status, body = self._ask("GET", name)
        return None if status == 404 else body

    def put_name(self, name, body):
        status, _ = self._ask("PUT", name, body)
        assert status == 200

    def delete_name(self, name):
        self._ask("DELETE", name)

    def names(self):
        from hexkv.adapters.s3._answers import page

        status, body = self._ask("GET", "", query=f"?list-type=2&prefix={quote(self.prefix)}")
        assert status == 200
        return {found.name for found in page(body).objects}

    def _ask(self, method, name, body=None, query=""):
        target = f"/{self._bucket}/{quote(name)}{query}"
        with closing(self._connect()) as line:
            line.request(method, target, body, headers=self.headers)
            reply = line.getresponse()
            return reply.status, reply.read()


class OneLine:
    """What one connection can do that is written by hand for nothing else."""

    def __init__(self, double, name):
        self._sock = create_connection(("127.0.0.1", double.port), PATIENCE)
        self._target = f"/{BUCKET}/{quote(name)} HTTP/1.1\r\nhost: x\r\nx-owner: {double.owner}"

    def write(self, frame):
        head = f"PUT {self._target}\r\ncontent-length: {len(frame)}\r\n\r\n"
        self._sock.sendall(head.encode())
        self._sock.sendall(frame)
        assert not self._answered()

    def read(self, into):
        self._sock.sendall(f"GET {self._target}\r\n\r\n".encode())
        come = self._answered()
        into[: len(come)] = come
        into = into[len(come) :]
        while into:
            got = self._sock.recv_into(into)
            assert got, "the server hung up"
            into = into[got:]

    def close(self):
        self._sock.close()

    def _answered(self):
        """Take the head of a reply; what came with it of a body."""
        heard = b""
        while b"\r\n\r\n" not in heard:
            more = self._sock.recv(4096)
            assert more, "the server hung up"
            heard += more
        head, _, body = heard.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        return body


class Certificate:
    """An authority of the tests' own, and a server's certificate."""

    def __init__(self, folder):
        authority = trustme.CA()
        self.authorities = folder / "authorities.pem"
        self.server = folder / "server.pem"
        authority.cert_pem.write_to_path(str(self.authorities))
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(self.server))
