"""The contract on Ceph's gateway, a real S3: ``make test-ceph``.

Named so that only who asks for it gets it: a cluster takes a quarter of a minute to start.
"""

from typing import ClassVar

import pytest

from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.kit.whole import waive
from hexkv.ports import StoreUnreachable
from servers.ceph_servers import BreakableCeph, Ceph
from servers.s3_contract import S3Contract

MIB = 1 << 20


@pytest.fixture(scope="session")
def ceph(tmp_path_factory):
    with Ceph(tmp_path_factory.mktemp("ceph")) as cluster:
        yield cluster


RACE = "Ceph answers 500 to who reads an object just while it is overwritten; the core asks again"


class AskingAgain:
    """A store as the core uses it: what may go better later is asked again."""

    TRIES = 50

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def read(self, keys, sink, deadline):
        for _ in range(self.TRIES):
            outcomes = self._store.read(keys, sink, deadline)
            if not any(isinstance(getattr(o, "error", None), StoreUnreachable) for o in outcomes):
                break
        return outcomes

    def contains(self, keys, deadline):
        for _ in range(self.TRIES):
            try:
                return self._store.contains(keys, deadline)
            except StoreUnreachable as error:
                refused = error
        raise refused


class OnCeph(S3Contract):
    test_no_reader_sees_a_mixture = waive(RACE)
    test_histories_are_linearizable = waive(RACE)

    @pytest.mark.usefixtures("restless")
    def test_who_asks_again_sees_no_mixture(self, store):
        S3Contract.test_no_reader_sees_a_mixture(self, AskingAgain(store))

    @pytest.mark.usefixtures("restless")
    @pytest.mark.parametrize("seed", range(3))
    def test_histories_of_who_asks_again_are_linearizable(self, store, seed):
        S3Contract.test_histories_are_linearizable(self, AskingAgain(store), seed)

    @pytest.fixture
    def server(self, ceph):
        return ceph

    @pytest.fixture
    def service(self, ceph):
        with FaultProxy(("127.0.0.1", ceph.port)) as proxy:
            yield BreakableCeph(ceph, proxy)


class TestHttp(OnCeph):
    options: ClassVar = {"client": "http"}


class TestHttpInParts(OnCeph):
    options: ClassVar = {"client": "http", "part_size": 5 * MIB, "multipart_threshold": 5 * MIB}


class TestAwscrt(OnCeph):
    options: ClassVar = {"client": "awscrt"}
