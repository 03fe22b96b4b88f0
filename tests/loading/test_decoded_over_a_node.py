"""A node leaves chunks encoded for the devices of its engines, as tiers of one process do."""

from contextlib import ExitStack
from functools import partial
from itertools import product

import pytest
import torch

from depth import thorough
from devices.recorded_driver import Recording
from encoded import (
    FRAME,
    Decoding,
    alone,
    keys,
    loaded,
    node_of,
    only_on_disk,
    over,
    stored,
    took,
    wanted,
)
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.node.client.client import NodeClient
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
from hexkv.plugins.memory import store
from hexkv.ports import (
    PAGE,
    HoldTerms,
    Reason,
)
from layered import DEEP, FULL, PROMPT, empty, smooth
from processes import until
from rigging import CHUNK

pytestmark = pytest.mark.usefixtures("one_by_one")


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


def knows_none(monkeypatch, side, first):
    """Have the node, or its clients, be of before the verb *first* and those after it."""
    if side == "node":
        for verb in Verb:
            if verb >= first:
                monkeypatch.delitem(TOLD, verb, raising=False)
        return
    hold = NodeClient.hold

    def held(client, wanted, owner, deadline, terms):
        if first == Verb.LAYERS:
            terms = terms._replace(layered=())
        return hold(client, wanted, owner, deadline, terms._replace(encoded=(), rate=None))

    monkeypatch.setattr(NodeClient, "hold", held)


@pytest.mark.thorough
@each("side, first", [*product(("node", "client"), (Verb.ENCODED, Verb.LAYERS))])
def test_a_node_and_a_client_of_before_a_verb_load_whole_or_raw_chunks(node, side, first):
    with pytest.MonkeyPatch.context() as patch, over(node) as engine:
        knows_none(patch, side, first)
        engine.store(PROMPT, smooth())
        only_on_disk(engine)
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
def test_chunks_in_memory_of_a_store_are_copied_as_they_are_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MemoryStore", OwnMemoryStore)
    with node_of(tmp_path, "int8") as node:
        with over(node) as engine:
            stored(engine)
            disk, memory = took(engine, "whole")
            assert memory == disk
            assert disk[1] == 0
        node.at_rest()
