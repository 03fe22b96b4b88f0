"""To cut and hash a prompt takes time as well: it counts, it is bounded, and it gives up."""

import pytest

from dict_store import DictStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.engine.engine import Deadlines
from hexkv.core.keys.hashing import SHA256
from hexkv.core.keys.tokens import AT_ONCE, pack, pack_within
from hexkv.core.requests import prefetch
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import (
    CounterName,
    Deadline,
    DType,
    HashFunction,
    InvalidTokens,
    KVLayout,
    Namespace,
    Reason,
)
from rigging import tier

SMALL = KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=1)
NAMESPACE = Namespace("toy", SMALL)
CHUNK = 16
CHUNKS = 2000
PROMPT = list(range(CHUNKS * CHUNK + 3))
LIMIT = 1.0


@pytest.fixture
def slow(rig):
    """An engine whose clock moves by a hundredth of every deadline with each chunk hashed."""
    clock, hashed = ManualClock(), []

    def digest(data):
        hashed.append(len(data))
        clock.advance(LIMIT / 100)
        return SHA256.digest(data)

    limits = Deadlines(lookup=LIMIT, retrieve=LIMIT, store=LIMIT)
    r = rig(
        [tier("slow", DictStore({}))],
        clock=clock,
        namespace=NAMESPACE,
        algorithm=HashFunction("sha256", digest),
        deadlines=limits,
    )
    hashed.clear()
    return r, hashed


def window():
    return HeapKV(SMALL, len(PROMPT))


def by_layers(engine):
    with engine.retrieve_layers(PROMPT, window(), skip=CHUNK) as layers:
        assert list(layers) == [0]
        return layers.result()


def stored_by_layers(engine):
    with engine.store_layers(PROMPT, window()) as layers:
        layers.layer_done(0)
        return layers.result()


def test_every_call_gives_up_naming_at_its_deadline(slow):
    r, hashed = slow
    engine = r.engine
    calls = {
        "lookup": lambda: engine.lookup(PROMPT),
        "prefetch": lambda: engine.prefetch("a", PROMPT),
        "retrieve": lambda: engine.retrieve(PROMPT, window(), skip=CHUNK),
        "layers": lambda: by_layers(engine),
        "store": lambda: engine.store(PROMPT, window()),
        "stored": lambda: stored_by_layers(engine),
        "pin": lambda: engine.pin(PROMPT, "me"),
        "clear": lambda: engine.clear(PROMPT),
        "explain": lambda: engine.explain(PROMPT),
    }
    said = {}
    for name, call in calls.items():
        hashed.clear()
        said[name] = call()
        first = CHUNKS // 16 if name == "retrieve" else 0  # named by themselves
        least = prefetch.AT_ONCE * 100 if name == "prefetch" else 100  # chunks until its deadline
        assert least <= len(hashed) <= least + 64 + first, f"{name} goes on, or is over too soon"
    assert (said["lookup"].tokens, said["lookup"].hit_tokens) == (len(PROMPT), 0)
    assert said["prefetch"] == said["pin"] == 0
    for got in (said["retrieve"], said["layers"]):
        assert got.hit_tokens == CHUNK
        assert got.loaded_tokens == 0
        assert got.misses == {Reason.TIMED_OUT: 1, Reason.BEHIND_A_MISS: CHUNKS - 2}
    lookups, misses = r.telemetry.total(CounterName.LOOKUPS), r.telemetry.total(CounterName.MISSES)
    assert lookups == misses == 2 * (CHUNKS - 1)
    for report in (said["store"], said["stored"]):
        assert report.dropped_tokens == CHUNKS * CHUNK
    assert not said["clear"].complete
    assert said["clear"].left == {"slow": "timed out"}
    assert said["explain"].diverges.reason is Reason.TIMED_OUT
    assert said["explain"].chunks == CHUNKS


def test_a_prefetch_that_is_asked_for_again_names_nothing(slow):
    r, hashed = slow
    assert r.engine.prefetch("b", PROMPT[: 2 * CHUNK]) in (None, 0)
    assert len(hashed) == 2
    for _ in range(3):
        r.engine.prefetch("b", PROMPT[: 2 * CHUNK])
    assert len(hashed) == 2


def test_a_long_list_is_packed_in_pieces_that_ask_for_the_time():
    clock = ManualClock()
    tokens = list(range(2 * AT_ONCE + 5))
    later = Deadline.after(clock, 1.0)
    assert pack_within(tokens, later) == pack(tokens)
    clock.advance(1.0)
    assert pack_within(tokens, later) is None
    tokens[AT_ONCE + 3] = -1
    with pytest.raises(InvalidTokens, match=f"position {AT_ONCE + 3} "):
        pack_within(tokens, Deadline.after(clock, 1.0))


def test_a_prompt_longer_than_configured_is_refused(tmp_path):
    settings = {"chunk": {"size": CHUNK, "longest_prompt": 64}, "pool": {"bytes": "1MiB"}}
    with build(load(None, {}, settings), NAMESPACE) as engine:
        assert engine.lookup(range(64)).tokens == 64
        for call in (
            engine.lookup,
            engine.chunk_keys,
            engine.explain,
            lambda tokens: engine.prefetch("a", tokens),
            lambda tokens: engine.store(tokens, HeapKV(SMALL, len(tokens))),
            lambda tokens: engine.segments.store(tokens, HeapKV(SMALL, len(tokens))),
            engine.segments.register,
            engine.segments.forget,
            engine.segments.find,
            engine.segments.cut,
        ):
            with pytest.raises(InvalidTokens, match=r"65 tokens .* 64, .*longest_prompt"):
                call(range(65))
