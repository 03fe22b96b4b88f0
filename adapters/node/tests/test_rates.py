"""A client leaves out tiers of a node that are slower than its host computes."""

from contextlib import ExitStack, contextmanager
from threading import Event

import pytest

from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.client import rates
from hexkv.adapters.node.server.verbs import TOLD, VERBS
from hexkv.adapters.node.wire import Verb
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS, put, soon, specs
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.tiers.stores.bandwidth import TierBandwidth
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import Reason
from nodes import FRAME, NAMESPACE, PATIENT, Node
from processes import until

PROMPT = list(range(5 * TOKENS))
LONG = list(range(10 * TOKENS))
"""A prompt that is loaded in three windows of at most four chunks."""

FAST = 1e12
"""Tokens per second: more than a disk brings."""


@contextmanager
def opened(root, *, near=False, **sections):
    """An engine with tiers of its own, or over a node, and its tiers."""
    with Node(root / "node", slots=16, memory=2, **sections) as node, ExitStack() as engines:
        if near:
            tree = node.configured(
                root / "own", **{"slots": 16, "memory": 2, "frame": FRAME, "disk": True} | sections
            )
            tree |= {"chunk": {"size": TOKENS}, "deadlines": PATIENT}
            engine = engines.enter_context(build(load(environ={}, overrides=tree), NAMESPACE))
            yield engine, engine._chunks.stack
        else:
            yield engines.enter_context(node.engine()), node.served.stack
        engines.close()
        node.at_rest()


def computing(engine, rate):
    """Have the host compute that fast; a client knows by now whether its node's disk is slower."""
    engine.computes(rate)
    if not engine._chunks.near:
        slow = engine._chunks._slow
        until(lambda: bool(slow()) == (rate == FAST) or not engine.health())


def on_a_slow_disk(engine, prompt=LONG):
    """Store a prompt that only the disk has then, which is slower than computing; its KV."""
    kv = stored(engine, prompt)
    only_on_disk(engine)
    assert engine.retrieve(prompt, empty(prompt)).tiers == {"disk": len(prompt)}  # measures it
    only_on_disk(engine)
    computing(engine, FAST)
    return kv


def stored(engine, prompt):
    kv = HeapKV(LAYOUT, len(prompt)).compute(prompt)
    engine.store(prompt, kv)
    assert engine.flush(60)
    return kv


def only_on_disk(engine):
    assert engine.flush(60)
    engine.clear(tiers=[tier.name for tier in engine.health().tiers if tier.name != "disk"])


def empty(prompt=LONG):
    return HeapKV(LAYOUT, len(prompt))


def whole(engine, window):
    return engine.retrieve(LONG, window)


def by_layers(engine, window):
    with engine.retrieve_layers(LONG, window) as layers:
        assert [*layers] == [*range(LAYOUT.layers)]
    return layers.result()


def prefetched(engine, window):
    until(lambda: engine.prefetch("a", LONG) is not None)
    return engine.retrieve(LONG, window, lookup_id="a")


WAYS = [whole, by_layers, prefetched]


@pytest.mark.thorough
@pytest.mark.parametrize("near", [True, False], ids=["one process", "a node"])
@pytest.mark.parametrize("way", WAYS)
def test_a_load_without_a_lookup_leaves_out_a_slow_tier(tmp_path, monkeypatch, near, way):
    monkeypatch.setattr(rates, "_EVERY", 0.0)
    with opened(tmp_path, near=near) as (engine, _):
        kv, through = on_a_slow_disk(engine), 0
        for _ in range(32):
            window = empty()
            got = way(engine, window)
            if got.hit_tokens:  # let through, to measure the disk again
                through += 1
                assert window.agrees(kv, got.hit_tokens)
                assert set(got.tiers) <= {"disk", "memory"}
                only_on_disk(engine)
            else:
                assert got.misses == {Reason.SLOWER: 1, Reason.BEHIND_A_MISS: 9}
        assert 1 <= through <= 4
        computing(engine, 1e-3)
        assert way(engine, window).hit_tokens == len(LONG)
        assert window.agrees(kv, len(LONG))


