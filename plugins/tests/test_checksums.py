"""The checksums that come with hexkv keep the contract of all."""

import pytest

from hexkv.contracts.checksum import ChecksumContract
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext


class TestXXH3(ChecksumContract):
    name = "xxh3-128"

    @pytest.fixture
    def checksum(self):
        return discover().open("checksum", self.name, {}, OpenContext(SystemClock()))


@pytest.mark.thorough
class TestCRC32(TestXXH3):
    name = "crc32"
