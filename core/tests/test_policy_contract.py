"""The policies of the core keep the contract."""

import pytest

from hexkv.contracts.policy import PolicyContract
from hexkv.core.policies import ARC, FIFO, LFU, LRU, MRU
from hexkv.ports import Policy


class TestLRU(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return LRU()


@pytest.mark.thorough
class TestLFU(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return LFU()


@pytest.mark.thorough
class TestFIFO(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return FIFO()


@pytest.mark.thorough
class TestMRU(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return MRU()


class TestARC(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return ARC()
