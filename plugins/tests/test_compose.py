"""The composition root: what a configuration becomes, and what it cannot become."""

from __future__ import annotations

import gc

import pytest

from depth import covering
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.plugins import AdapterSpec
from hexkv.plugins.composition.compose import build
from hexkv.plugins.composition.identity import identify
from hexkv.plugins.configuration.config import Loaded, load
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Origin
from hexkv.plugins.spec import CONTRACT
from hexkv.ports import (
    AdapterUnavailable,
    ConfigError,
    DType,
    KVLayout,
    Miss,
    Namespace,
    StoreBusy,
    StoreUnreachable,
    frame_bytes,
)
from processes import until

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=32)
NAMESPACE = Namespace("toy", LAYOUT)
SIZE = 16
FRAME = frame_bytes(LAYOUT.chunk_bytes(SIZE))
PATIENT = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0}
"""A machine that stands still for a second is not to be taken for a tier that does."""
SMALL = {"chunk": {"size": SIZE}, "pool": {"bytes": "1MiB"}, "deadlines": PATIENT}


class Shelf:
    """A store that cannot list what it holds, and says whether it was closed."""

    closed = False

    def contains(self, keys, deadline):
        return [False] * len(keys)

    def read(self, keys, sink, deadline):
        return [Miss()] * len(keys)

    def write(self, items, deadline):
        raise StoreUnreachable("nobody home")

    def delete(self, keys, deadline):
        return [False] * len(keys)

    def close(self):
        self.closed = True


class Absent(Shelf):
    """A store whose server is not there."""

    def contains(self, keys, deadline):
        raise StoreUnreachable("connection refused")


class PlainSerde:
    """A serde whose name no frame can give."""

    name = ""
    lossless = True
    per_layer = False

    def bound(self, raw_bytes):
        return raw_bytes

    def encode(self, chunk, layout, tokens, into): ...
    def decode(self, payload, layout, tokens, into): ...


@pytest.fixture
def registry():
    found = discover()
    found.shelves = []
    found.contexts = []

    def shelf(settings, context):
        found.contexts.append(context)
        found.shelves.append(Shelf())
        return found.shelves[-1]

    def fail(settings, context):
        raise StoreBusy("somebody else owns it")

    def burst(settings, context):
        raise OSError("no such device")

    found.offer(
        Origin("test", ""),
        [
            AdapterSpec("store", "shelf", "", shelf, contract=CONTRACT),
            AdapterSpec("store", "locked", "", fail, contract=CONTRACT),
            AdapterSpec(
                "store", "absent", "", lambda settings, context: Absent(), contract=CONTRACT
            ),
            AdapterSpec(
                "store",
                "far",
                "",
                shelf,
                requires=("no_such_module",),
                hint="walk",
                contract=CONTRACT,
            ),
            AdapterSpec("store", "bursting", "", burst, contract=CONTRACT),
            # Of these nobody asked for one.
            AdapterSpec("serde", "bursting", "", burst, contract=CONTRACT),
            AdapterSpec(
                "serde", "nameless", "", lambda settings, context: PlainSerde(), contract=CONTRACT
            ),
            AdapterSpec("checksum", "bursting", "", burst, contract=CONTRACT),
        ],
    )
    return found


def configured(**sections):
    return load(None, {}, SMALL | sections)


def test_an_engine_built_from_a_configuration_survives_a_restart(tmp_path, registry):
    settings = configured(
        tiers=[{"store": "memory"}, {"store": "disk", "settings": {"root": tmp_path / "kv"}}]
    )
    tokens = list(range(5 * SIZE))
    device = HeapKV(LAYOUT, len(tokens)).compute(tokens)
    with build(settings, NAMESPACE, registry=registry) as engine:
        assert engine.store(tokens, device).stored_tokens == len(tokens)
        assert [tier.name for tier in engine.health().tiers] == ["memory", "disk"]
    with build(settings, NAMESPACE, registry=registry) as engine:
        empty = HeapKV(LAYOUT, len(tokens))
        assert engine.retrieve(tokens, empty).hit_tokens == len(tokens)
        assert empty.agrees(device, len(tokens))


def test_the_log_tells_of_a_store_that_is_not_there_at_the_start(registry, caplog):
    tiers = [{"store": "memory"}, {"store": "absent"}, {"store": "shelf"}]
    with build(configured(tiers=tiers), NAMESPACE, registry=registry):
        until(lambda: "tier absent: " in caplog.text)
    (line,) = [line for line in caplog.messages if line.startswith("tier ")]
    assert "connection refused" in line


