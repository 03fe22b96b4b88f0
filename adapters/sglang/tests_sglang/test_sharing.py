"""What other engines stored is found where the layouts agree; else the difference has a name."""

import pytest
import torch
from sglang.srt.mem_cache.utils import get_hash_str

from engines.sglang.sglang_pools import (
    HEADS,
    LAYERS,
    PAGE,
    PATIENT,
    VALUE,
    WIDTH,
    backend,
    extra,
    host_pool,
    slots,
)
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import DType, KVLayout, Namespace

TOKENS = list(range(5, 5 + 6 * PAGE))
KEYS = get_hash_str(TOKENS, page_size=PAGE)
LAYOUT = KVLayout.attention(
    DType.FLOAT16, layers=LAYERS, heads=HEADS, key_width=WIDTH, value_width=VALUE
)


def another(root, layout=LAYOUT):
    """An engine of any host that names tokens, not pages."""
    settings = {
        "model": {"weights": "one"},
        "chunk": {"size": PAGE, "seeded": False},
        "pool": {"bytes": "4MiB"},
        "deadlines": PATIENT,
        "tiers": [{"store": "disk", "settings": {"root": str(root)}}],
    }
    return build(load(environ={}, overrides=settings), Namespace("tiny", layout))


def test_pages_of_sglang_and_tokens_of_another_host_are_the_same_chunks(tmp_path):
    half = TOKENS[: 3 * PAGE]
    computed = HeapKV(LAYOUT, len(half)).compute(half)
    pool = host_pool("mha", "page_first")
    with another(tmp_path) as engine:
        engine.store(half, computed)
    with backend(pool, extra(tmp_path, namespace="canonical")) as storage:
        assert storage.batch_exists(KEYS) == 3
        assert storage.batch_get_v1(KEYS[:3], slots(4, 5, 6)) == [True] * 3
        assert storage.batch_set_v1(KEYS[:3], slots(4, 5, 6)) == [True] * 3
        assert storage.batch_set_v1(KEYS[3:], slots(4, 5, 6)) == [True] * 3
    with another(tmp_path) as engine:
        window = HeapKV(LAYOUT, len(TOKENS))
        assert engine.retrieve(TOKENS, window).hit_tokens == len(TOKENS)
        assert window.agrees(computed, 3 * PAGE)


@pytest.mark.parametrize(
    ("shape", "namespace", "fields"),
    [
        ({"dtype": torch.bfloat16}, "canonical", {"layout.dtype"}),
        ({"heads": 1}, "canonical", {"layout.groups"}),
        ({}, "own", {"extra.engine", "extra.page"}),
    ],
)
def test_where_layouts_or_modes_differ_nothing_is_found_and_the_field_is_named(
    shape, namespace, fields, tmp_path
):
    pool = host_pool("mha", "page_first", **shape)
    with backend(pool, extra(tmp_path, namespace=namespace)) as storage:
        theirs = storage.namespace
    with another(tmp_path) as engine:
        engine.store(TOKENS, HeapKV(LAYOUT, len(TOKENS)).compute(TOKENS))
        why = engine.explain(TOKENS, namespace=theirs)
        assert why.hit_tokens == 0
        [other] = why.elsewhere
        assert {difference.field for difference in other.differs} == fields
    with backend(pool, extra(tmp_path, namespace=namespace)) as storage:
        assert storage.batch_exists(KEYS) == 0
