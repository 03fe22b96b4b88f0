"""The connector's settings and the engine's come from one place, and mistakes are named."""

import pytest

from hexkv.adapters.vllm.configuration.configuration import configure, configure_offloading, verify
from hexkv.adapters.vllm.plugin import hexkv_adapters
from hexkv.contracts.kit.cases import each
from hexkv.plugins.configuration import brief
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import ConfigError


@pytest.fixture(scope="module")
def registry():
    return discover()


def chosen(registry, extra, environ=None, block=16):
    return configure(extra, registry, block_tokens=block, environ=environ or {})


def test_both_are_configured_side_by_side(registry):
    got = chosen(registry, {"loading": "async", "pool": {"bytes": "2GiB"}})
    assert got.connector.loading == "async"
    assert got.engine.settings.pool.bytes == 2 << 30


def test_a_file_is_weaker_than_the_environment_and_that_than_vllms_flag(registry, tmp_path):
    file = tmp_path / "hexkv.yaml"
    file.write_text("pool: {bytes: 1MiB, poison: true}\nchunk: {size: 32}\n")
    environ = {"HEXKV_POOL__BYTES": "2MiB", "HEXKV_CHUNK__SIZE": "64"}
    got = chosen(registry, {"config": str(file), "chunk": {"size": 128}}, environ).engine.settings
    assert (got.pool.poison, got.pool.bytes, got.chunk.size) == (True, 2 << 20, 128)
    got = chosen(registry, {}, environ | {"HEXKV_CONFIG": str(file)}).engine.settings
    assert (got.pool.poison, got.chunk.size) == (True, 64)


@each(("block", "chunk", "tail"), [(16, 256, 16), (128, 256, 128), (48, 288, 48), (300, 300, 0)])
def test_chunks_and_their_tails_are_whole_blocks(registry, block, chunk, tail):
    got = chosen(registry, {}, block=block).engine.settings.chunk
    assert (got.size, got.tail) == (chunk, tail)


def test_what_was_asked_for_of_chunks_is_not_changed(registry):
    for asked, size in ({"size": 100}, 100), ({"tail": 8}, 8):
        with pytest.raises(ConfigError, match=f"{size} tokens are not whole blocks of 16"):
            chosen(registry, {"chunk": asked})
    for asked, tail in ({"tail": 0}, 0), ({"tail": 64}, 64), ({"seeded": False}, 0):
        assert chosen(registry, {"chunk": asked}).engine.settings.chunk.tail == tail


def test_a_step_does_not_wait_as_long_as_an_engine_may_unless_it_is_told_to(registry):
    assert chosen(registry, {}).engine.settings.deadlines.store == 1.0
    told = chosen(registry, {"deadlines": {"store": 9.0}}).engine.settings.deadlines
    assert (told.store, told.retrieve) == (9.0, 5.0)
    assert (
        chosen(registry, {}, {"HEXKV_DEADLINES__STORE": "7"}).engine.settings.deadlines.store == 7
    )


@each(
    ("stores", "extra", "loading", "waits"),
    [
        (["memory", "disk"], {}, "sync", False),
        (["memory", "fs"], {}, "async", True),
        (["redis"], {}, "async", True),
        (["redis"], {"loading": "layerwise", "async_lookup": False}, "layerwise", False),
        (["memory"], {"loading": "async", "async_lookup": True}, "async", True),
    ],
)
def test_nobody_is_held_up_by_a_tier_elsewhere_unless_that_is_asked_for(
    registry, stores, extra, loading, waits
):
    got = chosen(registry, extra | {"tiers": [{"store": name} for name in stores]}).connector
    assert (got.loading, got.async_lookup) == (loading, waits)


@each(
    ("extra", "says"),
    [
        ({"tierz": []}, r"tierz \(from kv_connector_extra_config\)"),
        ({"hold_secnds": 1}, r"hold_secnds .*did you mean 'hold_seconds'\? known: .*hold_seconds"),
        ({"confg": "x"}, r"confg .*did you mean 'config'"),
        ({"shards": {"haeds": 2}}, r"shards\.haeds .*did you mean 'heads'\? known: heads, layers$"),
        ({"loading": "lazy"}, r"loading \(from kv_connector_extra_config\)"),
        ({"loaders": 0}, r"\(from kv_connector_extra_config\): must be 1 to 64"),
        ({"lookup_seconds": -1.0}, "lookup_seconds"),
        (
            {"tiers": [{"store": "memory"}], "reset_clears": ["disc"]},
            r"reset_clears \(from kv_connector_extra_config\): there is no tier 'disc', only",
        ),
        ({"config": 5}, r"config \(from kv_connector_extra_config\): the path of a file"),
        ({"config": "/does/not/exist.yaml"}, "/does/not/exist.yaml: cannot be read"),
        ({"pool": {"bytes": object()}}, r"pool\.bytes \(from kv_connector_extra_config\)"),
    ],
)
def test_mistakes_are_named_and_where_they_stand(registry, extra, says):
    with pytest.raises(ConfigError, match=says):
        chosen(registry, extra)
    with pytest.raises(ConfigError, match=r"pool\.bytez \(from env HEXKV_POOL__BYTEZ\)"):
        chosen(registry, {}, {"HEXKV_POOL__BYTEZ": "1"})


