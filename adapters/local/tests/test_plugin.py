import json
from dataclasses import asdict

import pytest

from hexkv.adapters.local.plugin import DiskSettings, hexkv_adapters
from hexkv.contracts.doubles import ManualClock, chunk_key, deadline
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Failed, Item, StoreFull


@pytest.fixture
def adapters():
    return {(spec.kind, spec.name): spec for spec in hexkv_adapters()}


def test_it_offers_compressed_memory_disk_and_shared_files(adapters):
    assert set(adapters) == {("store", name) for name in ("heap", "disk", "fs")}
    assert not any(spec.requires for spec in adapters.values())


def test_the_tier_budget_is_the_disk_store_s_capacity(adapters, tmp_path):
    context = OpenContext(ManualClock(), "disk", budget=4)
    store = adapters["store", "disk"].open(DiskSettings(str(tmp_path)), context)
    (outcome,) = store.write([Item(chunk_key("a"), memoryview(b"12345"))], deadline())
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreFull)
    store.close()


def test_settings_can_be_written_as_json():
    assert json.loads(json.dumps(asdict(DiskSettings("/cache"))))["root"] == "/cache"
