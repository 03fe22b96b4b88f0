"""The reference double keeps the contract of directories."""

from contextlib import contextmanager

import pytest

from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.directory.double import DictDirectory
from hexkv.contracts.doubles import ManualClock


@pytest.mark.thorough
class TestDictDirectory(DirectoryContract):
    @pytest.fixture
    def clock(self):
        return ManualClock()

    @pytest.fixture
    def whole(self, clock):
        return DictDirectory(clock)

    @pytest.fixture
    def seen(self, whole):
        return lambda name: whole

    @pytest.fixture
    def elapse(self, clock):
        return clock.advance

    @pytest.fixture
    def forget(self, whole):
        return whole.forget

    @pytest.fixture
    def stalled(self, whole):
        @contextmanager
        def stalled():
            whole.answers = False
            yield
            whole.answers = True

        return stalled
