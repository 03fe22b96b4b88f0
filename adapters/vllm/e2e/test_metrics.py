"""What vLLM's own ``/metrics`` says of hexkv: each tier and each reason, in tokens."""

import uuid

import pytest

from engines.vllm.vllm_engines import prompt
from engines.vllm.vllm_frames import damage, frames

pytestmark = pytest.mark.thorough

CHUNK = 64
CHUNKS = 10
TOKENS = CHUNKS * CHUNK + 9
LOST = 5
"""The chunk of a prompt whose frame is damaged."""


def test_the_page_has_hits_by_tier_misses_by_reason_fill_and_breakers(
    start, same, redis_server, tmp_path
):
    redis = {
        "store": "redis",
        "settings": {"url": redis_server.url, "prefix": f"{uuid.uuid4().hex}:"},
        "breaker": {"failures": 1, "pause": 600.0, "longest_pause": 600.0},
        "retries": 0,
    }
    disk = {"store": "disk", "settings": {"root": str(tmp_path)}}
    tiers = [{"store": "memory"}, disk, redis]
    engine = start({"chunk": {"size": CHUNK}, "pool": {"bytes": "256MiB"}, "tiers": tiers})
    words = {name: prompt(name, TOKENS) for name in ("memory", "disk", "redis", "damaged")}
    whole = CHUNKS * CHUNK
    for name in ("memory", "disk", "redis"):
        assert same(engine, words[name]) == [0]
    engine.flush()
    before = frames(tmp_path)
    assert same(engine, words["damaged"][: LOST * CHUNK + 1]) == [0]
    engine.flush()
    already = frames(tmp_path)
    assert same(engine, words["damaged"][: (LOST + 1) * CHUNK + 1]) == [LOST * CHUNK]
    engine.flush()
    [spoiled] = frames(tmp_path) - already
    assert len(already - before) == LOST
    assert same(engine, words["damaged"]) == [(LOST + 1) * CHUNK]
    engine.flush()
    earlier = engine.samples()
    assert engine.forget(words["disk"], "memory") == [CHUNKS]
    assert engine.forget(words["redis"], "memory", "disk") == [CHUNKS]
    assert engine.forget(words["damaged"], "memory", "redis") == [CHUNKS]
    damage(spoiled)
    for name in ("memory", "disk", "redis"):
        assert same(engine, words[name]) == [whole]
    same(engine, words["damaged"])
    engine.flush()
    redis_server.kill()
    for name in ("new", "newer"):
        assert same(engine, prompt(name, TOKENS)) == [0]
    engine.flush()
    same(engine, prompt("short", 9))  # a step that says how the tiers are by now
    said = engine.samples()

    def grown(name, *labels):
        return said[name][labels] - earlier.get(name, {}).get(labels, 0)

    assert grown("hit_tokens_total", "memory") == whole
    assert grown("hit_tokens_total", "disk") == whole + LOST * CHUNK
    assert grown("hit_tokens_total", "redis") == whole
    assert grown("missed_tokens_total", "corrupt") == CHUNK
    behind = CHUNKS - LOST - 1 + 2 * (CHUNKS - 1)
    assert grown("missed_tokens_total", "behind a miss") == behind * CHUNK
    assert said["missed_tokens_total"]["absent",] == 3 * whole + whole
    assert grown("missed_tokens_total", "tier off") == 2 * CHUNK
    hit, missed = said["hit_tokens_total"].values(), said["missed_tokens_total"].values()
    assert said["lookup_tokens_total"][()] == sum(hit) + sum(missed)
    assert said["corrupt_chunks_total"]["disk",] == 1
    assert said["breaker_opened_total"]["redis", "failures"] >= 1
    assert said["tier_breaker"]["redis", "read"] == 2
    assert said["tier_breaker"]["disk", "read"] == said["tier_breaker"]["memory", "write"] == 0
    held = sum(file.stat().st_size for file in frames(tmp_path))
    assert said["tier_used_bytes"]["disk",] == held
    # What was damaged was stored anew, where it was forgotten, too.
    assert said["tier_stored_tokens_total"]["redis",] == 4 * whole + CHUNK
