"""Administration by key: its contract in this process, and what only the core can tell."""

from functools import partial
from threading import Thread

import pytest

from configured import CHUNK, FRAME, NAMESPACE, built
from dict_store import DictStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.tiers.tier import TierPlan
from hexkv.operate.adjusting import Adjusting
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.composition.tiers import TierOpener
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import PAGE, InvalidRequest, Selection
from operating.administration import ALL, CHUNKS, SALT, TENANTS, AdministrationContract, Managed
from rigging import LAYOUT, rigging, tier

RED = Selection(tenant="red")


def managed_by(engine):
    return Managed(engine, engine.admin, CHUNK, engine.close)


def opener(loaded, stack):
    return TierOpener(loaded, discover(), SystemClock(), stack.pool, FRAME)


class TestInThisProcess(AdministrationContract):
    @pytest.fixture
    def managed(self, tmp_path):
        with built(tmp_path / "disk", tenants=TENANTS) as engine:
            yield managed_by(engine)


def frames_in(path):
    return [f for f in path.rglob("[!.]*") if f.is_file() and f.stat().st_size > PAGE]


def test_namespaces_of_an_earlier_life_are_their_tenants(tmp_path):
    model = {"lora": "an earlier one"}
    with built(tmp_path, model=model, tenants=TENANTS) as engine:
        managed_by(engine).store(0, SALT)
        managed_by(engine).store(1)
    with built(tmp_path, tenants=TENANTS) as engine:
        managed = managed_by(engine)
        done = managed.admin.clear(RED)
        assert (done.done, done.complete) == (CHUNKS, True)
        assert managed.counts() == {"memory": 0, "disk": CHUNKS}


def test_chunks_whose_owner_cannot_be_read_are_reported_as_left(tmp_path):
    with built(tmp_path, model={"lora": "an earlier one"}, tenants=TENANTS) as engine:
        managed_by(engine).store(0, SALT)
    for frame in frames_in(tmp_path):
        frame.write_bytes(bytes(frame.stat().st_size))
    with built(tmp_path, tenants=TENANTS) as engine:
        managed = managed_by(engine)
        managed.store(1, SALT)
        done = managed.admin.clear(RED, ["disk"])
        assert done.done == CHUNKS
        assert not done.complete
        assert "cannot be read" in done.left["disk"]


