"""Tiers that are slower or faster than they were: what is written to them, and who reads them."""

from contextlib import closing
from functools import partial
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dict_store import ScanningStore
from hexkv.blending.segments import SegmentRules, Segments
from hexkv.contracts.doubles import ManualClock, RecordingTelemetry, chunk_key
from hexkv.contracts.faults import Seeded, SlowStore
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.memory.pool import BlockPool
from hexkv.core.tiers.read.encoding import form_on
from hexkv.core.tiers.read.lookups import KEPT
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.stores.bandwidth import PROBE_EVERY, Encoding, rate_to_pay
from hexkv.core.tiers.tier import Tier
from hexkv.plugins.threads import Threads
from hexkv.ports import ChunkSpec, CounterName, Deadline, Namespace, Reason, StoreError, frame_bytes
from layered import DEEP, FULL, PROMPT, empty, memory, settled
from media.eight_serde import Eight, repeating
from rigging import CHUNK, Heap, tier

RAW_FRAME = frame_bytes(DEEP.chunk_bytes(CHUNK))
SMALL_FRAME = frame_bytes(8)
DECODED = 1e8
"""Bytes of KV per second that come out of the serde of these tests."""


class Costly(Eight):
    """Takes its time to decode."""

    def __init__(self, clock):
        self._clock = clock

    def decode(self, payload, layout, tokens, into):
        self._clock.advance(len(into) / DECODED)
        super().decode(payload, layout, tokens, into)


class Line:
    """An engine over a link that takes as long as it is told, in virtual time."""

    def __init__(self, rig, *tiers, serdes=("raw", "eight/1"), **options):
        self.clock = ManualClock()
        self.medium = {}
        self.store = SlowStore(ScanningStore(self.medium), 0.0, spend=self.clock.advance)
        self.serde = Costly(self.clock)
        self.rig = rig(
            [*tiers, tier("link", self.store, serdes=serdes)],
            clock=self.clock,
            frame=RAW_FRAME,
            namespace=Namespace("deep", DEEP),
            serdes={"eight/1": self.serde},
            **options,
        )
        self.engine = self.rig.engine

    def takes(self, seconds):
        self.store.plan = Seeded(0, seconds=(seconds, seconds))

    def keep(self, number):
        """Store one more prompt; the lengths of the frames that it got."""
        before = set(self.medium)
        tokens = [token + number for token in PROMPT]
        self.engine.store(tokens, repeating(tokens))
        return {len(self.medium[key]) for key in set(self.medium) - before}

    def load(self, tokens=PROMPT):
        target = empty(tokens, DEEP)
        got = self.engine.retrieve(tokens, target)
        assert target.agrees(repeating(tokens), got.hit_tokens)
        return got


def test_a_fast_link_gets_raw_chunks_and_a_slow_one_encoded_ones(rig):
    line = Line(rig)
    assert line.keep(0) == {RAW_FRAME}, "nothing was measured yet"
    line.takes(1e-4)
    assert line.load().hit_tokens == FULL
    assert line.keep(1) == {RAW_FRAME}
    line.takes(0.1)
    assert line.load().hit_tokens == FULL
    assert line.keep(2) == {SMALL_FRAME}
    line.takes(1e-6)
    for _ in range(200):
        assert line.load().hit_tokens == FULL
    assert line.keep(3) == {RAW_FRAME}
    assert settled(line.rig)


def test_one_form_is_kept_to_however_slow_the_link_is(rig):
    line = Line(rig, serdes=("eight/1",))
    line.takes(0.1)
    for number in range(3):
        assert line.keep(number) == {SMALL_FRAME}
        assert line.load().hit_tokens == FULL


def test_a_form_that_cannot_be_measured_is_not_chosen(rig):
    line = Line(rig)

    def fail(*arguments):
        raise StoreError("out of order")

    line.serde.encode = fail
    line.takes(0.1)
    for number in range(3):
        assert line.keep(number) == {RAW_FRAME}
        assert line.load().hit_tokens == FULL
    assert settled(line.rig)


def held_by_key(line):
    """Why the chunks of the prompt are not held, which a match says, too."""
    space = line.engine.key_space()
    keys = line.engine.chunk_keys(PROMPT)
    until = Deadline.after(line.rig.clock, 60.0)
    assert set(line.engine.chunks.match(keys, until)) == {None}
    specs = [ChunkSpec(key, space.identity, space.layout, CHUNK) for key in keys]
    with line.engine.chunks.hold(specs, "host", until) as hold:
        assert hold.wait(until)
        return set(hold.reasons)