@pytest.mark.thorough
@each("near", [True, False], ids=["one process", "a node"])
def test_a_hold_leaves_out_a_slow_tier(tmp_path, monkeypatch, near):
    monkeypatch.setattr(rates, "_EVERY", 0.0)
    with opened(tmp_path / f"near {near}", near=near) as (engine, _):
        on_a_slow_disk(engine, PROMPT)
        identity, keys = engine.key_space(NAMESPACE).identity, engine.chunk_keys(PROMPT)
        some = [
            spec._replace(key=key, identity=identity)
            for spec, key in zip(specs(5), keys, strict=True)
        ]
        seen = []
        for _ in range(32):
            with engine.chunks.hold(some, "hold", soon()) as hold:
                assert hold.wait(soon())
                seen.append((None not in hold.leases, *set(hold.reasons)))
            only_on_disk(engine)
        assert seen.count((True, None)) == 2
        assert seen.count((False, Reason.SLOWER)) == 30
        assert engine._chunks.lend(some, "lend") == ((), "" if not near else "memory")


@pytest.mark.thorough
def test_what_a_lookup_found_on_a_slow_tier_is_loaded_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "_EVERY", 0.0)
    with opened(tmp_path) as (engine, _):
        kv = on_a_slow_disk(engine)
        for way in WAYS:
            until(lambda: engine.lookup(LONG).hit_tokens == len(LONG))  # let through
            window = empty()
            assert way(engine, window).hit_tokens == len(LONG)
            assert window.agrees(kv, len(LONG))
            only_on_disk(engine)
        computing(engine, 1e-3)
        assert engine.lookup(LONG).hit_tokens == len(LONG)
        computing(engine, FAST)  # the answer of the lookup holds
        assert whole(engine, empty()).hit_tokens == len(LONG)
        only_on_disk(engine)
        assert whole(engine, empty()).hit_tokens == 0


@pytest.mark.thorough
@each("near", [True, False], ids=["one process", "a node"])
def test_a_slow_tier_is_left_out_behind_what_a_lookup_found_on_another(tmp_path, monkeypatch, near):
    monkeypatch.setattr(rates, "_EVERY", 0.0)
    speeds = {}
    monkeypatch.setattr(TierBandwidth, "tokens_rate", property(lambda link: speeds.get(id(link))))
    root = tmp_path / f"near {near}"
    disks = [
        {"name": name, "store": "disk", "settings": {"root": str(root / name)}}
        for name in ("disk", "far")
    ]
    tiers = [{"store": "memory", "budget": 2 * FRAME}, *disks]
    with opened(root, near=near, tiers=tiers) as (engine, stack):
        kv = stored(engine, LONG)
        stack.forget(engine.chunk_keys(LONG)[5:], [stack.tiers[1]], soon())
        speeds |= {id(stack.tiers[1].link): 2 * FAST, id(stack.tiers[2].link): 1.0}
        for looks in (False, True):
            engine.clear(tiers=["memory"])
            computing(engine, FAST)
            if looks:
                assert engine.lookup(LONG).tiers == {"disk": 5 * TOKENS}
            window = empty()
            got = whole(engine, window)
            assert (got.tiers, got.misses[Reason.SLOWER]) == ({"disk": 5 * TOKENS}, 1)
            assert window.agrees(kv, 5 * TOKENS)


@pytest.mark.thorough
@each("near", [True, False], ids=["one process", "a node"])
def test_chunks_that_are_left_out_count_as_used(tmp_path, monkeypatch, near):
    monkeypatch.setattr(rates, "_EVERY", 0.0)
    root = tmp_path / f"near {near}"
    disk = {"store": "disk", "budget": 12 * FRAME, "policy": "lru"}
    disk["settings"] = {"root": str(root / "disk")}
    other, third = ([token + 1000 * i for token in PROMPT] for i in (1, 2))
    with opened(root, near=near, tiers=[disk]) as (engine, stack):
        kv = on_a_slow_disk(engine, PROMPT)
        stored(engine, other)
        assert engine.retrieve(PROMPT, empty(PROMPT)).misses[Reason.SLOWER] == 1
        assert engine.store(PROMPT, kv).present_tokens == len(PROMPT)  # as computed by the host
        keys = engine.chunk_keys(PROMPT)
        stored(engine, third)
        here = stack.find_tiers(keys, soon())
        assert None not in here
        assert None in stack.find_tiers(engine.chunk_keys(other), soon())


