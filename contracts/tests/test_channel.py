"""The double of a channel keeps the contract, as far as one process can."""

import pytest

from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel.double import Exchange, LocalChannel


@pytest.mark.thorough
class TestLocalChannel(ChannelContract):
    @pytest.fixture
    def make(self):
        exchange = Exchange()
        return lambda: LocalChannel(exchange)