def test_the_default_configuration_builds_something(registry):
    with build(EngineSettings(), NAMESPACE, registry=registry, clock=ManualClock()) as engine:
        assert engine.health().tiers[0].name == "memory"


@pytest.mark.parametrize(
    ("name", "checksum"), covering(["sha256", "blake2b", "blake3"], ["xxh3-128", "crc32"])
)
def test_every_hash_and_checksum_works(name, checksum, registry, tmp_path):
    disk = {"store": "disk", "settings": {"root": tmp_path}}
    settings = configured(hash=name, checksum=checksum, tiers=[disk])
    tokens = list(range(SIZE))
    with build(settings, NAMESPACE, registry=registry) as engine:
        engine.store(tokens, HeapKV(LAYOUT, SIZE).compute(tokens))
        assert engine.retrieve(tokens, HeapKV(LAYOUT, SIZE)).hit_tokens == SIZE


def test_frames_of_another_installed_checksum_are_still_read(registry, tmp_path):
    disk = {"store": "disk", "settings": {"root": tmp_path}}
    tokens = list(range(SIZE))
    with build(configured(checksum="crc32", tiers=[disk]), NAMESPACE, registry=registry) as engine:
        engine.store(tokens, HeapKV(LAYOUT, SIZE).compute(tokens))
    with build(configured(tiers=[disk]), NAMESPACE, registry=registry) as engine:
        assert engine.retrieve(tokens, HeapKV(LAYOUT, SIZE)).hit_tokens == SIZE


def test_an_adapter_learns_its_tiers_name_and_the_clock(registry):
    clock = ManualClock()
    settings = configured(tiers=[{"store": "shelf", "name": "attic"}])
    with build(settings, NAMESPACE, registry=registry, clock=clock):
        assert (registry.contexts[0].name, registry.contexts[0].clock) == ("attic", clock)
    assert registry.shelves[0].closed


@each(
    ("sections", "message"),
    [
        (
            {"pool": {"bytes": FRAME - 1}},
            rf"pool\.bytes \(from code\): {FRAME - 1} bytes do not hold one chunk of 16 tokens",
        ),
        (
            {"tiers": [{"store": "memory", "budget": FRAME - 1}]},
            r"tiers\[0\]\.budget \(from code\): .* do not hold one chunk",
        ),
        (
            {"tiers": [{"store": "memory", "policy": "lur"}]},
            r"tiers\[0\]\.policy \(from code\): no policy adapter 'lur', did you mean 'l[rf]u'\?",
        ),
        (
            {"tiers": [{"store": "dsk"}]},
            r"tiers\[0\]\.store \(from code\): no store adapter 'dsk', did you mean 'disk'\?",
        ),
        (
            {"tiers": [{"store": "memory"}, {"store": "disk", "settings": {"rot": "x"}}]},
            r"tiers\[1\]\.settings\.rot \(from code\): unknown key, did you mean 'root'\?",
        ),
        (
            {"tiers": [{"store": "disk"}]},
            r"tiers\[0\]\.settings\.root \(from code\): missing",
        ),
        ({"pool": {"provider": "nmap"}}, r"pool\.provider .*did you mean 'mmap'"),
        ({"pool": {"settings": {"huge": True}}}, r"pool\.settings\.huge .* known: huge_pages"),
        ({"checksum": "md5"}, r"checksum \(from code\): no checksum adapter 'md5'"),
        (
            {"tiers": [{"store": "shelf"}, {"store": "bursting"}]},
            r"tiers\[1\]\.settings \(from code\): store adapter .* opened: OSError: no such device",
        ),
        (
            {"tiers": [{"store": "memory", "serde": "bursting"}]},
            r"tiers\[0\]\.serde \(from code\): serde adapter 'bursting' of test cannot be opened",
        ),
        (
            {"tiers": [{"store": "memory", "serde": "zstd"}]},
            r"tiers\[0\]\.serde \(from code\): store 'memory' keeps blocks as they are; .* 'heap'",
        ),
        (
            {"tiers": [{"store": "shelf", "budget": "1GiB"}]},
            r"tiers\[0\]\.budget \(from code\): store 'shelf' cannot list what it holds",
        ),
    ],
)
def test_what_cannot_be_built_is_an_error_that_names_the_place(sections, message, registry):
    with pytest.raises(ConfigError, match=message):
        build(configured(**sections), NAMESPACE, registry=registry)
    assert all(shelf.closed for shelf in registry.shelves)


def test_a_mistake_in_the_last_tier_is_found_before_the_first_is_opened(registry):
    tiers = [{"store": "shelf"}, {"store": "disk", "settings": {"roof": 1}}]
    with pytest.raises(ConfigError, match=r"roof"):
        build(configured(tiers=tiers), NAMESPACE, registry=registry)
    assert not registry.shelves


