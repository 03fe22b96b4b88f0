"""The contracts that the serdes and the plugin keep."""

import pytest

from depth import thorough
from hexkv.adapters.lossless.rans import Rans
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.serde import SerdeContract
from hexkv.kernels.coding import compiled, plain
from hexkv.kernels.coding.choosing import Choice
from hexkv.plugins.support.payload import PlaneSerde


@pytest.mark.thorough
class TestFast(SerdeContract):
    @pytest.fixture
    def serde(self):
        return ZstdSerde()


@pytest.mark.thorough
class TestThorough(SerdeContract):
    @pytest.fixture
    def serde(self):
        return ZstdSerde(level=19)


class TestRans(SerdeContract):
    @pytest.fixture(params=[compiled, *thorough(plain)], ids=["compiled", "numpy"])
    def serde(self, request):
        choice = Choice(lambda: request.param)
        choice.wait(60)
        return PlaneSerde(Rans(choice))


class TestPlugin(PluginContract):
    entry_point = "lossless"
