"""Servers of the tests' own, and stores over them."""

import pytest

from hexkv.adapters.lmserver.plugin import hexkv_adapters
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.spec import OpenContext
from lm_servers import served
from processes import PATIENCE

SPECS = {spec.name: spec for spec in hexkv_adapters()}


@pytest.fixture(scope="session")
def shared_server():
    """One server for all tests that do it no harm."""
    with served() as server:
        yield server


@pytest.fixture
def server(shared_server):
    """That server, empty."""
    shared_server.clear()
    return shared_server


@pytest.fixture
def open_store():
    """Opens stores as a configuration does; closes them."""
    opened = []

    def open_store(address, kind="hexkv", **settings):
        spec = SPECS[kind]
        opened.append(spec.open(spec.settings(address, **settings), OpenContext(SystemClock())))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def soon():
    """A deadline that every answer keeps, however busy the machine is: it comes no nearer."""
    return deadline(PATIENCE)


@pytest.fixture
def key():
    return chunk_key("a")
