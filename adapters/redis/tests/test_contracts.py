"""The contracts that the store and the plugin keep, on every kind of server."""

import gc
import socket
import ssl
from contextlib import closing

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract
from processes import PATIENCE
from servers.redis_servers import (
    BareRedis,
    BreakableRedis,
    Certificates,
    Keys,
    OneConnection,
    RedisServer,
    Strangers,
    redis_binary,
)


class RedisContract(StoreContract):
    @pytest.fixture
    def settings(self, valkey):
        return {"url": valkey.url}

    @pytest.fixture
    def store(self, settings, open_store):
        return open_store(**settings)

    @pytest.fixture
    def raw(self, keys):
        return keys

    @pytest.fixture
    def reopen(self, settings, store, open_store):
        opened = [store]

        def again():
            opened[-1].close()
            opened.append(open_store(**settings))
            return opened[-1]

        return again

    @pytest.fixture
    def sibling(self, settings, open_store, raw, prefix):
        beside = Keys(raw.admin, prefix + "beside:")
        yield open_store(**settings, prefix=prefix + "beside:")
        beside.clear()

    @pytest.fixture
    def foreign(self, raw, prefix):
        strangers = Strangers(raw.admin, prefix, chunk_key("a"))
        yield strangers.look
        strangers.clear()


@pytest.fixture(scope="module")
def breakable(tmp_path_factory):
    """A server that nobody else needs, and a proxy before it."""
    with (
        RedisServer(tmp_path_factory.mktemp("breakable")) as server,
        FaultProxy(("127.0.0.1", server.port)) as proxy,
    ):
        yield BreakableRedis(server, proxy)


class TestValkey(RedisContract):
    @pytest.fixture
    def service(self, breakable):
        return breakable

    @pytest.fixture
    def exposed(self, service, open_store):
        return open_store(f"redis://{service.proxy.address}")

    @pytest.fixture
    def limit(self, valkey, keys, prefix):
        with closing(socket.create_connection(("127.0.0.1", valkey.port), PATIENCE)) as sock:
            limit = OneConnection(sock, prefix)
            yield limit
        keys.admin.unlink(limit.key)


@pytest.fixture(scope="module")
def breakable_here(tmp_path_factory):
    """One at a Unix socket, where no proxy can be."""
    folder = tmp_path_factory.mktemp("here")
    with RedisServer(folder, "--unixsocket", str(folder / "socket")) as server:
        yield BareRedis(server)


@pytest.mark.thorough
class TestUnixSocketWithExpiry(RedisContract):
    @pytest.fixture
    def settings(self, valkey):
        return {"url": f"unix://{valkey.folder}/socket", "ttl": 3600.0}

    @pytest.fixture
    def service(self, breakable_here):
        return breakable_here

    @pytest.fixture
    def exposed(self, service, open_store):
        return open_store(f"unix://{service.server.folder}/socket", ttl=3600.0)

    @pytest.fixture
    def limit(self, valkey, keys, prefix):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"{valkey.folder}/socket")
            limit = OneConnection(sock, prefix)
            yield limit
        keys.admin.unlink(limit.key)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Debian's Redis, encrypted, behind a password."""
    folder = tmp_path_factory.mktemp("tls")
    tls = Certificates(folder)
    password = ("--requirepass", "secret")
    with RedisServer(
        folder, *password, binary=redis_binary(), tls=tls, password="secret"
    ) as server:
        yield server


# Until 3.11.8 and 3.12.2, Python's ssl did not close a socket that was reset just before its
# handshake, but left that to its finalizer (github.com/python/cpython/issues/113280).
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
class TestRedisOverTLS(RedisContract):
    @pytest.fixture
    def settings(self, server):
        return {
            "url": f"{server.url}/2",
            "password": "secret",
            "tls_ca": str(server.tls.authorities),
        }

    @pytest.fixture
    def raw(self, server, prefix):
        with server.admin(db=2) as admin:
            found = Keys(admin, prefix)
            yield found
            found.clear()

    @pytest.fixture
    def service(self, server):
        with FaultProxy(("127.0.0.1", server.port)) as proxy:
            yield BreakableRedis(server, proxy)
        gc.collect()  # here, and not in a test that fails of warnings

    @pytest.fixture
    def limit(self, server, raw, prefix):
        trust = ssl.create_default_context(cafile=str(server.tls.authorities))
        with (
            socket.create_connection(("127.0.0.1", server.port), PATIENCE) as plain,
            trust.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        ):
            limit = OneConnection(sock, prefix, b"AUTH secret", b"SELECT 2")
            yield limit
        raw.admin.unlink(limit.key)

    @pytest.fixture
    def exposed(self, service, settings, open_store):
        return open_store(**settings | {"url": f"rediss://{service.proxy.address}/2"})


class TestPlugin(PluginContract):
    entry_point = "redis"
