import pytest

from rigging import rigging


@pytest.fixture
def rig():
    """Builds engines; see ``lib/rigging.py``."""
    with rigging() as build:
        yield build
