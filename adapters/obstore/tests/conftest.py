"""Servers of the tests' own, and stores over them."""

import secrets

import pytest

from hexkv.adapters.obstore.plugin import hexkv_adapters
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
def open_store(prefix):
    """Opens stores as a configuration does; closes them."""
    (spec,) = hexkv_adapters()
    opened = []

    def open_store(*, scheme="s3", bucket=BUCKET, prefix=prefix, clock=None, **settings):
        url = {"url": f"{scheme}://{bucket}/{prefix}"}
        made = parse_settings(spec, url | {"connect_timeout": 10.0} | settings)
        opened.append(spec.open(made, OpenContext(clock or SystemClock())))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()
