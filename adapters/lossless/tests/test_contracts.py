"""The contracts that the serde and the plugin keep."""

import pytest

from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.serde import SerdeContract


class TestFast(SerdeContract):
    @pytest.fixture
    def serde(self):
        return ZstdSerde()


class TestThorough(SerdeContract):
    @pytest.fixture
    def serde(self):
        return ZstdSerde(level=19)


class TestPlugin(PluginContract):
    entry_point = "lossless"
