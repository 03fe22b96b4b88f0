"""The tests that ``hexkv check --black-box node:///path`` runs.

The fixture ``candidate`` comes from the plugin that runs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hexkv.adapters.node.blackbox import NodeSocketContract
from hexkv.contracts.check import Candidate


class TestBlackBox(NodeSocketContract):
    """A node, from outside."""

    @pytest.fixture
    def node(self, candidate: Candidate) -> Path:
        match candidate.subject:
            case str(path):
                return Path(path)
        raise TypeError("a node is a path")
