import atexit
import gc
from contextlib import closing

import pytest

from media.bad_sectors import BadSectors
from rigging import rigging


def pytest_addoption(parser):
    parser.addoption("--wheels", help="a folder of all wheels, in place of new ones")


def pytest_collection():
    """What is collected stays: no garbage collection is to walk through it again and again."""
    gc.disable()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish():
    """pytest looks through what tests left; the interpreter, at its end, through everything."""
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.fixture
def one_by_one(monkeypatch):
    """Layers go one by one, though those of the tests are small enough to go together."""
    monkeypatch.setattr("hexkv.core.requests.layers.groups._LEAST_BYTES", 1)


@pytest.fixture
def bad_sectors(monkeypatch):
    """Has reads of chunks' files fail; see ``lib/media/bad_sectors.py``."""
    with closing(BadSectors(monkeypatch)) as sectors:
        yield sectors


@pytest.fixture
def rig():
    """Builds engines; see ``lib/rigging.py``."""
    with rigging() as build:
        yield build
