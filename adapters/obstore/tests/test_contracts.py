"""The contracts that the store and the plugin keep."""

from contextlib import closing

import pytest

from hexkv.contracts.plugin import PluginContract
from servers.s3_contract import S3Contract
from servers.s3_servers import OneLine, own_double


@pytest.mark.thorough
class TestS3(S3Contract):
    least = 0.1  # what is read is copied

    @pytest.fixture
    def server(self, double):
        return double

    @pytest.fixture
    def service(self):
        with own_double() as service:
            yield service

    @pytest.fixture
    def limit(self, server, raw):
        with closing(OneLine(server, f"{raw.prefix}limit")) as limit:
            yield limit


@pytest.mark.thorough
class TestPlugin(PluginContract):
    entry_point = "obstore"