@pytest.mark.parametrize(("store", "error"), [("locked", StoreBusy), ("far", AdapterUnavailable)])
def test_if_a_tier_cannot_be_opened_those_before_it_are_closed(store, error, registry):
    with pytest.raises(error):
        build(
            configured(tiers=[{"store": "shelf"}, {"store": store}]), NAMESPACE, registry=registry
        )
    assert [shelf.closed for shelf in registry.shelves] == [True]
    gc.collect()  # nothing warns of a file or a mapping left open


def test_the_model_section_fills_in_what_the_host_left_open():
    loaded = load(
        None,
        {},
        {"model": {"revision": "abc", "salt": "s", "extra": {"b": "2", "a": "1"}}},
    )
    namespace = identify(Namespace("toy", LAYOUT, extra=(("c", "3"),)), loaded)
    assert namespace == Namespace(
        "toy",
        LAYOUT,
        salt="s",
        extra=(("a", "1"), ("b", "2"), ("c", "3"), ("revision", "abc")),
    )


@each(
    ("model", "message"),
    [
        ({"salt": "b"}, r"model\.salt \(from code\): the engine's host has something else$"),
        ({"extra": {"q": "8"}}, r"model\.extra\.q \(from code\): the engine's host has '4'"),
    ],
)
def test_a_model_section_that_contradicts_the_host_is_an_error(model, message):
    host = Namespace("toy", LAYOUT, revision="digest", salt="a", extra=(("q", "4"),))
    with pytest.raises(ConfigError, match=message):
        identify(host, load(None, {}, {"model": model}))


def test_a_configured_name_replaces_the_hosts_where_a_digest_tells_the_weights():
    loaded = load(None, {}, {"model": {"name": "other"}})
    assert identify(Namespace("toy", LAYOUT, revision="digest"), loaded).model == "other"
    with pytest.raises(
        ConfigError, match=r"model\.name \(from code\): the engine's host has 'toy'"
    ):
        identify(Namespace("toy", LAYOUT), loaded)


@each("model", [{}, {"revision": "r"}, {"revision": "d1"}, {"name": "toy"}])
def test_whatever_a_configuration_says_other_weights_have_other_names(model):
    """But for ``weights``, by which the operator vouches for them."""
    hosts = [Namespace("toy", LAYOUT, revision=digest) for digest in ("d1", "d2")]
    loaded = load(None, {}, {"model": model})
    one, other = (identify(host, loaded) for host in hosts)
    assert one != other
    vouched = load(None, {}, {"model": model | {"weights": "d1"}})
    assert len({identify(host, vouched) for host in hosts}) == 1
    assert identify(hosts[0], vouched) != one, "what is vouched for is no digest"
    assert identify(one, loaded) == one, "nothing is added twice"


def test_revisions_of_equal_weights_have_names_of_their_own():
    host = Namespace("toy", LAYOUT, revision="digest")
    names = [
        identify(host, load(None, {}, {"model": {"revision": said}})) for said in ("", "1", "2")
    ]
    assert len(set(names)) == 3


def test_settings_made_in_code_need_no_file():
    namespace = identify(NAMESPACE, Loaded(EngineSettings()))
    assert namespace == NAMESPACE


def test_a_tier_may_name_several_serdes_and_the_model_s_rate_is_passed_on(tmp_path, registry):
    disk = {"store": "disk", "settings": {"root": tmp_path / "kv"}}
    settings = configured(tiers=[disk | {"serde": ["raw", "zstd"]}], compute_rate=9000.0)
    with build(settings, NAMESPACE, registry=registry) as engine:
        (tier,) = engine._chunks.stack.tiers
        assert tier.rules.serdes == ("raw", "zstd")
        assert engine._chunks.stack.runtime.computing.rate == 9000.0
        assert {"zstd", "zstd-planes/1"} <= set(engine._chunks.stack.runtime.serdes)


@each(
    ("sections", "said"),
    [
        ({"tiers": [{"store": "memory", "serde": ["raw", "zsdt"]}]}, "zstd"),
        ({"tiers": [{"store": "memory", "serde": []}]}, r"tiers\[0\].serde"),
        ({"compute_rate": 0.0}, "compute_rate"),
    ],
)
def test_serdes_and_rates_that_mean_nothing_are_refused(registry, sections, said):
    with (
        pytest.raises(ConfigError, match=said),
        build(configured(**sections), NAMESPACE, registry=registry),
    ):
        pass
