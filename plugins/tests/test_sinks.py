"""The sink of metrics that a cache is built with keeps its contract."""

import pytest

from hexkv.contracts.telemetry import TelemetryContract
from hexkv.plugins.observing.telemetry import Totals


class TestTotals(TelemetryContract):
    @pytest.fixture
    def telemetry(self):
        return Totals()

    @pytest.fixture
    def total(self, telemetry):
        return telemetry.total
