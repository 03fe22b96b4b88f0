"""The classes that ``hexkv check`` runs: every contract, with fixtures from a candidate.

The fixture ``candidate`` comes from the plugin that runs them.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from hexkv.contracts.blackbox import Address, BlackBoxContract
from hexkv.contracts.check import Candidate
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.policy import PolicyContract
from hexkv.contracts.promise import not_offered
from hexkv.contracts.serde import Close, SerdeContract
from hexkv.contracts.store import RawAccess, Reopen, StoreContract
from hexkv.ports import ChunkStore, DType, Policy, Serde


class TestPlugin(PluginContract):
    """The plugin that offers the candidate."""

    @pytest.fixture(autouse=True)
    def _named(self, entry_point_name: str) -> None:
        type(self).entry_point = entry_point_name


class TestStore(StoreContract):
    """A store."""

    @pytest.fixture
    def store(self, candidate: Candidate) -> ChunkStore:
        assert isinstance(candidate.subject, ChunkStore)
        return candidate.subject

    @pytest.fixture
    def raw(self, candidate: Candidate) -> RawAccess:
        return candidate.raw or not_offered("raw")

    @pytest.fixture
    def reopen(self, candidate: Candidate) -> Reopen:
        return candidate.reopen

    @pytest.fixture
    def service(self, candidate: Candidate) -> object:
        return candidate.service or not_offered("service")

    @pytest.fixture
    def sibling(self, candidate: Candidate) -> ChunkStore:
        return candidate.sibling or not_offered("sibling")

    @pytest.fixture
    def limit(self, candidate: Candidate) -> object:
        return candidate.limit or not_offered("limit")


class TestSerde(SerdeContract):
    """A serde."""

    @pytest.fixture
    def serde(self, candidate: Candidate) -> Serde:
        assert isinstance(candidate.subject, Serde)
        return candidate.subject

    @pytest.fixture
    def close(self, candidate: Candidate) -> Close:
        return candidate.near or not_offered("near")

    @pytest.fixture
    def dtypes(self, candidate: Candidate) -> Collection[DType]:
        return candidate.dtypes


class TestPolicy(PolicyContract):
    """A policy."""

    @pytest.fixture
    def policy(self, candidate: Candidate) -> Policy:
        assert isinstance(candidate.subject, Policy)
        return candidate.subject


class TestBlackBox(BlackBoxContract):
    """A server, from outside."""

    @pytest.fixture
    def server(self, candidate: Candidate) -> Address:
        assert isinstance(candidate.subject, Address)
        return candidate.subject
