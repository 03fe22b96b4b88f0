"""A node leaves chunks encoded for the devices of its engines, as tiers of one process do."""

import os
import sys
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import torch

from depth import thorough
from devices.recorded_driver import Recording
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.node.server import holding
from hexkv.adapters.node.server.verbs import TOLD
from hexkv.adapters.node.wire import Verb
from hexkv.contracts.chunk_cache._base import soon
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.doubles.own_memory import OwnMemoryStore
from hexkv.contracts.kit.cases import case, each
from hexkv.core.tiers.stores.bandwidth import SerdeStats
from hexkv.kernels import PagedMemory
from hexkv.kernels.gpu import fused
from hexkv.kernels.gpu.staging import DeviceStaging
from hexkv.kernels.payloads import SupportsDevicePlanes
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.memory import store
from hexkv.ports import (
    PAGE,
    Finished,
    HoldTerms,
    InvalidRequest,
    Namespace,
    Reason,
    Span,
    frame_bytes,
)
from layered import DEEP, FULL, PROMPT, empty, smooth
from nodes import PATIENT, Node, NodeProcess, taken_over
from processes import until
from rigging import CHUNK

NAMESPACE = Namespace("deep", DEEP)
FRAME = frame_bytes(DEEP.chunk_bytes(CHUNK))
pytestmark = pytest.mark.usefixtures("one_by_one")


class Decoding(HeapKV):
    """Decodes what a GPU does by the serde's own code; *took* has the payloads of each call."""

    def __init__(self):
        super().__init__(DEEP, len(PROMPT))
        self.took, self.raw = [], 0

    def scatter(self, spans, layers=None):
        self.raw += len(spans)
        return super().scatter(spans, layers)

    def decodes(self, serde):
        return isinstance(serde, SupportsDevicePlanes)

    def scatter_encoded(self, serde, spans):
        return self.scatter_encoded_layers(serde, spans, range(DEEP.layers))

    @property
    def decoded(self):
        """Layers of chunks."""
        return sum(len(layers) * len(sizes) for layers, sizes in self.took)

    def scatter_encoded_layers(self, serde, spans, layers):
        self.took.append((layers, [len(payload) for _, _, payload in spans]))
        for start, end, payload in spans:
            raw = memoryview(bytearray(DEEP.chunk_bytes(end - start)))
            parts = serde.layer_parts(payload, len(payload), DEEP, end - start)
            for layer in layers:
                first, last = DEEP.layer_span(layer, end - start)
                part = payload[slice(*parts[layer])]
                serde.decode_layer(part, layer, DEEP, end - start, raw[first:last])
            super().scatter([Span(start, end, raw)], layers)
        return Finished()


def tiers(root, serde):
    memory = {"store": "memory", "budget": 12 * FRAME}
    return [memory, {"store": "disk", "settings": {"root": str(root / serde)}, "serde": serde}]


def node_of(root, serde, kind=Node):
    return kind(root, frame=FRAME, tiers=tiers(root, serde))


def alone(root, serde):
    """An engine with tiers of its own."""
    wanted = {"pool": {"bytes": 32 * FRAME}, "tiers": tiers(root, serde), "deadlines": PATIENT}
    return build(load(environ={}, overrides=wanted | {"chunk": {"size": CHUNK}}), NAMESPACE)


def over(node):
    return node.engine(NAMESPACE, chunk={"size": CHUNK})


def stored(engine):
    """Store the prompt; from now on only the disk has it."""
    assert engine.store(PROMPT, smooth()).stored_tokens == FULL
    only_on_disk(engine)


def only_on_disk(engine):
    assert engine.flush(60)
    engine._chunks.clear(None, ["memory"], soon())


def loaded(engine, how, device):
    """Load the prompt; return the result."""
    if how == "layers":
        with engine.retrieve_layers(PROMPT, device) as layers:
            assert [*layers] == [*range(DEEP.layers)]
        return layers.result()
    if how == "prefetched":
        engine.prefetch("a", PROMPT)
        until(lambda: engine.prefetch("a", PROMPT) is not None)
    return engine.retrieve(PROMPT, device, lookup_id="a" if how == "prefetched" else None)


def keys(engine):
    return [spec.key for spec in wanted(engine)]


def wanted(engine):
    """The full chunks of the prompt."""
    prompt = engine._naming.prompt(PROMPT, None)
    return prompt.part(0, prompt.full).specs()


