"""The contracts that the serdes and the plugin keep."""

import pytest

from depth import thorough
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.lowbit import Float8, Int4, Int8
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.serde import SerdeContract
from hexkv.kernels.coding import plain
from hexkv.kernels.coding.choosing import Choice, LowBitChoice


@pytest.fixture(scope="module")
def choice():
    choice = Choice()
    assert choice.wait(120), "numba compiles"
    return choice


@pytest.fixture(scope="module")
def lowbit_choice():
    choice = LowBitChoice()
    assert choice.wait(120), "numba compiles"
    return choice


class TestCacheGen(SerdeContract):
    @pytest.fixture(params=["default", *thorough("small")])
    def serde(self, request, choice):
        return LossySerde(CacheGen(LEVELS[request.param], choice))


@pytest.mark.thorough
class TestCacheGenInNumpy(SerdeContract):
    @pytest.fixture
    def serde(self):
        return LossySerde(CacheGen(LEVELS["default"], Choice(lambda: plain)))


@pytest.mark.thorough
class TestInt8(SerdeContract):
    @pytest.fixture
    def serde(self, lowbit_choice):
        return LossySerde(Int8(lowbit_choice))


@pytest.mark.thorough
class TestInt4(SerdeContract):
    @pytest.fixture
    def serde(self, lowbit_choice):
        return LossySerde(Int4(lowbit_choice))


@pytest.mark.thorough
class TestFloat8(SerdeContract):
    @pytest.fixture
    def serde(self, lowbit_choice):
        return LossySerde(Float8(lowbit_choice))


class TestPlugin(PluginContract):
    entry_point = "cachegen"
