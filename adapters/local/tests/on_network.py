"""The store for shared file systems on one: two hosts, by SSHFS, with caches of their own.

``make test-network-files``. Named so that only who asks for it gets it: to mount takes FUSE, and
root or its helper.
"""

import secrets

import pytest

from configured import CHUNK
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.kit.whole import waive
from hexkv.contracts.store import StoreContract
from media.chunk_files import Files
from media.in_turn import InTurn
from media.net_files import BreakableFiles, SftpServer, mounted
from remote_engines import comes_back, engine_over, got, kept


@pytest.fixture(scope="module")
def server():
    with SftpServer() as server:
        yield server


CLOSE_TO_OPEN = ("dir_cache=no", "attr_timeout=0", "entry_timeout=0")
"""What NFS promises without being asked: who opens a file sees what was closed before."""


@pytest.fixture(scope="module")
def hosts(server, tmp_path_factory):
    """The exported directory itself, and where each of two hosts has it."""
    place = tmp_path_factory.mktemp("network")
    exported = place / "exported"
    exported.mkdir()
    with (
        mounted(server.address, exported, place / "one", *CLOSE_TO_OPEN) as one,
        mounted(server.address, exported, place / "two", *CLOSE_TO_OPEN) as two,
    ):
        yield exported, one, two


@pytest.fixture(scope="module")
def breakable(tmp_path_factory):
    """A server that nobody else needs, and where its directory is mounted, through a proxy."""
    place = tmp_path_factory.mktemp("breakable")
    exported = place / "exported"
    exported.mkdir()
    with (
        SftpServer() as server,
        FaultProxy(("127.0.0.1", server.port)) as proxy,
        mounted(proxy.address, exported, place / "here", *CLOSE_TO_OPEN) as here,
    ):
        yield BreakableFiles(server, proxy), here


@pytest.fixture
def places(hosts):
    """Likewise, a directory of the test's own."""
    name = secrets.token_hex(8)
    return [host / name for host in hosts]


@pytest.fixture
def open_fs():
    opened = []

    def open_fs(*roots):
        stores = [SharedFileStore(root, ManualClock(), ttl=None) for root in roots]
        opened.append(InTurn(stores) if len(stores) > 1 else stores[0])
        return opened[-1]

    yield open_fs
    for store in opened:
        store.close()


class OnTheNetwork(StoreContract):
    @pytest.fixture
    def roots(self, places):
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_fs, roots):
        return open_fs(*roots)

    @pytest.fixture
    def raw(self, places):
        return Files(places[0])

    @pytest.fixture
    def reopen(self, store, open_fs, roots):
        opened = [store]

        def again():
            opened[-1].close()
            opened.append(open_fs(*roots))
            return opened[-1]

        return again

    @pytest.fixture
    def sibling(self, open_fs, roots):
        return open_fs(*[root.with_name(f"{root.name} beside") for root in roots])

    @pytest.fixture
    def foreign(self, places):
        path = places[0] / "ab" / "notes.txt"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"somebody's")
        return lambda: {"notes.txt": path.read_bytes()} if path.exists() else {}


WAITS = "a system call cannot be given up: the core does not wait for the worker that makes it"


class TestOneHost(OnTheNetwork):
    test_outlives_a_service_that_hangs = waive(WAITS)
    test_outlives_a_slow_service = waive(WAITS)
    test_can_be_closed_while_its_service_hangs = waive(WAITS)

    @pytest.fixture
    def roots(self, places):
        return places[1:2]

    @pytest.fixture
    def service(self, breakable):
        return breakable[0]

    @pytest.fixture
    def exposed(self, breakable, open_fs):
        return open_fs(breakable[1] / secrets.token_hex(8))


class TestTwoHosts(OnTheNetwork):
    """Every call comes from the other host than the one before."""

    test_no_reader_sees_a_mixture = waive(
        "SSHFS tells the size of an open file by its name, so that of two frames one may be cut"
        " off where the other ends; the header says so to the core"
    )

    @pytest.fixture
    def roots(self, places):
        return places[1:]


TOKENS = list(range(4 * CHUNK))


def until_back(engine):
    """Until the files serve what is stored."""

    def is_there():
        kept(engine, TOKENS)
        engine.clear(tiers=["memory"])
        return got(engine, TOKENS) == len(TOKENS)

    comes_back(is_there)


@pytest.mark.parametrize(("end", "mend"), [("kill", "start"), ("stall", "resume")])
def test_an_engine_serves_on_without_its_files_and_the_tier_comes_back(breakable, end, mend):
    service, root = breakable
    shared = {"store": "fs", "settings": {"root": str(root / end)}}
    with engine_over({"store": "memory"}, shared) as engine:
        until_back(engine)
        getattr(service, end)()
        for start in range(1000, 1000 + 6 * CHUNK, CHUNK):
            tokens = list(range(start, start + CHUNK))
            assert kept(engine, tokens) == got(engine, tokens) == len(tokens)
        engine.clear(tiers=["memory"])
        assert got(engine, TOKENS) == 0
        getattr(service, mend)()
        until_back(engine)
