"""A Mooncake of the tests' own, and stores over it."""

import secrets
from contextlib import ExitStack, contextmanager

import pytest

from hexkv.adapters.mooncake._connection import RetriedConnection
from hexkv.adapters.mooncake._native import library
from hexkv.adapters.mooncake._rehearsal import SetupArguments
from hexkv.adapters.mooncake.back_door import MooncakeDoor
from hexkv.adapters.mooncake.plugin import MooncakeSettings, hexkv_adapters
from hexkv.adapters.mooncake.store import MooncakeStore
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.spec import OpenContext
from hexkv.ports import StoreError
from processes import PATIENCE
from servers import mooncake_servers
from servers.mooncake_servers import Master, Node


@pytest.fixture(scope="module", autouse=True)
def secluded():
    """A network where nobody else is, until the module's last test: others do not reach theirs.

    Not for the package: without an ``__init__.py`` that is the whole session to pytest.
    """
    mooncake_servers.need_mooncake()
    with mooncake_servers.secluded():
        yield


@pytest.fixture(scope="session")
def master(tmp_path_factory):
    """One for all tests that do it no harm."""
    mooncake_servers.need_mooncake()
    folder = tmp_path_factory.mktemp("mooncake")
    with ExitStack() as running:
        with mooncake_servers.secluded():
            master = running.enter_context(Master(folder))
            running.enter_context(Node(folder, master))
        yield master


@pytest.fixture
def prefix():
    """Of the test's own objects."""
    return f"test-{secrets.token_hex(8)}:"


PATIENT = {"connect_timeout": PATIENCE, "call_timeout": PATIENCE / 2}
"""As long as even a busy machine needs. Where a test sets a deadline, that comes first."""


@pytest.fixture
def open_store(prefix):
    """Opens stores as a configuration does; closes them."""
    spec = next(it for it in hexkv_adapters() if it.kind == "store")
    opened = []

    def open_store(address, **settings):
        settings = MooncakeSettings(address, **{"prefix": prefix} | PATIENT | settings)
        opened.append(spec.open(settings, OpenContext(SystemClock())))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


class Lent:
    """A connection that many tests use, one store after the other.

    Mooncake's client takes a second to close. What a store does with one of its own is tested, too.
    """

    def __init__(self, connection):
        self._connection = connection
        self._closed = False
        self.knows = connection.knows

    @contextmanager
    def client(self, seconds):
        if self._closed:
            raise StoreError("the store is closed")
        with self._connection.client(seconds) as client:
            yield client

    def wait(self, seconds):
        with self.client(seconds):
            pass

    def close(self):
        self._closed = True


@pytest.fixture(scope="session")
def connection(master):
    place = SetupArguments(master.address, "P2PHANDSHAKE", "127.0.0.1", "tcp", "", 0, 16 << 20)
    connection = RetriedConnection(place, library(), SystemClock(), PATIENCE)
    yield connection
    connection.close()


@pytest.fixture
def borrow_store(connection, prefix):
    """Opens stores over one connection; closes them."""

    def forget(store):
        store.close()
        with connection.client(PATIENCE) as client:
            # What ends with the client usually; here others go on with it.
            for buffer in store._mover._staging._idle:
                buffer.close(client)

    with ExitStack() as opened:

        def borrow_store(prefix=prefix):
            store = MooncakeStore(
                Lent(connection),
                library().ReplicateConfig(),
                prefix=prefix,
                call_timeout=PATIENCE / 2,
                staging_bytes=32 << 20,
            )
            opened.callback(forget, store)
            return store

        yield borrow_store


class Objects(MooncakeDoor):
    """The back door, which the master's page for people makes one that lists."""

    def __init__(self, client, master, prefix):
        super().__init__(client, prefix)
        self._master = master

    def keys(self):
        mine = (name for name in self._master.names() if name.startswith(self._prefix))
        return {bytes.fromhex(name.removeprefix(self._prefix)) for name in mine}

    def clear(self):
        for key in self.keys():
            self._client.remove(self._prefix + key.hex(), True)


@pytest.fixture(scope="session")
def client(master):
    """Mooncake's own client."""
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    with mooncake_servers.secluded():
        code = client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 80 << 20, "tcp", "", master.address)
    assert code == 0
    yield client
    client.close()


@pytest.fixture
def objects(client, master, prefix):
    found = Objects(client, master, prefix)
    yield found
    found.clear()