def test_the_oldest_part_is_taken_from_each_tenant_s_share(tmp_path):
    quotas = {"disk": 2 * CHUNKS * FRAME}
    tenants = [{**TENANTS[0], "quotas": quotas}]
    with built(tmp_path, budget=4 * CHUNKS * FRAME, tenants=tenants) as engine:
        managed = managed_by(engine)
        managed.store(0, SALT)
        managed.store(1)
        done = managed.admin.clear(Selection(everything=True, oldest=0.5), ["disk"])
        assert done.done == CHUNKS
        left = {it.tenant: it.chunks["disk"] for it in managed.admin.namespaces()}
        assert left == {"red": CHUNKS // 2, "": CHUNKS // 2}


def test_a_file_read_anew_changes_what_differs_or_nothing(tmp_path, caplog):
    tenants = [{**TENANTS[0], "quotas": {"disk": CHUNKS * FRAME}}]
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "tenants": tenants}
    disk = {"store": "disk", "settings": {"root": str(tmp_path / "disk")}}
    more = {"store": "heap", "name": "more"}

    def read(quota, *tiers, **sections):
        red = [{**TENANTS[0], "quotas": {"disk": quota}}]
        return load(None, {}, wanted | {"tenants": red, "tiers": tiers} | sections)

    first = read(CHUNKS * FRAME, {"store": "memory"}, {**disk, "budget": 64 * FRAME})
    with build(first, NAMESPACE) as engine:
        managed = managed_by(engine)
        managed.store()
        managed.store(0, SALT)
        stack = engine._chunks.stack
        admin = engine.admin
        reread = Adjusting(admin, admin._calls, stack, opener(first, stack)).reread
        smaller = {**disk, "budget": 32 * FRAME, "retries": 3, "write": "none"}
        reread(lambda: read(FRAME, {"store": "memory"}, smaller, more, compute_rate=5.0))
        assert managed.admin.flush(60.0)
        _, disk_now, heap = managed.admin.tiers()
        assert heap.health.name == "more"
        assert (disk_now.writes, disk_now.health.budget_bytes) == ("none", 32 * FRAME)
        assert disk_now.health.tenants == {"red": FRAME}
        assert stack.tiers[1].rules.retries == 3
        assert stack.runtime.computing.rate == 5.0
        before = [state[1:] for state in managed.admin.tiers()]
        for wrong, names in (
            (lambda: read(FRAME, smaller, compute_rate=6.0, hash="blake2b"), ["hash"]),
            (lambda: read(99 * FRAME, smaller), ["'disk': the quotas"]),
            (lambda: read(FRAME, {**smaller, "serde": "zstd", "workers": 9}), ["serde", "workers"]),
            (lambda: read(FRAME, more, smaller), ["restart: tiers (from code)"]),
            (lambda: read(FRAME, smaller, log={"level": "debag"}), ["log.level"]),
            (lambda: read(FRAME, {**disk, "setings": {}}), ["setings"]),
        ):
            caplog.clear()
            reread(wrong)
            (line,) = caplog.messages
            assert line.startswith("admin: SIGHUP: refused, the former configuration is kept: ")
            assert "\n" not in line
            assert all(name in line for name in names), line
        assert [state[1:] for state in managed.admin.tiers()] == before
        caplog.clear()
        reread(lambda: read(FRAME, {**smaller, "budget": 48 * FRAME}, more, compute_rate=5.0))
        done = "tiers.disk.budget: 576KiB, tier memory removed"
        assert caplog.messages == [f"admin: SIGHUP: the configuration is read anew: {done}"]
        assert [*managed.counts()] == ["disk", "more"]

        def read_slowly():
            """Read a file, which others change while that takes its time."""
            now = partial(read, FRAME, {**smaller, "budget": 40 * FRAME}, more)
            others = Thread(target=reread, args=[partial(now, compute_rate=7.0)], daemon=True)
            others.start()
            others.join(60.0)
            assert not others.is_alive()
            return now(compute_rate=6.0)

        reread(read_slowly)
        assert stack.runtime.computing.rate == 7.0
    caplog.clear()
    reread(lambda: read(FRAME, {**smaller, "budget": 48 * FRAME}, more))
    (line,) = caplog.messages
    assert line.endswith("refused, the former configuration is kept: the engine was closed")


def test_memory_is_no_other_place_for_what_a_drained_disk_has(tmp_path):
    with built(tmp_path / "disk") as engine:
        managed = managed_by(engine)
        managed.store()
        managed.admin.rules("disk", writes="none")
        with pytest.raises(InvalidRequest, match=r"'tape'|no tier"):
            managed.admin.drain("disk", "tape")
        new = {"store": "disk", "name": "new", "settings": {"root": str(tmp_path / "new")}}
        managed.admin.attach(new)
        assert managed.admin.drain("disk").done == CHUNKS
        assert managed.counts() == {"memory": CHUNKS, "disk": CHUNKS, "new": CHUNKS}
        managed.admin.rules("memory", writes="none")
        with pytest.raises(InvalidRequest, match="is written to"):
            managed.admin.drain("new")
        assert managed.admin.tiers()[2].writes == "all"


def test_a_tier_that_only_its_store_knows_is_cleared_by_key_and_refused_otherwise():
    medium = {}
    with rigging() as build:
        plans = [tier("memory", MemoryStore(SystemClock())), TierPlan("far", DictStore(medium))]
        engine = build(plans, clock=SystemClock()).engine
        admin = engine.admin
        tokens = list(range(64))
        engine.store(tokens, HeapKV(LAYOUT, 64).compute(tokens))
        keys = tuple(engine.chunk_keys(tokens))
        assert len(medium) == len(keys) == 4
        for verb in (
            lambda: admin.copy(ALL, "far", "memory"),
            lambda: admin.clear(Selection(everything=True, oldest=0.5), ["far"]),
            lambda: admin.drain("far"),
        ):
            with pytest.raises(InvalidRequest, match="only the store"):
                verb()
        assert admin.tiers()[1].writes == "all"
        assert admin.move(Selection(keys=keys[:2]), "far", "memory").done == 2
        assert len(medium) == 2
        admin.clear(Selection(keys=keys[2:]))
        assert medium == {}
        assert "cannot list" in admin.clear(ALL).left["far"]
