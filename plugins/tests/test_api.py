"""The front door: one import, from a configuration to a cache."""

import re
import subprocess
import sys

import pytest

import hexkv.api
from hexkv.api import ConfigError, DType, HexKVError, KVLayout, Namespace, PrefixCache, open_cache
from hexkv.contracts.doubles import ManualClock, RecordingEvents, RecordingTelemetry
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.ports import CounterName

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)
SMALL = {"pool": {"bytes": "1MiB"}, "chunk": {"size": 16}}
PROMPT = list(range(40))


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch):
    monkeypatch.delenv("HEXKV_CONFIG", raising=False)


def round_trip(cache):
    stored = cache.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)).stored_tokens
    return stored, cache.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT))).hit_tokens


def test_a_cache_is_opened_from_a_mapping():
    with open_cache(SMALL, model="toy", layout=LAYOUT) as cache:
        assert isinstance(cache, PrefixCache)
        assert cache.namespace == Namespace("toy", LAYOUT)
        assert round_trip(cache) == (32, 32)
    assert cache.health().state == "closed"


@each("named_by", ["argument", "text", "environment"])
def test_a_cache_is_opened_from_a_file(tmp_path, monkeypatch, named_by):
    file = tmp_path / "hexkv.yaml"
    file.write_text("pool: {bytes: 1MiB}\nchunk: {size: 16}\ntiers: [{store: memory, name: ram}]\n")
    monkeypatch.setenv("HEXKV_CONFIG", str(file) if named_by == "environment" else "absent.yaml")
    config = {"argument": file, "text": str(file), "environment": None}[named_by]
    with open_cache(config, model="toy", layout=LAYOUT) as cache:
        assert [tier.name for tier in cache.health().tiers] == ["ram"]
        assert round_trip(cache) == (32, 32)


def test_a_mapping_is_laid_over_the_file_that_the_environment_names(tmp_path, monkeypatch):
    file = tmp_path / "hexkv.yaml"
    file.write_text("pool: {bytes: 64MiB}\ntiers: [{store: memory, name: ram}]\n")
    monkeypatch.setenv("HEXKV_CONFIG", str(file))
    with open_cache(SMALL, model="toy", layout=LAYOUT) as cache:
        health = cache.health()
    assert [tier.name for tier in health.tiers] == ["ram"]
    assert health.pool_bytes <= 1 << 20


def test_a_namespace_is_taken_as_it_is():
    namespace = Namespace("toy", LAYOUT, revision="3", salt="of a tenant")
    with open_cache(SMALL, namespace=namespace) as cache:
        assert cache.namespace == namespace


def test_the_configuration_may_name_the_model():
    with open_cache(SMALL | {"model": {"name": "toy"}}, layout=LAYOUT) as cache:
        assert cache.namespace.model == "toy"


NAMED = {"namespace": Namespace("toy", LAYOUT)}
WRONG = [
    (SMALL, {}, "no layout: give namespace="),
    (SMALL, {"model": "toy"}, "no layout: give namespace="),
    (SMALL, {"layout": LAYOUT}, "no model: give model=, or set model.name"),
    (SMALL, NAMED | {"model": "toy"}, "two identities: give namespace=, or"),
    (SMALL, NAMED | {"layout": LAYOUT}, "two identities: give namespace=, or"),
    (7, NAMED, "config is a int: give the path of a YAML file or a mapping"),
    ({"poool": {}}, NAMED, "did you mean 'pool'"),
    ("absent.yaml", NAMED, "absent.yaml: cannot be read"),
]


@each(("config", "identity", "message"), WRONG)
def test_what_cannot_be_opened_says_what_to_do(config, identity, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        open_cache(config, **identity)


def test_telemetry_events_and_the_clock_are_those_that_were_given():
    telemetry, events, clock = RecordingTelemetry(), RecordingEvents(), ManualClock()
    ports = {"telemetry": telemetry, "events": [events], "clock": clock}
    with open_cache(SMALL, model="toy", layout=LAYOUT, **ports) as cache:
        round_trip(cache)
        assert cache.telemetry is telemetry
        assert [key for event in events.events for key in event.keys] == cache.chunk_keys(PROMPT)
    assert telemetry.total(CounterName.HITS) == 2
    assert {seconds for _, _, seconds in telemetry.durations} == {0.0}, "time stood still"


def test_the_list_of_names_is_the_one_that_is_documented():
    documented = set(re.findall(r":(?:class|func|data):`(\w+)`", hexkv.api.__doc__))
    public = set(hexkv.api.__all__)
    errors = {
        name
        for name in public
        if isinstance(found := getattr(hexkv.api, name), type) and issubclass(found, HexKVError)
    }
    assert documented == public - errors | {"HexKVError"}


def test_importing_the_front_door_is_cheap():
    code = (
        "import sys, threading; before = set(sys.modules); import hexkv.api;"
        "found = {m.partition('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(found - sys.stdlib_module_names), threading.active_count())"
    )
    said = subprocess.check_output([sys.executable, "-I", "-c", code], text=True)
    assert said.strip() == "['hexkv'] 1"
