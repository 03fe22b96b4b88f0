"""The contracts that the store and the plugin keep, on every kind of server."""

import pytest

from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract
from redis_servers import Certificates, Keys, RedisServer, redis_binary


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


class TestValkey(RedisContract):
    pass


class TestUnixSocketWithExpiry(RedisContract):
    @pytest.fixture
    def settings(self, valkey):
        return {"url": f"unix://{valkey.folder}/socket", "ttl": 3600.0}


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


class TestRedisOverTLS(RedisContract):
    @pytest.fixture
    def settings(self, server):
        return {
            "url": f"{server.url}/2",
            "password": "secret",
            "tls_authorities": str(server.tls.authorities),
        }

    @pytest.fixture
    def raw(self, server, prefix):
        with server.admin(db=2) as admin:
            found = Keys(admin, prefix)
            yield found
            found.clear()


class TestPlugin(PluginContract):
    entry_point = "redis"
