"""Leases that the core did not make: a tier in memory of its own is served like any other.

After each step the store, the index of its tier, lookup and retrieve agree on what is there, the
KV is right, and the leases of the store and of the pool balance.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.chunk_cache._base import LAYOUT as KEYED
from hexkv.contracts.chunk_cache._base import TOKENS, soon, spec
from hexkv.contracts.doubles import HeapBlock, ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.doubles.own_memory import OWNER, OwnMemoryStore
from hexkv.contracts.kit.cases import each
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.tiers.rules import Writes
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import PAGE, DType, KVLayout, Namespace, frame_bytes
from rigging import ALL, CHUNK, FRAME, LAYOUT, chosen, rigging, tier

PROMPT = random.Random(7).choices(range(50_000), k=6 * CHUNK)
FULL = len(PROMPT)
OTHER = PROMPT[10:][: 4 * CHUNK]
ZSTD = ZstdSerde()
WIDE = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=256)
SQUEEZING = {
    "serdes": {ZSTD.name: ZSTD},
    "namespace": Namespace("wide", WIDE),
    "frame": frame_bytes(WIDE.chunk_bytes(CHUNK)),
}
ZEROS = HeapKV(WIDE, FULL)
HUGE = 16 * PAGE
KINDS = each(
    "options",
    [{}, {"readonly": True}, {"rounding": HUGE}],
    ids=["plain", "read-only", "rounded"],
)


def own(budget=1 << 30, *, name="own", rounding=1, readonly=False, **rules):
    store = OwnMemoryStore(SystemClock(), rounding=rounding, readonly=readonly)
    return tier(name, store, budget, **rules)


def disk(path, **rules):
    return tier("disk", DiskStore(path), **rules)


def memory(**rules):
    return tier("memory", MemoryStore(ManualClock()), **rules)


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def taken(options):
    """Bytes that a chunk takes in own memory."""
    return max(FRAME, options.get("rounding", 0))


def agreed(r, tokens=PROMPT, kv=None):
    """Which tiers served how much of a prompt, once everybody says the same of it."""
    kv = computed(tokens) if kv is None else kv
    balanced(r)
    found = r.engine.lookup(tokens).hit_tokens
    window = HeapKV(kv.layout, len(tokens))
    got = r.engine.retrieve(tokens, window)
    assert got.hit_tokens == found
    assert window.agrees(kv, found)
    balanced(r)
    return got.tiers


def balanced(r):
    """The stores, the indexes and the leases say the same."""
    assert r.engine.flush()
    assert not r.engine.health().pins
    kept = 0
    for one in r.tiers.values():
        held = {entry.key: entry.size for entry in one.store.scan()}
        assert set(one.index.keys()) == set(held)
        assert one.index.used <= one.index.budget
        if isinstance(one.store, OwnMemoryStore):
            assert one.store.ledger() == ({OWNER: len(held)} if held else {})
            assert one.index.used == one.store.used
        elif isinstance(one.store, MemoryStore):
            kept += len(held)
        else:
            assert one.index.used == sum(held.values())
        assert not one.calls.failures
    assert sum(r.pool.ledger().values()) == kept


@KINDS
def test_what_was_stored_is_found_and_loaded_whole_and_by_layers(rig, options):
    r = rig([own(**options)])
    assert r.engine.store(PROMPT, computed()).tiers == {"own": FULL}
    assert agreed(r) == {"own": FULL}
    assert r.engine.store(PROMPT, computed()).present_tokens == FULL
    window = HeapKV(LAYOUT, FULL)
    with r.engine.retrieve_layers(PROMPT, window) as layers:
        assert list(layers) == list(range(LAYOUT.layers))
    assert layers.result().tiers == {"own": FULL}
    assert window.agrees(computed(), FULL)
    with r.engine.store_layers(OTHER, computed(OTHER)) as storing:
        for layer in range(LAYOUT.layers):
            storing.layer_done(layer)
        assert storing.result().tiers == {"own": len(OTHER)}
    assert agreed(r, OTHER) == {"own": len(OTHER)}
    assert r.engine.clear().complete
    assert agreed(r) == agreed(r, OTHER) == {}
    assert r.tiers["own"].store.used == 0


@KINDS
def test_own_memory_takes_nothing_of_the_pool_and_is_not_emptied_for_it(rig, options):
    r = rig([own(**options)], slots=2)
    assert r.engine.store(PROMPT, computed()).tiers == {"own": FULL}
    assert r.engine.health().pool_held_bytes == 0
    assert agreed(r) == {"own": FULL}
    held = r.pool.lease(FRAME - PAGE, "other", soon()), r.pool.lease(FRAME - PAGE, "other", soon())
    assert r.engine.retrieve(PROMPT, HeapKV(LAYOUT, FULL)).hit_tokens == FULL
    for lease in held:
        lease.release()


@KINDS
def test_the_budget_is_of_what_chunks_take_of_own_memory(rig, options):
    r = rig([own(3 * taken(options), **options)])
    r.engine.store(PROMPT, computed())
    assert sum(agreed(r).values()) <= 3 * CHUNK
    r.engine.store(OTHER, computed(OTHER))
    assert agreed(r, OTHER)


def test_a_chunk_that_takes_more_than_the_budget_does_not_stay(rig):
    r = rig([own(2 * FRAME, rounding=HUGE)])
    report = r.engine.store(PROMPT, computed())
    assert (report.stored_tokens, report.dropped_tokens) == (0, FULL)
    assert report.drops == {"no room": FULL}
    assert agreed(r) == {}


def test_a_tail_counts_as_its_own_frame_and_not_as_a_block_of_the_pool(rig):
    r = rig([own()], **SQUEEZING, chunker=PrefixChunker(CHUNK, tail=1))
    tail = PROMPT[: CHUNK * 3 // 4]
    kv = HeapKV(WIDE, len(tail)).compute(tail)
    r.engine.store(tail, kv)
    assert agreed(r, tail, kv) == {"own": len(tail)}


@KINDS
def test_what_is_evicted_goes_to_the_disk_below_and_comes_back_from_there(
    rig, tmp_path_factory, options
):
    tmp_path = tmp_path_factory.mktemp("case")
    below = disk(tmp_path, writes=Writes.EVICTED)
    r = rig([own(4 * taken(options), promotes=False, **options), below])
    first = PROMPT[: 3 * CHUNK]
    r.engine.store(first, computed(first))
    assert agreed(r, first) == {"own": 3 * CHUNK}
    r.engine.store(OTHER, computed(OTHER))
    assert agreed(r, first) == {"disk": 3 * CHUNK}
    assert agreed(r, OTHER) == {"own": len(OTHER)}
    r.engine.admin.rules("own", promotes=True)
    assert agreed(r, first) == {"disk": 3 * CHUNK}
    assert agreed(r, first) == {"own": 3 * CHUNK}


@KINDS
def test_what_was_prefetched_from_disk_stays_in_own_memory(rig, tmp_path_factory, options):
    tmp_path = tmp_path_factory.mktemp("case")
    r = rig([own(**options), disk(tmp_path)])
    r.engine.store(PROMPT, computed())
    r.engine.clear(tiers=["own"])
    found = None
    while found is None:
        found = r.engine.prefetch("request", PROMPT)
    window = HeapKV(LAYOUT, FULL)
    got = r.engine.retrieve(PROMPT, window, lookup_id="request")
    assert (found, got.tiers) == (FULL, {"disk": FULL})
    assert window.agrees(computed(), FULL)
    assert agreed(r) == {"own": FULL}


@KINDS
@each("make", [disk, own], ids=["disk", "own"])
def test_moving_and_copying_both_ways(rig, tmp_path_factory, options, make):
    tmp_path = tmp_path_factory.mktemp("case")
    there = disk(tmp_path) if make is disk else own(name="other")
    r = rig([own(promotes=False, **options), there])
    r.engine.admin.rules(there.name, writes=Writes.NONE)
    r.engine.store(PROMPT, computed())
    part = PROMPT[: 4 * CHUNK]
    assert r.engine.admin.copy(chosen(r.engine, part), "own", there.name).done == 4
    r.engine.clear(part, tiers=["own"])
    assert agreed(r) == {there.name: 4 * CHUNK, "own": 2 * CHUNK}
    assert r.engine.admin.move(chosen(r.engine, part), there.name, "own").done == 4
    assert agreed(r) == {"own": FULL}
    assert r.engine.admin.move(ALL, "own", there.name).done == 6
    assert agreed(r) == {there.name: FULL}


def test_memory_of_the_pool_holds_what_was_moved_to_it_until_it_goes(rig):
    r = rig([memory(promotes=False), own(writes=Writes.NONE)])
    r.engine.store(PROMPT, computed())
    assert r.engine.admin.move(ALL, "memory", "own").done == 6
    assert r.pool.ledger() == {}
    assert agreed(r) == {"own": FULL}
    assert r.engine.admin.move(ALL, "own", "memory").done == 6
    assert r.engine.retrieve(PROMPT, HeapKV(LAYOUT, FULL)).tiers == {"memory": FULL}
    assert r.engine.clear().complete
    assert r.tiers["own"].store.used == 0
    balanced(r)


@KINDS
def test_compressing_and_decompressing_in_own_memory(rig, options):
    r = rig([own(**options)], **SQUEEZING)
    store = r.tiers["own"].store
    r.engine.store(PROMPT, ZEROS)
    before = store.used
    moved = r.engine.admin.compress(chosen(r.engine, PROMPT), "own", ZSTD.name)
    assert (moved.done, moved.saved_bytes) == (6, before - store.used)
    assert moved.saved_bytes > 0
    assert agreed(r, kv=ZEROS) == {"own": FULL}
    back = r.engine.admin.compress(ALL, "own", "raw")
    assert (back.done, back.saved_bytes) == (6, -moved.saved_bytes)
    assert store.used == before
    assert agreed(r, kv=ZEROS) == {"own": FULL}


@KINDS
def test_leases_on_memory_of_a_host_or_a_peer_reach_every_tier(rig, tmp_path_factory, options):
    tmp_path = tmp_path_factory.mktemp("case")
    tiers = [memory(promotes=False), own(promotes=False, **options), disk(tmp_path)]
    r = rig(tiers, frame=frame_bytes(KEYED.chunk_bytes(TOKENS)), clock=SystemClock())
    wanted = spec("from a peer")
    payload = random.Random(1).randbytes(wanted.raw_bytes)
    frame = bytes(PAGE) + payload
    frame += bytes(frame_bytes(wanted.raw_bytes) - len(frame))
    readonly = options.get("readonly", False)
    block = HeapBlock(frame, wanted, payload_bytes=len(payload), readonly=readonly)
    with block.lease("peer") as lease:
        publishing = r.engine.chunks.publish([lease], None, soon())
        assert publishing.wait(soon())
    assert publishing.tiers == {"memory": [True], "own": [True], "disk": [True]}
    for name in r.tiers:
        assert r.engine.chunks.match([wanted.key], soon()) == [name]
        with r.engine.chunks.hold([wanted], "reader", soon()) as held:
            assert held.wait(soon())
            assert [bytes(got.payload) for got in held.leases] == [payload]
        r.engine.clear(everything=True, tiers=[name])
    assert block.held == 0
    balanced(r)


class Unshared:
    """A lease of a store that cannot be shared, which nobody learns before it is tried."""

    def __init__(self, lease):
        self.lease = lease

    def __getattr__(self, name):
        return getattr(self.lease, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.lease.release()

    def share(self, owner):
        raise OSError("no more handles")


def test_a_lease_that_cannot_be_shared_is_a_miss_or_a_drop_and_is_given_back(rig, tmp_path):
    class Miserly(OwnMemoryStore):
        def get_lease(self, keys, owner):
            return [lease and Unshared(lease) for lease in super().get_lease(keys, owner)]

    place = tier("own", Miserly(SystemClock()), promotes=False)
    r = rig([place, disk(tmp_path, writes=Writes.NONE)])
    r.engine.store(PROMPT, computed())
    assert r.engine.admin.copy(ALL, "own", "disk").done == 0
    balanced(r)
    found = r.engine.lookup(PROMPT).hit_tokens
    assert found == FULL
    with r.engine.chunks.hold([], "reader", soon()):
        balanced(r)


class Forgetful(MemoryStore):
    """A store in memory that loses chunks between the question and the loan."""

    lost = frozenset()

    def get_lease(self, keys, owner):
        lent = super().get_lease(keys, owner)
        for i, key in enumerate(keys):
            if key in self.lost and lent[i] is not None:
                lent[i].release()
                lent[i] = None
        return lent


@settings(max_examples=25, deadline=None)
@given(
    lost=st.sets(st.integers(0, 5)),
    gone=st.sets(st.integers(0, 5)),
    slots=st.integers(9, 32),
    layers=st.booleans(),
)
def test_what_memory_lost_since_it_was_found_comes_from_below(
    tmp_path_factory, lost, gone, slots, layers
):
    store = Forgetful(ManualClock())
    if layers:  # which holds all of them at once, beside what memory counts as its own
        slots += 3
    with rigging() as rig:
        r = rig([tier("memory", store), disk(tmp_path_factory.mktemp("disk"))], slots=slots)
        r.engine.store(PROMPT, computed())
        assert r.engine.flush()
        keys = r.engine.chunk_keys(PROMPT)
        below = r.tiers["disk"]
        below.delete(below.index.discard([keys[i] for i in gone]), soon())
        store.lost = {keys[i] for i in lost}
        end = min(lost & gone, default=len(keys)) * CHUNK
        window = HeapKV(LAYOUT, FULL)
        if layers:
            with r.engine.retrieve_layers(PROMPT, window) as read:
                assert list(read) == list(range(LAYOUT.layers))
            got = read.result()
        else:
            got = r.engine.retrieve(PROMPT, window)
        assert got.hit_tokens == end
        assert window.agrees(computed(), end)
        if not layers:
            fromdisk = len([i for i in lost if i * CHUNK < end]) * CHUNK
            assert got.tiers.get("disk", 0) == fromdisk
        assert r.at_rest()


STEPS = {
    "store": lambda r: r.engine.store(PROMPT, computed()),
    "store another": lambda r: r.engine.store(OTHER, computed(OTHER)),
    "clear": lambda r: r.engine.clear(PROMPT[: 3 * CHUNK]),
    "clear own": lambda r: r.engine.clear(tiers=["own"]),
    "down": lambda r: r.engine.admin.move(ALL, "own", "disk"),
    "up": lambda r: r.engine.admin.move(chosen(r.engine, PROMPT), "disk", "own"),
    "copy": lambda r: r.engine.admin.copy(ALL, "disk", "own"),
    "layers": lambda r: load_layers(r),
    "pinned": lambda r: r.engine.lookup(OTHER, pin="somebody"),
    "unpinned": lambda r: r.engine.unpin("somebody"),
}


def load_layers(r):
    window = HeapKV(LAYOUT, FULL)
    with r.engine.retrieve_layers(PROMPT, window) as layers:
        assert list(layers) == list(range(LAYOUT.layers))
    assert window.agrees(computed(), layers.result().hit_tokens)


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6),
    options=st.sampled_from([{}, {"readonly": True}, {"rounding": HUGE}]),
    chunks=st.integers(2, 12),
)
def test_after_any_steps_all_agree_on_what_is_there(tmp_path_factory, steps, options, chunks):
    place = own(chunks * taken(options), **options)
    below = disk(tmp_path_factory.mktemp("disk"), writes=Writes.EVICTED)
    with rigging() as rig:
        r = rig([place, below], slots=8)
        for step in ["store", *steps]:
            STEPS[step](r)
            if "pinned" not in steps:
                agreed(r)
                agreed(r, OTHER)
        r.engine.unpin("somebody")
        agreed(r)
