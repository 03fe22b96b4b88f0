"""The contract on Azurite, Microsoft's own emulator of Azure's storage: ``make test-azure``.

Named so that only who asks for it gets it: it is npm's. ``AZURITE`` says where its program is.
"""

import base64
import hashlib
import hmac
import http.client
import os
import re
import shutil
import subprocess
from contextlib import closing, suppress
from email.utils import formatdate

import obstore
import pytest
from obstore.store import AzureStore

from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.store import BehindProxy
from processes import PATIENCE, held_port, until
from servers.s3_contract import S3Contract
from servers.s3_double import BUCKET

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Published, and the same for every Azurite."""


class Objects:
    """The back door: the library's plain calls, one after the other."""

    def __init__(self, store, prefix):
        self._store, self.prefix = store, prefix

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
        try:
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def put_name(self, name, body):
        obstore.put(self._store, name, bytes(body), use_multipart=False)

    def delete_name(self, name):
        with suppress(FileNotFoundError):
            obstore.delete(self._store, name)

    def names(self):
        listed = obstore.list(self._store)
        found = {each["path"] for page in listed for each in page}
        return {name for name in found if name.startswith(self.prefix)}


class Azurite:
    """A server of the tests' own, on a free port of loopback, which keeps nothing."""

    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")

    def __init__(self, folder):
        self.folder, self.port = folder, held_port()
        self._process = None

    def __enter__(self):
        self._process = subprocess.Popen(
            self.command(),
            cwd=self.folder,
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

    def _made(self):
        assert self._process.poll() is None, "the server ended"
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE)) as line:
                return self.make_bucket(line) in (200, 201)
        except ConnectionError:
            return False

    def command(self):
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return [self.program, "--inMemoryPersistence", *where, *quiet]

    @property
    def settings(self):
        return self.settings_at(self.port)

    def settings_at(self, port):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        return {"scheme": "az", "account": ACCOUNT, "secret_key": KEY, "endpoint": endpoint}

    def objects(self, prefix):
        store = AzureStore(
            BUCKET,
            account_name=ACCOUNT,
            account_key=KEY,
            endpoint=self.settings["endpoint"],
            client_options={"allow_http": True},
        )
        return Objects(store, prefix)

    def make_bucket(self, line):
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        path = f"/{ACCOUNT}/{BUCKET}"
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        said = f"PUT{chr(10) * 12}{named}/{ACCOUNT}{path}\nrestype:container"
        digest = hmac.digest(base64.b64decode(KEY), said.encode(), hashlib.sha256)
        headers["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        line.request("PUT", f"{path}?restype=container", headers=headers)
        return line.getresponse().status


class Behind(BehindProxy):
    def __init__(self, server, proxy):
        super().__init__(proxy)
        self.settings = server.settings_at(int(proxy.address.rpartition(":")[2]))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory):
    with Azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.mark.skipif(not Azurite.program, reason="npm install azurite, and AZURITE=its program")
class TestAzure(S3Contract):
    least = 0.0  # an emulator's speed says nothing

    @pytest.fixture
    def server(self, azurite):
        return azurite

    @pytest.fixture
    def service(self, server):
        with FaultProxy(("127.0.0.1", server.port)) as proxy:
            yield Behind(server, proxy)
