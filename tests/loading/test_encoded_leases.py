"""Encoded chunks that are leased over a node outlive it, and are given back by a killed engine."""

import os
import sys
from subprocess import PIPE, Popen

import pytest

from encoded import (
    FRAME,
    Decoding,
    keys,
    node_of,
    only_on_disk,
    over,
    stored,
    wanted,
)
from hexkv.contracts.chunk_cache._base import soon
from hexkv.ports import (
    HoldTerms,
    InvalidRequest,
)
from layered import DEEP, FULL, PROMPT, empty
from nodes import NodeProcess, taken_over
from processes import until
from rigging import CHUNK

pytestmark = pytest.mark.usefixtures("one_by_one")


@pytest.fixture
def node(tmp_path):
    with node_of(tmp_path, "int8") as node:
        yield node
        node.at_rest()


@pytest.mark.thorough
def test_encoded_leases_are_as_they_were_after_a_take_over(tmp_path):
    with node_of(tmp_path, "int8") as node:
        with over(node) as engine:
            stored(engine)
            specs = wanted(engine)
        client = node.client()
        hold = client.hold(specs, "held", soon(), HoldTerms(encoded={"int8/1"}))
        assert hold.wait(soon())
        payloads = [bytes(lease.payload) for lease in hold.leases]
        assert {lease.spec.serde for lease in hold.leases} == {"int8/1"}
        assert max(map(len, payloads)) < DEEP.chunk_bytes(CHUNK)
        assert all(lease.size >= len(lease.frame) for lease in hold.leases)
        with pytest.raises(InvalidRequest):
            client.publish(hold.leases, None, soon())
        with taken_over(node) as heir:
            assert client.match([spec.key for spec in specs], soon()) == ["memory"] * len(specs)
            assert [bytes(lease.payload) for lease in hold.leases] == payloads
            hold.leases[0].release()
            with client.hold(specs, "again", soon(), HoldTerms(encoded={"int8/1"})) as again:
                assert again.wait(soon())
                assert [bytes(lease.payload) for lease in again.leases] == payloads
            hold.release()
            client.close()
            until(lambda: not (heir.server.leased_bytes or heir.ledger()))


@pytest.mark.thorough
def test_a_node_that_is_killed_leaves_no_lease_and_serves_encoded_chunks_again(tmp_path):
    with node_of(tmp_path, "int8", NodeProcess) as node, over(node) as engine:
        stored(engine)
        plain, device = empty(PROMPT, DEEP), Decoding()
        assert engine.retrieve(PROMPT, plain).hit_tokens == FULL
        terms = HoldTerms(encoded={"int8/1"})
        only_on_disk(engine)
        hold = engine._chunks.hold(wanted(engine), "held", soon(), terms)
        assert hold.wait(soon())
        payloads = [bytes(lease.payload) for lease in hold.leases]
        with engine.retrieve_layers(PROMPT, device) as layers:
            assert next(layers) == 0
            node.kill()
        assert [bytes(lease.payload) for lease in hold.leases] == payloads
        hold.release()
        assert engine._chunks.ledger() == {}
        node.start()
        until(lambda: engine.retrieve(PROMPT, device).hit_tokens == FULL)
        assert device.took
        assert device.memory == plain.memory
        engine.close()
        node.at_rest()


HOLDER = """
import sys
from nodes import Engines
from encoded import Decoding, over, wanted
from hexkv.contracts.chunk_cache._base import soon
from hexkv.ports import HoldTerms
from layered import PROMPT

node = Engines()
node.path = sys.argv[1]
with over(node) as engine, engine.retrieve_layers(PROMPT, Decoding()) as layers:
    assert next(layers) == 0
    hold = engine._chunks.hold(wanted(engine), "held", soon(), HoldTerms(encoded={"int8/1"}))
    assert hold.wait(soon())
    print(sum(lease.spec.serde == "int8/1" for lease in hold.leases), flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_an_engine_that_is_killed_gives_its_encoded_leases_back(node):
    with over(node) as engine:
        stored(engine)
        plain = empty(PROMPT, DEEP)
        assert engine.retrieve(PROMPT, plain).hit_tokens == FULL
        only_on_disk(engine)
        paths = os.pathsep.join(sys.path)
        with Popen(
            [sys.executable, "-c", HOLDER, node.path],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=PIPE,
            stdout=PIPE,
        ) as holder:
            assert int(holder.stdout.readline()) == len(wanted(engine))
            assert node.server.leased_bytes >= 2 * FRAME * len(wanted(engine))
            holder.kill()
        until(lambda: not (node.server.leased_bytes or node.ledger()))
        only_on_disk(engine)
        found = engine._chunks.match(keys(engine), soon())
        assert found == ["disk"] * len(found), "the memory tier could let go of each"
        device = Decoding()
        assert engine.retrieve(PROMPT, device).hit_tokens == FULL
        assert (device.memory, device.raw) == (plain.memory, 0)
