"""Fixtures of a server of the tests, and stores over it: `from servers.lm_fixtures import ...`."""

import pytest

from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from processes import PATIENCE
from servers.lm_servers import served


@pytest.fixture(scope="session")
def shared_server():
    """One server for all tests that do it no harm."""
    with served() as server:
        yield server


@pytest.fixture
def server(shared_server):
    """That server, empty."""
    process = shared_server.process
    assert process.poll() is None, f"it ended: {process.returncode} {process.stderr.read()}"
    shared_server.clear()
    return shared_server


@pytest.fixture(scope="session")
def registry():
    """What is installed here."""
    return discover()


@pytest.fixture
def open_store(registry):
    """Opens stores as a configuration does; closes them."""
    opened = []

    def open_store(address, kind="hexkv", **settings):
        settings = {"address": address} | settings
        opened.append(registry.open("store", kind, settings, OpenContext(SystemClock())))
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
