"""Chunks go to a device that decodes them as their serde left them, and to any other one raw."""

from dict_store import ScanningStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.ports import (
    CorruptFrame,
    CounterName,
    Deadline,
    Finished,
    Namespace,
    Reason,
    Span,
    frame_bytes,
)
from layered import DEEP, FULL, PROMPT, empty, memory, settled
from media.eight_serde import Eight, repeating
from rigging import CHUNK, tier


class Counting(Eight):
    """Counts what the host decodes."""

    decoded = 0

    def decode(self, payload, layout, tokens, into):
        self.decoded += 1
        super().decode(payload, layout, tokens, into)


class Transfer(Finished):
    def __init__(self, error):
        self.error = error

    def wait(self, deadline):
        if self.error:
            raise self.error
        return True


class DecodingKV(HeapKV):
    """Decodes by the serde's own code, and counts; *wrong* is what a wait finds out."""

    def __init__(self, knows=True, wrong=None, early=None):
        super().__init__(DEEP, len(PROMPT))
        self.knows, self.wrong, self.early, self.took = knows, wrong, early, 0
        self.asked = False

    def decodes(self, serde):
        self.asked = True
        if isinstance(self.knows, Exception):
            raise self.knows
        return self.knows and isinstance(serde, Eight)

    def scatter_encoded(self, serde, spans):
        if self.early:
            raise self.early
        for start, end, payload in spans:
            assert len(payload) == 8, "the payload alone"
            raw = memoryview(bytearray(DEEP.chunk_bytes(end - start)))
            Eight.decode(serde, payload, DEEP, end - start, raw)
            self.scatter([Span(start, end, raw)])
            self.took += 1
        return Transfer(self.wrong)


def deep(rig, *tiers, store=True, **options):
    serde = Counting()
    r = rig(
        tiers,
        frame=frame_bytes(DEEP.chunk_bytes(CHUNK)),
        namespace=Namespace("deep", DEEP),
        serdes={"eight/1": serde},
        **options,
    )
    if store:
        r.engine.store(PROMPT, repeating())
    return r, serde


def link(medium=None):
    return tier("link", ScanningStore({} if medium is None else medium), serdes=("eight/1",))


def test_what_is_read_stays_encoded_until_the_device_has_it_and_is_promoted_so(rig):
    medium = {}
    deep(rig, link(medium))
    r, serde = deep(rig, memory(), link(medium), store=False)
    device = DecodingKV()
    assert r.engine.retrieve(PROMPT, device).hit_tokens == FULL
    assert device.agrees(repeating(), FULL)
    assert (device.took, serde.decoded) == (10, 0)
    # The next one has it from memory, where it is as small as on the link.
    again = DecodingKV()
    found = r.engine.retrieve(PROMPT, again)
    assert dict(found.tiers) == {"memory": FULL}
    assert again.agrees(repeating(), FULL)
    assert (again.took, serde.decoded) == (10, 0)
    # A device that decodes nothing has what the host decodes.
    raw = empty(PROMPT, DEEP)
    assert r.engine.retrieve(PROMPT, raw).hit_tokens == FULL
    assert raw.agrees(repeating(), FULL)
    assert serde.decoded == 10
    assert settled(r)


@each(
    "store, knows, asked",
    [(link, False, True), (link, RuntimeError("no idea"), True), (memory, True, False)],
)
def test_a_device_that_decodes_nothing_has_raw_chunks_and_is_not_asked_of_raw_memory(
    rig, store, knows, asked
):
    r, serde = deep(rig, store())
    device = DecodingKV(knows)
    assert r.engine.retrieve(PROMPT, device).hit_tokens == FULL
    assert device.agrees(repeating(), FULL)
    assert (device.took, serde.decoded, device.asked) == (0, 10 * asked, asked)
    assert settled(r)


def test_without_a_free_block_for_what_is_encoded_the_host_decodes(rig):
    r, serde = deep(rig, link(), slots=1)
    device = DecodingKV()
    assert r.engine.retrieve(PROMPT, device).hit_tokens == FULL
    assert device.agrees(repeating(), FULL)
    assert device.took + serde.decoded == 10
    assert serde.decoded > 0
    assert settled(r)


@each("how", ["wrong", "early"])
def test_what_the_device_cannot_decode_is_no_hit(rig, how):
    r, _ = deep(rig, link())
    device = DecodingKV(**{how: CorruptFrame("a stream that does not end")})
    found = r.engine.retrieve(PROMPT, device)
    assert found.hit_tokens == 0
    assert found.misses[Reason.DEVICE] == 1
    assert r.telemetry.total(CounterName.HITS) == 0
    assert settled(r)
    # The next one computes, or has it decoded by the host.
    raw = empty(PROMPT, DEEP)
    assert r.engine.retrieve(PROMPT, raw).hit_tokens == FULL
    assert raw.agrees(repeating(), FULL)


def test_what_is_prefetched_stays_encoded_once_a_device_is_known_that_decodes(rig):
    r, serde = deep(rig, link(), slots=40, prefetch=PrefetchRules(share=1.0))
    assert settled(r)

    def brought(name, device):
        assert r.engine.prefetch(name, PROMPT) == FULL
        r.engine.flush()
        assert r.engine.retrieve(PROMPT, device, lookup_id=name).hit_tokens == FULL
        assert device.agrees(repeating(), FULL)

    first, second = DecodingKV(), DecodingKV()
    brought("before one was seen", first)
    assert (first.took, serde.decoded) == (0, 10)
    brought("after it", second)
    assert (second.took, serde.decoded) == (10, 10)
    # It was left encoded for a device that turns out to be another one's.
    brought("for another one", empty(PROMPT, DEEP))
    assert serde.decoded == 20
    brought("once more", DecodingKV())
    assert r.engine.prefetch("never taken", PROMPT) == FULL
    r.engine.flush()
    assert r.engine.cancel("never taken")
    assert settled(r)
    assert r.pool.swept == 0


def test_whoever_leaves_an_encoded_read_leaves_no_block_behind(rig):
    r, _ = deep(rig, link())
    assert settled(r)
    stack, prompt = r.engine._chunks.stack, r.engine._naming.prompt(PROMPT, None)
    until = Deadline.after(r.clock, 1e6)
    tier, specs = r.tiers["link"], prompt.specs(0, 6)

    def begin():
        return stack.fetcher.begin(tier, specs, "a test", until, encoded={"eight/1"})

    arrived = begin()
    assert len(arrived) == 6
    assert all(claim.fetch.ticket.peek(until) for claim in arrived)
    for claim in arrived[:3]:
        with claim.settle("a test", until, {"eight/1"}) as lease:
            assert lease.spec.serde == "eight/1"
            assert len(lease.frame) == 2 * 4096
    for claim in (*arrived[3:], *begin()):  # the others' reads may be under way
        claim.drop()
    assert r.given_back()
    assert r.pool.swept == 0, "they were released, and not merely forgotten"