def took(engine, how):
    """What a device got of the prompt from the disk, and then from memory."""
    found = []
    for tier in ("disk", "memory"):
        device = Decoding()
        got = loaded(engine, how, device)
        assert (got.hit_tokens, dict(got.tiers)) == (FULL, {tier: FULL})
        sizes = sorted(str((layers, size)) for layers, some in device.took for size in some)
        found.append((device.memory, device.raw, sizes))
    only_on_disk(engine)
    return found


@pytest.fixture
def node(tmp_path):
    with node_of(tmp_path, "int8") as node:
        yield node
        node.at_rest()


@pytest.mark.parametrize("serde", ["int8", *thorough("cachegen", "int4", "fp8", "rans")])
def test_a_device_has_over_a_node_what_it_has_in_one_process(tmp_path, serde):
    with node_of(tmp_path / "node", serde) as node:
        with alone(tmp_path, serde) as near, over(node) as far:
            stored(near)
            stored(far)
            for how in ("whole", "layers", "prefetched", "prefetched"):
                here, there = took(near, how), took(far, how)
                assert here == there
                if how == "prefetched":  # by now a device is known that decodes
                    continue
                assert [raw for _, raw, _ in there] == [0, 0]
                plain = empty(PROMPT, DEEP)
                assert far.retrieve(PROMPT, plain).hit_tokens == FULL
                assert plain.memory == there[0][0], "what the node's host decodes"
                only_on_disk(far)
        node.at_rest()


