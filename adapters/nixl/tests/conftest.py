"""Stores over what NIXL's plug-ins reach: directories, and S3 servers of the tests' own."""

import secrets

import pytest

from hexkv.adapters.nixl.plugin import hexkv_adapters
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import OpenContext
from servers.s3_double import BUCKET
from servers.s3_servers import Double


@pytest.fixture(scope="session")
def double():
    with Double() as server:
        yield server


@pytest.fixture
def prefix():
    """Of the test's own objects: somebody else's may be in the same bucket."""
    return f"of a test/{secrets.token_hex(8)}"


@pytest.fixture
def open_nixl():
    """Opens stores as a configuration does; closes them."""
    spec = next(spec for spec in hexkv_adapters() if spec.kind == "store")
    opened = []

    def open_nixl(budget=128 << 20, **settings):
        made = parse_settings(spec, settings)
        opened.append(spec.open(made, OpenContext(SystemClock(), budget=budget)))
        return opened[-1]

    yield open_nixl
    for store in opened:
        store.close()


@pytest.fixture
def open_store(open_nixl, prefix):
    def open_store(*, prefix=prefix, **settings):
        return open_nixl(plugin="OBJ", bucket=BUCKET, prefix=f"{prefix}/", **settings)

    return open_store