def test_behind_vllms_offloading_a_misspelt_key_is_named(registry):
    with pytest.raises(ConfigError, match=r"hekxv \(from kv_connector_extra_config\).*'hexkv'"):
        configure_offloading({"block_size": 64, "hekxv": {}}, registry)


def test_the_adapter_is_vllms_to_build():
    (spec,) = hexkv_adapters()
    with pytest.raises(ConfigError, match="vLLM builds"):
        spec.open(spec.settings(), None)


@each(
    ("extra", "said"),
    [
        ({"tires": []}, "tires.*tiers"),
        ({"loading": "soon"}, "loading.*layerwise"),
        ({"tiers": [{"store": "dsik"}]}, "dsik.*disk"),
        ({"tiers": [{"store": "disk", "settings": {"rot": "x"}}]}, "rot.*root"),
    ],
)
def test_what_cannot_be_built_is_known_before_anything_is_opened(registry, extra, said):
    with pytest.raises(ConfigError, match=said):
        verify(extra, registry)


def test_what_can_be_built_depends_on_no_block(registry, tmp_path):
    root = tmp_path / "never made"
    verify({"tiers": [{"store": "disk", "settings": {"root": str(root)}}]}, registry)
    assert not root.exists()


@pytest.mark.parametrize("budget", [1 << 20, "all"], ids=repr)
def test_behind_vllms_offloading_nothing_is_loaded_within_a_step(registry, budget):
    with pytest.raises(ConfigError, match="leave out sync_load_budget_bytes"):
        configure_offloading({"sync_load_budget_bytes": budget}, registry)
    for none in ({}, {"sync_load_budget_bytes": 0}, {"sync_load_budget_bytes": "0"}):
        assert configure_offloading(none, registry)


def test_the_connectors_name_alone_takes_a_quarter_of_the_free_memory(registry, monkeypatch):
    monkeypatch.setattr(brief, "available_bytes", lambda: 64 << 30)
    got = configure({}, registry, block_tokens=16, environ={}, ranks=2).engine
    assert got.settings.pool.bytes == 8 << 30
    assert [tier.store for tier in got.settings.tiers] == ["memory"]
    why = "a quarter of 64 GiB of free memory for each of 2 processes"
    assert got.origin(("pool", "bytes")) == why
    given = configure({"pool": {"bytes": "1MiB"}}, registry, block_tokens=16, environ={}, ranks=2)
    assert given.engine.settings.pool.bytes == 1 << 20
    assert verify({"node": "/a/socket"}, registry).engine.settings.node


@each(
    "extra",
    [
        {"hexkv.gigabytes": 64, "hexkv.disk": "/a/disk", "hexkv.loading": "async"},
        {"hexkv": {"gigabytes": 64, "disk": "/a/disk"}, "loading": "async"},
        {"hexkv": {"gigabytes": 64}, "hexkv.disk": "/a/disk", "hexkv.loading": "async"},
    ],
)
def test_two_keys_are_a_whole_configuration(registry, extra):
    got = configure(extra, registry, block_tokens=16, environ={}, ranks=4)
    assert got.engine.settings.pool.bytes == 16 * 10**9
    memory, disk = got.engine.settings.tiers
    assert (memory.store, disk.store, disk.settings) == ("memory", "disk", {"root": "/a/disk"})
    assert disk.budget > 0
    assert got.connector.loading == "async"


@each(
    ("extra", "says"),
    [
        ({"hexkv": 5}, r"hexkv \(from kv_connector_extra_config\): is a value, not a section"),
        ({"hexkv.gigabytes": 1, "gigabytes": 2}, r"hexkv\.gigabytes \(from .*given twice"),
        ({"hexkv.pool.bytes": 1, "hexkv": {"pool": 1}}, "pool is a value, not a section"),
        ({"hexkv.gigabytez": 1}, r"gigabytez \(from .*did you mean 'gigabytes'"),
        ({"hexkv.gigabytes": 1, "pool": {"bytes": "1GiB"}}, r"pool\.bytes is given, too"),
        ({"hexkv.disk": "/d", "tiers": [{"store": "memory"}]}, "tiers are given, too"),
    ],
)
def test_mistakes_in_the_brief_form_are_named(registry, extra, says):
    with pytest.raises(ConfigError, match=says):
        chosen(registry, extra)
