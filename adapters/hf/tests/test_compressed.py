"""Compressed memory under a real model: more is found, and the answers are the same."""

from random import Random

import pytest
import torch

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.trained import trained
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import frame_bytes

CHUNK = 128
TEXT = "".join(f"Line {n}: the tide went out, and {n * 7} gulls came. " for n in range(99))
DOCUMENTS = [list(TEXT.encode()[start : start + 2 * CHUNK]) for start in range(0, 2400, 300)]
ASKED = [*range(8), *Random(1).choices(range(8), [1 / rank for rank in range(1, 9)], k=24)]
QUESTION = list(b"\nWhat came?")


@pytest.mark.thorough
def test_a_half_that_is_compressed_serves_the_same_answers_and_a_small_one_more_of_them():
    model = trained("text").to(torch.bfloat16)
    namespace = namespace_of_model(model)
    frame = frame_bytes(namespace.layout.chunk_bytes(CHUNK))
    size = 8 * frame  # four of eight documents
    plain = [{"store": "memory", "budget": size}]
    half = {"store": "memory", "budget": size // 2}
    rest = {"store": "heap", "budget": size - size // 2, "write": "evicted"}
    cases = {"plain": plain} | {
        serde: [half, rest | {"serde": serde}] for serde in ("zstd", "cachegen")
    }
    found = {}
    for name, tiers in cases.items():
        wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": size + 16 * frame}, "tiers": tiers}
        long = dict.fromkeys(("retrieve", "store", "lookup"), 60.0)
        settings = load(None, {}, wanted | {"deadlines": long, "compute_rate": 1e-3})
        with build(settings, namespace) as engine:
            cached, hits, encoded, first = CachedModel(model, engine), 0, 0, []
            for document in ASKED:
                answer = cached.prefill(DOCUMENTS[document] + QUESTION)
                assert engine.flush(60.0)
                hits += answer.hit_tokens
                encoded += answer.tiers.get("heap", 0)
                first.append(int(answer.logits.argmax()))
            assert sum(tier.used_bytes for tier in engine.health().tiers) <= size
            found[name] = hits, encoded, first
    assert found["cachegen"][0] > found["plain"][0]
    assert found["zstd"][1] > 0
    said = dict(zip(ASKED, found["plain"][2], strict=True))
    assert [said[document] for document in ASKED] == found["zstd"][2], "computed or loaded"
