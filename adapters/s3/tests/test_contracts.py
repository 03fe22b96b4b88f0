"""The contracts that the store and the plugin keep, by both ways of moving frames."""

from contextlib import closing
from typing import ClassVar

import pytest

from hexkv.contracts.plugin import PluginContract
from servers.s3_contract import S3Contract
from servers.s3_servers import OneLine, own_double

MIB = 1 << 20


class OnTheDouble(S3Contract):
    @pytest.fixture
    def server(self, double):
        return double

    @pytest.fixture
    def service(self):
        with own_double() as service:
            yield service

    @pytest.fixture
    def unreadable(self, server, raw):
        return lambda key: server.archive(f"{raw.prefix}{key.hex()}")

    @pytest.fixture
    def limit(self, server, raw):
        with closing(OneLine(server, f"{raw.prefix}limit")) as limit:
            yield limit


class TestHttp(OnTheDouble):
    options: ClassVar = {"client": "http"}


@pytest.mark.thorough
class TestHttpInPartsOverFewConnections(OnTheDouble):
    least = 0.1  # four requests where the limit makes one, and a fifth to put them together

    options: ClassVar = {
        "client": "http",
        "connections": 2,
        "part_size": 5 * MIB,
        "multipart_threshold": 5 * MIB,
    }


@pytest.mark.thorough
class TestAwscrt(OnTheDouble):
    least = 0.1  # it copies twice

    options: ClassVar = {"client": "awscrt"}


class TestPlugin(PluginContract):
    entry_point = "s3"
