"""What acme-before promises: see ``hexkv check --list``."""

import pytest
from acme_before.checksum import ACME_CHECKSUM
from acme_before.memory import AcmeMemory
from acme_before.policy import AcmePolicy
from acme_before.serde import AcmeSerde
from acme_before.store import AcmeStore

from hexkv.contracts.checksum import ChecksumContract
from hexkv.contracts.memory import MemoryContract
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.policy import PolicyContract
from hexkv.contracts.serde import SerdeContract
from hexkv.contracts.store import StoreContract


class Raw:
    """The back door: the medium, reached without any method of the store."""

    def __init__(self, medium):
        self.medium = medium

    def get(self, key):
        return self.medium[key][0] if key in self.medium else None

    def put(self, key, frame):
        self.medium[key] = frame, 0.0

    def keys(self):
        return set(self.medium)


class TestPlugin(PluginContract):
    entry_point = "acme-before"


class TestStore(StoreContract):
    @pytest.fixture
    def medium(self):
        return {}

    @pytest.fixture
    def store(self, medium):
        store = AcmeStore(medium)
        yield store
        store.close()

    @pytest.fixture
    def raw(self, medium):
        return Raw(medium)

    @pytest.fixture
    def reopen(self, store, medium):
        def again():
            store.close()
            return AcmeStore(medium)

        return again


class TestMemory(MemoryContract):
    @pytest.fixture
    def provider(self):
        return AcmeMemory()


class TestSerde(SerdeContract):
    @pytest.fixture
    def serde(self):
        return AcmeSerde()


class TestPolicy(PolicyContract):
    @pytest.fixture
    def policy(self):
        return AcmePolicy()


class TestChecksum(ChecksumContract):
    @pytest.fixture
    def checksum(self):
        return ACME_CHECKSUM
