"""Servers of the tests' own, and stores over them."""

import secrets

import pytest

from hexkv.adapters.s3.plugin import hexkv_adapters
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import OpenContext
from servers.s3_double import BUCKET
from servers.s3_servers import Certificate, Double, Moto


@pytest.fixture(scope="session")
def double():
    """One strict S3 for all tests that do it no harm."""
    with Double() as server:
        yield server


@pytest.fixture(scope="session")
def encrypted(tmp_path_factory):
    """The same behind TLS, with a certificate of an authority that nobody knows."""
    with Double(certificate=Certificate(tmp_path_factory.mktemp("tls"))) as server:
        yield server


@pytest.fixture(scope="session")
def moto():
    with Moto() as server:
        yield server


@pytest.fixture
def prefix():
    """Of the test's own objects: somebody else's may be in the same bucket."""
    return f"of a test/{secrets.token_hex(8)}"


@pytest.fixture
def open_store(prefix):
    """Opens stores as a configuration does; closes them.

    They wait longer for a connection than the second of the defaults: on a busy machine a server
    that is well may take that long to greet.
    """
    (spec,) = hexkv_adapters()
    opened = []

    def open_store(*, bucket=BUCKET, prefix=prefix, clock=None, **settings):
        url = {"url": f"s3://{bucket}/{prefix}"}
        made = parse_settings(spec, url | {"connect_timeout": 10.0} | settings)
        opened.append(spec.open(made, OpenContext(clock or SystemClock())))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()
