"""The sinks of metrics and of events that a cache is built with keep their contracts."""

import pytest

from hexkv.contracts.directory.double import DictDirectory
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.telemetry import EventSinkContract, TelemetryContract
from hexkv.peers.lives import Life
from hexkv.peers.reporting import Reporting
from hexkv.plugins.observing.telemetry import Totals
from hexkv.ports import Member


class TestTotals(TelemetryContract):
    @pytest.fixture
    def telemetry(self):
        return Totals()

    @pytest.fixture
    def total(self, telemetry):
        return telemetry.total


@pytest.mark.thorough
class TestReporting(EventSinkContract):
    """The reports of a node whose directory nothing is sent to."""

    @pytest.fixture
    def sink(self):
        clock = ManualClock()
        life = Life(Member("ada", 1))
        return Reporting(DictDirectory(clock), life, clock, {"memory", "disk"})

    @pytest.fixture
    def end(self, sink):
        return sink.close
