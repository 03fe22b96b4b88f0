"""Fixtures of a contract that a candidate gives by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hexkv.contracts.check import Candidate
from hexkv.contracts.kit.promise import not_offered


def subject(name: str) -> Any:
    """The fixture *name*: the candidate's subject."""

    @pytest.fixture(name=name)
    def fixture(self: object, candidate: Candidate) -> object:
        del self
        return candidate.subject

    return fixture


def given(name: str, otherwise: Callable[[], object] | None = None) -> Any:
    """The fixture *name* of the candidate; without it *otherwise*, or not checked."""

    @pytest.fixture(name=name)
    def fixture(self: object, candidate: Candidate) -> object:
        del self
        if name in candidate.fixtures:
            return candidate.fixtures[name]
        return not_offered(name) if otherwise is None else otherwise()

    return fixture
