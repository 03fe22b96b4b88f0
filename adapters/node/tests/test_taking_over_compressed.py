"""Memory that a tier has beside the pool goes over with its node, as far as the successor fits."""

from contextlib import contextmanager

import pytest

from hexkv.adapters.node.server import taking
from hexkv.adapters.node.server.handover import unpack
from hexkv.adapters.node.server.taking import Predecessor
from hexkv.contracts.chunk_cache._base import content, put, soon, specs
from hexkv.contracts.kit.cases import each
from nodes import FRAME, Node, NodeProcess, held, taken_over


def compressed(slots=24, heap=12):
    """Tiers of a node: memory for two chunks, and memory beside the pool behind it."""
    behind = {"store": "heap", "budget": heap * FRAME, "write": "evicted", "serde": "zstd"}
    tiers = [{"store": "memory", "budget": 2 * FRAME}, behind]
    return {"slots": slots, "disk": False, "tiers": tiers}


def places(client, some):
    """The tier of each, once all is written."""
    assert client.flush(soon())
    return client.match([spec.key for spec in some], soon())


@pytest.mark.thorough
def test_compressed_memory_goes_over_too_with_its_pins(tmp_path):
    """By real processes, twice; what was written to it in between as well."""
    some = specs(9)
    with NodeProcess(tmp_path, **compressed()) as node:
        client = node.client()
        for one in some[:6]:
            put(client, [one])
        assert places(client, some[:6]) == ["heap"] * 4 + ["memory"] * 2
        client.pin("me", [some[0].key])
        for number in (6, 7):
            before = places(client, some[:number])
            node.take_over()
            assert places(client, some[:number]) == before
            assert client.health(soon()).pins["me"] >= 1, "on each tier that has it"
            with client.hold(some[:number], "held", soon()) as hold:
                assert hold.wait(soon())
                assert held(hold) == [content(spec) for spec in some[:number]]
            put(client, some[number : number + 1])
        assert "behind" not in node.said()
        assert "keeps" not in node.said()
        client.close()
        node.at_rest()


@contextmanager
def with_compressed(tmp_path, **options):
    """A node in this process with six chunks, a client of it, and the six."""
    with Node(tmp_path, **compressed(**options)) as node:
        client = node.client()
        some = specs(6)
        for one in some:
            put(client, [one])
        assert places(client, some) == ["heap"] * 4 + ["memory"] * 2
        yield node, client, some
        client.close()


@pytest.mark.thorough
@each("stopping", ["before it asks", "after it adopted"])
def test_compressed_memory_is_the_nodes_if_its_successor_goes_half_way(tmp_path, stopping):
    with with_compressed(tmp_path) as (node, client, some):
        with Predecessor(node.path) as before:
            state = before.take()
            assert len(before.stores["heap"].frames) == 4
            if stopping == "after it adopted":
                with node.cache(before.region, before.stores) as served:
                    before.adopt(served, state)
                    served._stack.named(["heap"])[0].store.delete(
                        [spec.key for spec in some], soon()
                    )
        assert places(client, some) == ["heap"] * 4 + ["memory"] * 2
        with client.hold(some, "held", soon()) as hold:
            assert hold.wait(soon())
            assert held(hold) == [content(spec) for spec in some]
        put(client, specs(7)[6:])
        assert places(client, some).count("heap") >= 4


@pytest.mark.thorough
@each("older", ["successor", "node"])
def test_compressed_memory_is_left_behind_between_versions_that_do_not_know_of_it(
    tmp_path, monkeypatch, caplog, older
):
    """One line says so, and all else goes over."""

    def unknowing(data):
        return unpack(data)._replace(stores=None)

    monkeypatch.setattr(taking, "unpack", unknowing)
    caplog.clear()
    with with_compressed(tmp_path) as (node, client, some), taken_over(node) as heir:
        if older == "successor":
            assert caplog.text.count("tier heap: 4 chunks of") == 1
        else:
            assert caplog.text.count("tiers heap begin empty") == 1
        assert places(client, some) == [None] * 4 + ["memory"] * 2
        for one in some[:4]:
            put(client, [one])
        assert places(client, some).count("heap") == 4
        client.close()
        heir.at_rest()
        node.stop()


@pytest.mark.thorough
@each("wanting", ["less room", "no such tier"])
def test_a_successor_keeps_what_its_configuration_has_room_for(tmp_path, caplog, wanting):
    with with_compressed(tmp_path) as (node, client, some):
        caplog.clear()
        used = node.served._stack.named(["heap"])[0].index.used
        (memory, behind) = node._overrides["tiers"]
        less = [] if wanting == "no such tier" else [behind | {"budget": used // 2}]
        node._overrides = node._overrides | {"tiers": [memory, *less]}
        with taken_over(node) as heir:
            there = places(client, some)
            kept = there.count("heap")
            assert there[4:] == ["memory"] * 2
            assert kept == (0 if wanting == "no such tier" else 2)
            assert f"tier heap keeps {kept} of 4 chunks" in caplog.text
            left = [spec for spec, tier in zip(some, there, strict=True) if tier]
            with client.hold(left, "held", soon()) as hold:
                assert hold.wait(soon())
                assert held(hold) == [content(spec) for spec in left]
            client.close()
            heir.at_rest()
            node.stop()
