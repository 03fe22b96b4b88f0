"""Two engines on one directory: each serves what the other stored, and nobody exceeds a budget."""

import random

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from rigging import CHUNK, FRAME, LAYOUT, tier

PROMPT = random.Random(5).choices(range(50_000), k=6 * CHUNK)


def kv(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def served(r, tokens=PROMPT):
    target = HeapKV(LAYOUT, len(tokens))
    got = r.engine.retrieve(tokens, target)
    assert target.agrees(kv(tokens), got.hit_tokens)
    return got.hit_tokens // CHUNK


def two(rig, path, frames=100):
    def one():
        return rig([tier("disk", DiskStore(path, capacity=frames * FRAME), budget=frames * FRAME)])

    return one(), one()


def stored(path):
    return [f for f in path.rglob("[!.]*") if f.is_file() and f.stat().st_size >= FRAME]


def test_each_serves_what_the_other_stored(rig, tmp_path):
    a, b = two(rig, tmp_path)
    a.engine.store(PROMPT, kv())
    assert b.engine.lookup(PROMPT).hit_tokens == len(PROMPT)
    assert served(b) == 6
    report = b.engine.store(PROMPT, kv())
    assert (report.present_tokens, report.stored_tokens) == (len(PROMPT), 0)
    assert b.engine.health().tiers[0].chunks == 6


def test_what_one_deletes_is_a_miss_for_the_other_and_is_stored_again(rig, tmp_path):
    a, b = two(rig, tmp_path)
    a.engine.store(PROMPT, kv())
    assert served(b) == 6
    a.engine.clear(PROMPT[: 2 * CHUNK])
    assert served(b) == 0
    b.engine.store(PROMPT, kv())
    assert served(b) == served(a) == 6


def test_both_together_stay_within_the_budget(rig, tmp_path):
    a, b = two(rig, tmp_path, frames=6)
    for start in range(8):
        for r in (a, b):
            prompt = PROMPT[start + 1 :][: 3 * CHUNK] + [start] * CHUNK
            r.engine.store(prompt, kv(prompt))
            assert len(stored(tmp_path)) <= 6
            assert served(r, prompt) > 0
