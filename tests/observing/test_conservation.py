"""What is counted is what happened: by the engine's answers, by its metrics and on the disk."""

import random
import re
from collections import Counter

import pytest

from depth import thorough
from hexkv.adapters.local._check import check
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.survey import frame_summary
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.plugins.memory.store import MemoryStore
from hexkv.plugins.observing.families import DROP_REASONS, MISS_REASONS
from hexkv.plugins.observing.telemetry import Totals, render
from hexkv.ports import Change, CounterName, Failed, Hit, Reason, StoreUnreachable, frame_bytes
from rigging import CHUNK, FRAME, LAYOUT, rigging, tier

STEP = 4
LONGEST = 6 * CHUNK
TIERS = ("memory", "disk")
CODEC = FrameCodec(CRC32)

# So a frame's bytes do not depend on its tokens, and bytes are known from chunks.
assert frame_bytes(LAYOUT.chunk_bytes(STEP)) == FRAME


class Unsteady(DiskStore):
    """A real disk tier that fails, or damages what it reads, as its *dice* fall."""

    def __init__(self, root, dice):
        super().__init__(root)
        self.dice = dice
        self.well = True

    def read(self, keys, sink, deadline):
        if not self.well and self.dice.random() < 0.3:
            raise StoreUnreachable("gone")
        damaging = Damaging(sink)
        outcomes = super().read(keys, damaging, deadline)
        for i, room in damaging.rooms.items():
            if not self.well and isinstance(outcomes[i], Hit) and self.dice.random() < 0.3:
                room[frame_bytes(0) + 8] ^= 1
        return outcomes

    def write(self, items, deadline):
        if not self.well and self.dice.random() < 0.5:
            error = StoreUnreachable("gone")
            done = iter(super().write(items[::2], deadline))
            return [Failed(error) if i % 2 else next(done) for i in range(len(items))]
        return super().write(items, deadline)


class Damaging:
    """A sink whose memory can be damaged once the store has filled it."""

    def __init__(self, sink):
        self.sink, self.rooms = sink, {}

    def room(self, index, size):
        self.rooms[index] = self.sink.room(index, size)
        return self.rooms[index]

    def filled(self, index, upto):
        """Nothing is verified on the way, but all at the end."""


