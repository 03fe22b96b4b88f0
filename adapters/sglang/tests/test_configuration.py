"""Everything that can be configured is read strictly, from one place or several."""

import pytest

from hexkv.adapters.sglang.configuration import RawConfig
from hexkv.contracts.kit.cases import each
from hexkv.plugins.configuration import brief
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import ConfigError

SGLANGS = {
    "backend_name": "hexkv",
    "module_path": "hexkv.adapters.sglang.hicache",
    "class_name": "HexKVStorage",
    "interface_v1": 1,
    "prefetch_threshold": 64,
}


@pytest.fixture(scope="module")
def registry():
    return discover()


@pytest.fixture
def read(registry):
    def said(extra, environ=None):
        return RawConfig(SGLANGS | extra, registry, environ or {})

    return said


def test_a_chunk_is_a_page_and_named_by_tokens_alone(read):
    chunk = read({}).with_pages(32).engine.settings.chunk
    assert (chunk.size, chunk.seeded, chunk.tail) == (32, False, 0)


def test_a_file_the_environment_and_sglangs_own_configuration_come_together(read, tmp_path):
    file = tmp_path / "hexkv.yaml"
    file.write_text("pool: {bytes: 64MiB}\nmodel: {name: one, revision: a}\n")
    environ = {"HEXKV_MODEL__REVISION": "b", "HEXKV_MODEL__SALT": "from-the-environment"}
    given = {"config": str(file), "model": {"salt": "strongest"}, "namespace": "canonical"}
    configured = read(given, environ).with_pages(16)
    settings = configured.engine.settings
    assert configured.chosen.namespace == "canonical"
    assert (settings.model.name, settings.model.revision) == ("one", "b")
    assert settings.model.salt.get_secret_value() == "strongest"
    assert settings.pool.bytes == 64 << 20


@each(
    ("extra", "message"),
    [
        ({"namespaces": "own"}, "namespaces"),
        ({"nmaespace": "own"}, r"nmaespace .*did you mean 'namespace'\? known: .*hold_bytes"),
        ({"namespace": "shared"}, "namespace"),
        ({"tiers": [{"store": "dsik"}], "poool": 1}, r"poool \(from SGLang's extra_config\)"),
        ({"read": "yes"}, r"read \(from SGLang's extra_config\)"),
        ({"config": 7}, "config"),
        ({"hold_bytes": 0}, "hold_bytes"),
        ({"namespace": "canonical", "layout": "opaque"}, "opaque"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(read, extra, message):
    with pytest.raises(ConfigError, match=message):
        read(extra)


@each("chunk", [{"size": 256}, {"seeded": True}, {"tail": 32}])
def test_other_chunks_than_sglangs_pages_are_refused(read, chunk):
    [name] = chunk
    with pytest.raises(ConfigError, match=f"chunk.{name} .*page"):
        read({"chunk": chunk}).with_pages(64)


def test_the_same_chunks_said_aloud_are_accepted(read):
    said = read({"chunk": {"size": 64, "seeded": False}})
    assert said.with_pages(64).engine.settings.chunk.size == 64


def test_two_keys_are_a_whole_configuration_and_none_takes_a_quarter_of_the_memory(
    read, monkeypatch
):
    got = read({"hexkv.gigabytes": 6, "hexkv.disk": "/a/disk"}).with_pages(64, 2).engine
    assert got.settings.pool.bytes == 3 * 10**9
    assert [tier.store for tier in got.settings.tiers] == ["memory", "disk"]
    monkeypatch.setattr(brief, "available_bytes", lambda: 64 << 30)
    assert read({}).with_pages(64, 2).engine.settings.pool.bytes == 8 << 30
    with pytest.raises(ConfigError, match="given twice"):
        read({"hexkv.gigabytes": 6, "gigabytes": 6})