def test_what_is_computed_sooner_is_not_loaded_until_it_is_worth_it_again(rig):
    line = Line(rig, compute_rate=1000.0)
    line.keep(0)
    line.takes(5.0)
    assert line.load().hit_tokens == FULL, "nobody can know yet"
    got = line.load()
    assert (got.hit_tokens, got.misses) == (0, {Reason.SLOWER: 1, "behind a miss": 9})
    assert line.engine.lookup(PROMPT).hit_tokens == 0
    assert line.engine.prefetch("one", PROMPT) == 0
    with line.engine.retrieve_layers(PROMPT, empty(PROMPT, DEEP)) as layers:
        assert list(layers) == list(range(9))
        assert layers.result().misses == got.misses
    why = line.engine.explain(PROMPT)
    assert (why.hit_tokens, why.diverges.tiers["link"].reason) == (0, Reason.SLOWER)
    assert held_by_key(line) == {Reason.SLOWER}
    assert line.engine.pin(PROMPT, "me") == FULL, "it is there all the same"
    assert line.engine.unpin("me") == 10

    line.takes(1e-3)
    hits = [line.engine.lookup(PROMPT).hit_tokens for _ in range(PROBE_EVERY - 3)]
    assert hits == [0] * (PROBE_EVERY - 4) + [FULL], "a request was one question"
    assert line.engine.explain(PROMPT).hit_tokens == FULL
    assert line.load().hit_tokens == FULL, "what the lookup promised"
    assert line.load().hit_tokens == FULL
    counts = line.rig.telemetry
    assert counts.total(CounterName.LOOKUPS) == counts.total(CounterName.HITS) + counts.total(
        CounterName.MISSES
    )
    assert settled(line.rig)


def test_a_lookup_and_its_retrieve_are_one_question_and_have_one_answer(rig):
    line = Line(rig, chunker=PrefixChunker(CHUNK, 4))
    prompt = PROMPT[: FULL + 4]
    line.engine.store(prompt, repeating(prompt))
    line.takes(5.0)
    assert line.load(prompt).hit_tokens == len(prompt), "no rate is known"
    line.engine.computes(1000.0)
    pairs = [
        (line.engine.lookup(prompt).hit_tokens, line.load(prompt).hit_tokens)
        for _ in range(2 * PROBE_EVERY)
    ]
    assert pairs == ([(0, 0)] * (PROBE_EVERY - 1) + [(len(prompt), len(prompt))]) * 2
    line.engine.computes(1e-3)
    assert line.engine.lookup(prompt).hit_tokens == len(prompt)
    line.engine.computes(1000.0)
    assert line.load(prompt).hit_tokens == len(prompt), "as its lookup found"
    assert line.load(prompt).hit_tokens == 0
    line.engine.computes(1e-3)
    assert line.engine.lookup(prompt).hit_tokens == len(prompt)
    line.engine.computes(1000.0)
    line.clock.advance(KEPT + 1)
    assert line.load(prompt).hit_tokens == 0, "that is long ago"


def test_what_a_faster_tier_holds_is_loaded_however_slow_the_others_are(rig):
    line = Line(rig, memory(), compute_rate=1000.0)
    line.keep(0)
    line.engine.clear(PROMPT, tiers=["memory"])
    line.takes(5.0)
    assert line.load().tiers == {"link": FULL}
    assert line.load().tiers == {"memory": FULL}
    line.engine.clear(tiers=["memory"])
    assert line.load().misses == {Reason.SLOWER: 1, "behind a miss": 9}
    other = [token + 1 for token in PROMPT]
    assert line.load(other).misses == {"absent": 10}, "the index knows that it is not there"


def test_what_is_computed_again_is_used_and_stored_where_it_is_loaded_sooner(rig):
    line = Line(rig, memory())
    line.keep(0)
    line.engine.clear(PROMPT, tiers=["memory"])
    line.takes(5.0)
    assert line.load().hit_tokens == FULL, "no rate is known"
    line.engine.clear(PROMPT, tiers=["memory"])
    line.engine.computes(1000.0)
    assert line.load().misses == {Reason.SLOWER: 1, "behind a miss": 9}
    report = line.engine.store(PROMPT, repeating(PROMPT))
    assert report.present_tokens < FULL
    assert line.load().tiers == {"memory": FULL}
    assert line.engine.store(PROMPT, repeating(PROMPT)).present_tokens == FULL
    line.engine.clear(PROMPT, tiers=["memory"])
    line.engine.computes(1e-3)
    assert line.load().hit_tokens == FULL, "a slower model, or a longer prompt"