@pytest.mark.thorough
@each("old", ["a node", "a client"])
def test_an_old_node_and_an_old_client_load_from_any_tier(tmp_path, monkeypatch, old):
    monkeypatch.setattr(rates, "_EVERY", 0.0)
    if old == "a node":
        monkeypatch.delitem(TOLD, Verb.COMPUTES)
        monkeypatch.delitem(TOLD, Verb.USED)
    else:
        monkeypatch.setattr(rates.ServesSooner, "_rated", lambda client, last, terms: terms)
    with opened(tmp_path / old) as (engine, _):
        kv = on_a_slow_disk(engine)
        for way in WAYS:
            window = empty()
            assert way(engine, window).hit_tokens == len(LONG)
            assert window.agrees(kv, len(LONG))
            only_on_disk(engine)
        assert engine.lookup(LONG).missing is Reason.SLOWER
        assert engine.store(LONG, kv).stored_tokens == len(LONG)


def test_a_client_leaves_out_a_tier_that_is_slower_than_its_host_computes(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "_EVERY", 0.0)
    with Node(tmp_path) as node:
        with node.engine() as engine:
            engine.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
            node.served.health()
            disk = node.served.stack.tiers[1].link
            disk.began(0.0)
            disk.ended(1.0, 1000.0)
            engine.clear(tiers=["memory"])
            engine.computes(2000.0)
            until(lambda: not engine.lookup(PROMPT).hit_tokens)
            answers = [engine.lookup(PROMPT) for _ in range(32)]
            assert [answer.tiers for answer in answers].count({"disk": len(PROMPT)}) == 2
            assert {answer.missing for answer in answers} == {None, Reason.SLOWER}
            assert why(node, engine) == (Reason.SLOWER, "1,000 tokens/s, and computing 2,000")
            stored = engine.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
            assert stored.tiers["memory"] == len(PROMPT)  # the next request finds it there
            assert engine.lookup(PROMPT).tiers == {"memory": len(PROMPT)}
            engine.clear(tiers=["memory"])
            engine.computes(500.0)
            assert engine.lookup(PROMPT).hit_tokens == len(PROMPT)
            until(lambda: engine.lookup(PROMPT) and why(node, engine)[0] is Reason.PRESENT)
            engine.computes(2000.0)
            until(lambda: engine.lookup(PROMPT) and why(node, engine)[0] is Reason.SLOWER)
            keys = engine.chunk_keys(PROMPT)
        until(lambda: explained(node, keys)[0] is Reason.PRESENT)  # no host computes now
        node.at_rest()


def explained(node, keys):
    """Why the node's disk would serve the first chunk to the host that it heard last, or not."""
    why = node.served.admin.explain(keys[:1])[0]["disk"]
    return why.reason, why.detail


def why(node, engine):
    return explained(node, engine.chunk_keys(PROMPT))


@pytest.mark.thorough
@each(
    "report",
    [
        b"",
        b"[" * 20_000,
        b"[]",
        b'{"tiers": null}',
        b'{"tiers": [1]}',
        b'{"tiers": [{"name": "memory", "tokens_per_second": 1%s}]}' % (b"0" * 400),
    ],
)
def test_a_report_of_a_node_that_is_none_fails_no_lookup(tmp_path, monkeypatch, report):
    asked = Event()

    def answer(session, request):
        session.send(request.head, Status.DONE, report)
        asked.set()

    monkeypatch.setattr(rates, "_EVERY", 0.0)
    monkeypatch.setitem(VERBS, Verb.HEALTH, answer)
    with Node(tmp_path, disk=False) as node:
        client, some = node.client(), specs(1)
        put(client, some)
        client.computes(1.0)
        assert client.match([some[0].key], soon()) == ["memory"]
        assert asked.wait(60)
        assert client._keeper.link.wait(client._answer, soon())
        assert client.match([some[0].key], soon()) == ["memory"]
        client.health(soon())
        client.close()
        node.at_rest()
