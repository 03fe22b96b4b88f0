import gc

import pytest

from rigging import rigging


def pytest_collection_finish():
    """What was collected stays: no garbage collection is to walk through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture
def rig():
    """Builds engines; see ``lib/rigging.py``."""
    with rigging() as build:
        yield build