def test_a_configured_rate_overrides_a_measured_one_and_without_any_all_is_loaded(rig):
    line = Line(rig, compute_rate=1000.0)
    line.engine.computes(1e-3)
    line.keep(0)
    line.takes(5.0)
    line.load()
    assert line.load().misses == {Reason.SLOWER: 1, "behind a miss": 9}
    line = Line(rig)
    line.keep(0)
    line.takes(9.0)
    for _ in range(5):
        assert line.load().hit_tokens == FULL


def test_a_segment_is_used_where_it_comes_sooner_than_what_it_saves_is_computed(rig):
    """A prefix saves all the work on its tokens, a segment what is not computed all the same."""
    line = Line(rig, compute_rate=1000.0, segments=partial(Segments, rules=SegmentRules()))
    segments = line.engine.segments
    segments.store(PROMPT[:FULL], repeating(PROMPT[:FULL]))
    line.keep(0)
    line.takes(0.1)
    prompt = [1, *PROMPT[:FULL]]
    got = segments.retrieve(prompt, empty(prompt, DEEP))
    assert got.parts.reused == FULL
    rate = line.rig.tiers["link"].link.tokens_rate
    assert 1_000 < rate < 2_000, "as this test needs it"
    found = [segments.find(prompt, recomputed=0.5).reused for _ in range(PROBE_EVERY)]
    assert found == [0] * (PROBE_EVERY - 1) + [FULL], "one request shows whether that changed"
    assert segments.find(prompt, recomputed=0.0).reused == FULL
    assert line.load().hit_tokens == FULL
    assert rate_to_pay(1_000, 0.8) == 1_250
    assert rate_to_pay(1_000, 0.0) == inf
    assert segments.find(prompt, recomputed=1.0).reused == 0, "nothing would be saved"


POOL = BlockPool(Heap(RAW_FRAME), RAW_FRAME, executor=Threads())
rates = st.one_of(st.floats(0, 1e-300), st.floats(1e-3, 1e12), st.just(inf))
measured = st.lists(st.tuples(st.floats(0.01, 50), rates), max_size=4)


def picked(link_rate, forms):
    """What a tier with this link gets, after its serdes were seen to do so and so."""
    clock = ManualClock()
    names = [f"form{i}" for i in range(len(forms))]
    serdes = {name: Costly(clock) for name in names}
    for name, serde in serdes.items():
        serde.name = name
    runtime = TierRuntime(
        pool=POOL,
        codec=FrameCodec(CRC32),
        clock=clock,
        executor=Threads(),
        telemetry=RecordingTelemetry(),
        serdes=serdes,
    )
    place = Tier(tier("link", ScanningStore({}), serdes=("raw", *names)), runtime)
    place.link.began(0.0)
    place.link.arrived(1.0, link_rate)
    for name, (ratio, decode) in zip(names, forms, strict=True):
        runtime.speeds.encoded(name, ratio, 1.0)
        runtime.speeds.decoded(name, decode / place.rules.lane.workers, now := clock.now(), now + 1)
    spec = ChunkSpec(chunk_key("one"), "identity", DEEP, CHUNK)
    with (
        closing(place),
        POOL.lease(spec.raw_bytes, "test", Deadline.after(clock, 1)) as lease,
    ):
        return form_on(runtime, place, lease, spec), names


@given(rates.filter(bool), measured)
def test_a_tier_gets_what_the_rule_chooses(link_rate, forms):
    name, names = picked(link_rate, forms)
    known = [Encoding("raw"), *(Encoding(n, *form) for n, form in zip(names, forms, strict=True))]
    size = DEEP.chunk_bytes(CHUNK)
    best = min(form.seconds(size, link_rate) for form in known)
    (got,) = [form for form in known if form.serde == name]
    assert got.seconds(size, link_rate) == pytest.approx(best, rel=1e-9)


@given(rates.filter(bool), rates.filter(bool), measured)
def test_a_slower_link_never_gets_a_larger_form(one, other, forms):
    slow, fast = sorted((one, other))
    (at_slow, names), (at_fast, _) = picked(slow, forms), picked(fast, forms)
    known = {"raw": Encoding("raw")} | {
        name: Encoding(name, *form) for name, form in zip(names, forms, strict=True)
    }
    if known[at_slow].seconds(1, slow) < 0.999999 * known[at_fast].seconds(1, slow):
        assert known[at_slow].ratio >= known[at_fast].ratio * 0.999999
