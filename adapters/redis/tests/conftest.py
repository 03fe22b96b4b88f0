"""Servers of the tests' own, and stores over them."""

import secrets

import pytest

from hexkv.adapters.redis import _routes
from hexkv.adapters.redis.plugin import hexkv_adapters
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import OpenContext
from servers.redis_servers import Keys, RedisServer

CONNECTING = 10.0
"""Seconds that a store waits for a connection: fewer than a test waits for it to be closed."""


@pytest.fixture(scope="session")
def valkey(tmp_path_factory):
    """One Valkey for all tests that do it no harm."""
    folder = tmp_path_factory.mktemp("valkey")
    socket = ["--unixsocket", str(folder / "socket")]
    with RedisServer(folder, *socket, "--databases", "4") as server:
        yield server


@pytest.fixture
def prefix():
    """Of the test's own keys: somebody else's may be on the same server."""
    return f"test {secrets.token_hex(8)}:"


@pytest.fixture
def open_store(prefix, monkeypatch):
    """Opens stores as a configuration does; closes them.

    They wait longer for a login or a word about other servers than the second of the defaults:
    on a busy machine a server that is well may take that long.
    """
    (spec,) = (it for it in hexkv_adapters() if it.kind == "store")
    opened = []
    monkeypatch.setattr(_routes, "_QUESTION", CONNECTING)

    def open_store(url, **settings):
        mine = {"prefix": prefix, "connect_timeout": CONNECTING}
        made = parse_settings(spec, {"url": url} | mine | settings)
        opened.append(spec.open(made, OpenContext(SystemClock())))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def keys(valkey, prefix):
    """The back door to the test's keys, which are gone afterwards."""
    with valkey.admin() as admin:
        found = Keys(admin, prefix)
        yield found
        found.clear()