class Books:
    """What the answers and events of an engine come to."""

    def __init__(self, r, root):
        self.r, self.root = r, root
        self.said = Counter()
        self.tokens = {}
        """Of each chunk that was ever named."""

    def name(self, tokens):
        """Learn how many tokens the chunks of a prompt have; how many chunks and tokens."""
        ends = [*range(CHUNK, len(tokens) + 1, CHUNK)]
        last = len(tokens) // STEP * STEP
        ends += [last] * (last > (ends[-1] if ends else 0))
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        self.tokens |= zip(self.r.engine.chunk_keys(tokens), sizes, strict=True)
        return len(ends), sum(sizes)

    def retrieve(self, tokens, **options):
        got = self.r.engine.retrieve(tokens, HeapKV(LAYOUT, len(tokens)), **options)
        chunks, asked = self.name(tokens)
        missed = sum(got.misses.values())
        self.said["lookup_tokens"] += asked
        self.said["misses"] += missed
        for where, loaded in got.tiers.items():
            self.said["hit_tokens", where] += loaded
        self.said["missed_tokens"] += asked - got.loaded_tokens
        for reason, count in got.misses.items():
            self.said["misses", reason.value] += count
        assert chunks <= -(-got.loaded_tokens // CHUNK) + missed <= chunks + 1

    def store(self, tokens):
        self.name(tokens)
        got = self.r.engine.store(tokens, HeapKV(LAYOUT, len(tokens)).compute(tokens))
        self.said["present_tokens"] += got.present_tokens

    def clear(self, tokens):
        for where, chunks in self.r.engine.clear(tokens).tiers.items():
            self.said["cleared", where] += chunks

    def differences(self):
        """Where answers, events, metrics and the disk say different things."""
        page = Counter()
        for line in render(self.r.engine, self.r.telemetry).splitlines():
            if not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name, labels = re.fullmatch(r"hexkv_(\w+?)(?:_total)?(\{.*\})?", series).groups()
                found = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
                label = found.get("tier") or found.get("reason")
                if not {"le", "lane"} & found.keys():
                    page[name] += float(value)
                    if label:
                        page[name, label] += float(value)
        held = {where: Counter() for where in TIERS}
        for event in self.r.events.events:
            held[event.tier].update(
                dict.fromkeys(event.keys, 1 if event.change is Change.STORED else -1)
            )
        gone = {where: Counter() for where in TIERS}
        for event in self.r.events.events:
            if event.change is Change.REMOVED:
                gone[event.tier]["chunks"] += len(event.keys)
                gone[event.tier]["tokens"] += sum(self.tokens[key] for key in event.keys)
        checked = check(str(self.root), CODEC)
        frames = [header for _, header in frame_summary(self.root, CODEC).frames]
        assert not checked.problems
        same = {
            "lookups": (page["lookups"], page["hits"] + page["misses"]),
            "lookup tokens": (page["lookup_tokens"], page["hit_tokens"] + page["missed_tokens"]),
            "tokens asked for": (page["lookup_tokens"], self.said["lookup_tokens"]),
            "tokens missed": (page["missed_tokens"], self.said["missed_tokens"]),
            "misses": (page["misses"], self.said["misses"]),
            "present tokens": (page["present_tokens"], self.said["present_tokens"]),
            "frames on the disk": (page["tier_chunks", "disk"], checked.frames),
            "bytes on the disk": (page["tier_used_bytes", "disk"], checked.bytes),
            "bytes written": (
                page["written_bytes", "disk"] - gone["disk"]["chunks"] * FRAME,
                checked.bytes,
            ),
            "bytes read": (
                page["read_bytes", "disk"],
                page["hits", "disk"] * FRAME + page["wasted_bytes", "disk"],
            ),
            "tokens on the disk": (
                page["stored_tokens", "disk"] - gone["disk"]["tokens"],
                sum(header.tokens for header in frames),
            ),
        }
        for reason in MISS_REASONS:
            same[f"missed: {reason}"] = page["misses", reason], self.said["misses", reason.value]
        for where in TIERS:
            left = page["evicted", where] + page["corrupt", where] + self.said["cleared", where]
            here = sum(self.tokens[key] * count for key, count in held[where].items())
            kept = page["stored_tokens", where] - gone[where]["tokens"]
            same |= {
                f"hits on {where}": (page["hit_tokens", where], self.said["hit_tokens", where]),
                f"left {where}": (left, gone[where]["chunks"]),
                f"on {where}": (page["stored", where] - left, page["tier_chunks", where]),
                f"tokens on {where}": (kept, here),
            }
        return {what: pair for what, pair in same.items() if pair[0] != pair[1]}


def play(root, steps, seed=7):
    """Random calls with faults; what does not add up, looked at again and again."""
    dice = random.Random(seed)
    found = {}
    with rigging() as build:
        disk = Unsteady(root, dice)
        plans = [
            tier("memory", MemoryStore(ManualClock()), budget=6 * FRAME),
            tier("disk", disk, 40 * FRAME, retries=1),
        ]
        totals = Totals()
        r = build(plans, slots=24, chunker=PrefixChunker(CHUNK, STEP), telemetry=totals)
        assert r.engine.flush()
        books = Books(r, root)
        for number in range(steps):
            disk.well = dice.random() < 0.7
            # Prompts of a few families, which part at some chunk.
            fork = dice.randrange(LONGEST)
            tokens = [dice.randrange(3) * 1000] * fork
            tokens = [token + i for i, token in enumerate(tokens)]
            tokens += [5000 + dice.randrange(2)] * dice.randrange(LONGEST - fork)
            call = dice.choice(["store", "store", "retrieve", "retrieve", "prefetch", "clear"])
            if call == "prefetch":
                r.engine.prefetch("p", tokens)
                if dice.random() < 0.5:
                    books.retrieve(tokens, lookup_id="p")
                r.engine.cancel("p")
            elif call != "clear" or dice.random() < 0.2:
                getattr(books, call)(tokens)
            r.clock.advance(2)
            if number % 97 == 0 or number == steps - 1:
                disk.well = True
                assert r.at_rest()
                found |= books.differences()
        reasons = {(key[0], key[2]) for key in totals._counts}
        why = {reason for name, reason in reasons if name is CounterName.MISSES}
        assert why <= set(MISS_REASONS)
        assert {Reason.ABSENT, Reason.BEHIND_A_MISS, Reason.CORRUPT} < why
        assert {why for name, why in reasons if name is CounterName.DROPPED} <= {*DROP_REASONS}
        assert totals.total(CounterName.EVICTED, tier="disk") > steps / 20
        assert totals.total(CounterName.WASTED_BYTES) > 0
    return found


@pytest.mark.parametrize("steps", [400, *thorough(10_000)])
def test_answers_metrics_and_the_disk_agree_in_chunks_tokens_and_bytes(tmp_path, steps):
    assert play(tmp_path, steps) == {}


def hits_twice(counter, amount, tier, reason):
    """A hit too many."""
    return amount + (counter is CounterName.HITS and amount > 2), tier


def chunks_for_tokens(counter, amount, tier, reason):
    """Missed tokens in chunks."""
    return -(-amount // CHUNK) if counter is CounterName.MISSED_TOKENS else amount, tier


def forgotten_evictions(counter, amount, tier, reason):
    """Of victims the first alone."""
    return min(amount, 1) if counter is CounterName.EVICTED else amount, tier


def forgotten_waste(counter, amount, tier, reason):
    """Nothing is ever read in vain."""
    return amount * (counter is not CounterName.WASTED_BYTES), tier


def fastest_tier(counter, amount, tier, reason):
    """All hits are of the fastest tier."""
    hits = counter in (CounterName.HITS, CounterName.HIT_TOKENS)
    return amount, "memory" if hits else tier


def full_chunks(counter, amount, tier, reason):
    """Chunks count as full ones, whatever was stored."""
    return -(-amount // CHUNK) * CHUNK if counter is CounterName.STORED_TOKENS else amount, tier


@pytest.mark.parametrize(
    "wrong",
    [
        hits_twice,
        *thorough(
            fastest_tier, chunks_for_tokens, forgotten_evictions, forgotten_waste, full_chunks
        ),
    ],
)
def test_who_miscounts_is_found_out(tmp_path, monkeypatch, wrong):
    real = Totals.count

    def count(self, counter, amount, *, tier="", reason=""):
        amount, tier = wrong(counter, amount, tier, reason)
        real(self, counter, amount, tier=tier, reason=reason)

    monkeypatch.setattr(Totals, "count", count)
    monkeypatch.setattr(Totals, "total", lambda self, *_, **__: 1 << 30)
    assert play(tmp_path, 400)
