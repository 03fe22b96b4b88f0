"""A client leaves out tiers of a node that are slower than its host computes."""

from threading import Event

import pytest

from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.client import rates
from hexkv.adapters.node.server.verbs import VERBS
from hexkv.adapters.node.wire import Verb
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS, put, soon, specs
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.ports import Reason
from nodes import Node
from processes import until

PROMPT = list(range(5 * TOKENS))


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