@pytest.mark.thorough
def test_as_many_bytes_and_launches_go_to_the_device_as_in_one_process(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    made = Recording()
    monkeypatch.setattr(fused, "staging_on", lambda device: staging)
    staging = DeviceStaging(made)
    pages = [
        [torch.zeros(32, 16, p.heads, p.width, dtype=torch.float16) for p in planes]
        for planes in DEEP.planes
    ]
    memory = PagedMemory(DEEP, pages, fused=True)

    def counted(engine, how):
        made.counts.clear()
        assert loaded(engine, how, memory.window(range(len(PROMPT)))).hit_tokens == FULL
        return made.counts["bytes in"], made.counts["copies"], made.counts["launches"]

    with node_of(tmp_path / "node", "int8") as node:
        with alone(tmp_path, "int8") as near, over(node) as far:
            stored(near)
            stored(far)
            for how in ("whole", "layers"):
                here, there = counted(near, how), counted(far, how)
                assert here == there
                assert there[0] < 0.6 * DEEP.chunk_bytes(FULL)
                only_on_disk(near)
                only_on_disk(far)
        node.at_rest()


@pytest.mark.thorough
def test_a_node_that_knows_no_encoded_chunks_sends_them_raw(node, monkeypatch):
    monkeypatch.delitem(TOLD, Verb.ENCODED)
    with over(node) as engine:
        stored(engine)
        plain = empty(PROMPT, DEEP)
        assert engine.retrieve(PROMPT, plain).hit_tokens == FULL
        for how in ("whole", "layers", "prefetched", "prefetched"):
            only_on_disk(engine)
            device = Decoding()
            assert loaded(engine, how, device).hit_tokens == FULL
            assert (device.memory, device.took) == (plain.memory, [])


@pytest.mark.thorough
@each("near", [True, False], ids=["one process", "a node"])
def test_a_prefetched_chunk_is_decoded_once_for_whatever_device_takes_it(
    tmp_path, monkeypatch, near
):
    hosts = []
    monkeypatch.setattr(
        SerdeStats, "decoded", lambda self, serde, size, began, now: hosts.append(size)
    )
    with node_of(tmp_path / f"node {near}", "int8") as node, ExitStack() as opened:
        engine = opened.enter_context(alone(tmp_path, "int8") if near else over(node))
        stored(engine)
        right = empty(PROMPT, DEEP)
        assert engine.retrieve(PROMPT, right).hit_tokens == FULL
        for seen, taking, how, mine in product((Decoding, Plain), (Decoding, Plain), HOW, (1, 0)):
            with case((seen, taking, how, mine)):
                prefetched(engine, "seen", seen(), "whole")  # decides on the form of the next one
                only_on_disk(engine)
                hosts.clear()
                device = taking()
                prefetched(engine, "next", device, how, mine=mine)
                engine.cancel("next")
                assert device.memory == right.memory
                decoded = sum(hosts) / DEEP.chunk_bytes(CHUNK) + device.decoded / DEEP.layers
                # Beside a prefetch that is decoded already, another request decodes its own.
                assert CHUNKS <= decoded <= (CHUNKS if mine else 2 * CHUNKS)
                only_on_disk(engine)
        assert engine._chunks.ledger().keys() <= {"memory store"}
        opened.close()
        node.at_rest()


CHUNKS = FULL // CHUNK
HOW = ("whole", "layers")


class Plain(HeapKV):
    """Decodes nothing."""

    decoded = 0

    def __init__(self):
        super().__init__(DEEP, len(PROMPT))


def prefetched(engine, name, device, how, *, mine=True):
    """Prefetch the prompt, then load it by the prefetch, or else beside it."""
    engine.prefetch(name, PROMPT)
    until(lambda: engine.prefetch(name, PROMPT) == FULL)
    asked = name if mine else None
    if how == "whole":
        got = engine.retrieve(PROMPT, device, lookup_id=asked)
    else:
        with engine.retrieve_layers(PROMPT, device, lookup_id=asked) as layers:
            assert [*layers] == [*range(DEEP.layers)]
        got = layers.result()
    assert got.hit_tokens == FULL


@pytest.mark.thorough
@each("how", ["whole", "layers"])
def test_a_damaged_frame_ends_the_hit_with_one_line_of_the_log(tmp_path, caplog, how):
    with node_of(tmp_path / how, "int8") as node:
        with over(node) as engine:
            stored(engine)
            key = keys(engine)[4]
            (file,) = [it for it in (tmp_path / how).rglob("*") if key.hex() in it.name]
            data = bytearray(file.read_bytes())
            data[-PAGE - 1] ^= 1
            file.write_bytes(data)
            caplog.clear()
            device = Decoding()
            got = loaded(engine, how, device)
            assert (got.hit_tokens, got.misses[Reason.CORRUPT]) == (4 * CHUNK, 1)
            assert len([it for it in caplog.records if it.levelname != "INFO"]) == 1
            assert engine._chunks.ledger() == {}
        node.at_rest()


@pytest.mark.thorough
def test_a_layer_that_is_damaged_in_one_read_is_read_again(tmp_path, monkeypatch):
    read, flipped = DiskStore.read_range, []

    def damaged(store, key, start, into, deadline):
        outcome = read(store, key, start, into, deadline)
        if start > 5 * PAGE and not flipped:
            into[-1:] = bytes([into[-1] ^ 1])
            flipped.append(key)
        return outcome

    with node_of(tmp_path, "int8") as node:
        with over(node) as engine:
            stored(engine)
            right, device = took(engine, "layers")[0], Decoding()
            monkeypatch.setattr(DiskStore, "read_range", damaged)
            assert loaded(engine, "layers", device).hit_tokens == FULL
            assert flipped
            assert (device.memory, device.raw) == right[:2]
        node.at_rest()


@pytest.mark.thorough
def test_an_impossible_answer_about_encoded_chunks_ends_the_connection(node, monkeypatch):
    with over(node) as engine:
        stored(engine)
        specs = wanted(engine)
    count, pack = len(specs), holding.pack_chunks
    for wrong in (
        {"serdes": ["zstd-planes/1"] * count},
        {"sizes": [PAGE] * count},
        {"sizes": [FRAME] * count},
        {"offsets": [1] * count},
        {"offsets": [1 << 40] * count},
    ):
        with case(wrong), monkeypatch.context() as patched:
            answer = partial(wronged, pack, wrong)
            patched.setattr(holding, "pack_chunks", answer)
            client = node.client()
            with client.hold(specs, "held", soon(), HoldTerms(encoded={"int8/1"})) as hold:
                assert hold.wait(soon())
                assert set(hold.leases) == {None}
                assert set(hold.reasons) == {Reason.FAILED}
            assert client.ledger() == {}
            client.close()


def wronged(pack, wrong, chunks):
    return pack(chunks._replace(**wrong) if any(chunks.serdes) else chunks)


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
from test_decoded_over_a_node import *

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
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
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


@pytest.mark.thorough
def test_chunks_in_memory_of_a_store_are_copied_as_they_are_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MemoryStore", OwnMemoryStore)
    with node_of(tmp_path, "int8") as node:
        with over(node) as engine:
            stored(engine)
            disk, memory = took(engine, "whole")
            assert memory == disk
            assert disk[1] == 0
        node.at_rest()
