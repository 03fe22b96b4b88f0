"""An engine, built from a configuration, that has Mooncake as a tier."""

import secrets
from contextlib import contextmanager

import pytest

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, PATIENT, PROMPT, computed, hit
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.waiting import promptly
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from processes import PATIENCE, until
from servers.mooncake_servers import Master, Node


@contextmanager
def opened(master, prefix, **deadlines):
    quick = {"failures": 2, "pause": 0.05, "longest_pause": 0.2}
    settings = {"address": master.address, "prefix": prefix, "connect_timeout": PATIENCE}
    wanted = {
        "chunk": {"size": CHUNK},
        "pool": {"bytes": 32 * FRAME},
        "tiers": [{"store": "mooncake", "settings": settings, "breaker": quick, "retries": 0}],
        "deadlines": PATIENT | deadlines,
    }
    with build(load(None, {}, wanted), NAMESPACE) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared():
    """The prefix of an engine that several tests use: Mooncake's client takes a second to close."""
    return f"test-{secrets.token_hex(8)}:"


@pytest.fixture(scope="module")
def engine(master, shared):
    with opened(master, shared) as engine:
        yield engine


def stores_and_loads(engine):
    engine.store(PROMPT, computed())
    engine.flush()
    return hit(engine) == len(PROMPT)


def test_chunks_move_between_the_pool_and_a_node_in_place(engine):
    until(lambda: stores_and_loads(engine))
    (tier,) = engine._chunks.stack.tiers
    mover = tier.store._mover
    assert mover.address(engine._chunks.stack.pool._ledger.memory[:FRAME]) is not None
    assert mover._staging._idle == []


def test_another_engine_finds_what_one_has_stored(engine, master, shared):
    with opened(master, shared) as other:
        until(lambda: stores_and_loads(engine))
        until(lambda: hit(other) == len(PROMPT))


@pytest.mark.thorough
def test_the_engine_outlives_the_master_and_the_tier_comes_back(secluded, prefix, tmp_path, caplog):
    with Master(tmp_path, "--client_ttl=6") as master, Node(tmp_path, master):
        limits = {"lookup": 2.0, "retrieve": 3.0, "store": 5.0, "close": 10.0}
        with opened(master, prefix, **limits) as engine:
            until(lambda: stores_and_loads(engine))
            master.kill()
            for _ in range(4):
                assert promptly(lambda: hit(engine), 6.0) == 0
            master.start()
            until(lambda: stores_and_loads(engine))
        assert engine.health().leases == {}
    lines = [line for line in caplog.messages if line.startswith("tier mooncake: ")]
    assert "does not answer" in lines[0]
    assert len(lines) <= 5, "one a minute, whichever calls notice it"


def test_layers_are_read_as_ranges_into_the_pool(engine, monkeypatch):
    until(lambda: stores_and_loads(engine))
    (tier,) = engine._chunks.stack.tiers
    target, sizes = HeapKV(LAYOUT, len(PROMPT)), []
    read_range = tier.store.read_range

    def noted(key, start, into, deadline):
        sizes.append(len(into))
        return read_range(key, start, into, deadline)

    monkeypatch.setattr(tier.store, "read_range", noted)
    with engine.retrieve_layers(PROMPT, target) as layers:
        assert list(layers) == list(range(LAYOUT.layers))
        assert layers.result().hit_tokens == len(PROMPT)
    assert target.agrees(computed(), len(PROMPT))
    assert len(sizes) == len(PROMPT) // CHUNK, "small layers come together"
    assert tier.store._mover._staging._idle == []
