"""The tests that ``hexkv check --black-box lm://host:port`` runs.

The fixture ``candidate`` comes from the plugin that runs it.
"""

from __future__ import annotations

import pytest

from hexkv.adapters.lmcache.blackbox import Address, BlackBoxContract
from hexkv.contracts.check import Candidate


class TestBlackBox(BlackBoxContract):
    """A server, from outside."""

    @pytest.fixture
    def server(self, candidate: Candidate) -> Address:
        match candidate.subject:
            case (str(host), int(port)):
                return Address(host, port)
        raise TypeError("a black box is a host and a port")
