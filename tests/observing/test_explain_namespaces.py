"""A miss under one namespace of what lies under another: the fields in which they differ."""

import json
import random
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.vllm.configuration.windows import LayerShape, pages_of
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.admin.explain import differing
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import DType, ParallelSlice
from rigging import CHUNK, LAYOUT, NAMESPACE, tier

PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK + 5)


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def memory():
    return tier("memory", MemoryStore(ManualClock()))


@each(
    ("change", "difference"),
    [
        ({"model": "toy-2"}, "model 'toy-2' != 'toy'"),
        ({"revision": "2"}, "revision '2' != '1'"),
        ({"lora": "poet"}, "lora 'poet' != ''"),
        ({"parallel": ParallelSlice(0, 2)}, "parallel [0,2] != [0,1]"),
        ({"extra": (("quant", "int4"),)}, "extra.quant 'int4' != nothing"),
        (
            {"layout": replace(LAYOUT, dtype=DType.BFLOAT16)},
            "layout.dtype 'bfloat16' != 'float16'",
        ),
    ],
)
def test_the_field_in_which_a_namespace_differs_is_named(rig, change, difference):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    told = r.engine.explain(PROMPT, namespace=replace(NAMESPACE, **change))
    (other,) = told.elsewhere
    assert other.chunks == 6
    assert [str(d) for d in other.differs] == [difference]
    assert f"namespace differs in {difference}" in str(told)


def test_of_salts_only_digests_are_told(rig):
    r = rig([memory()])
    tenant = replace(NAMESPACE, salt="hunter2")
    r.engine.store(PROMPT, computed(), namespace=tenant)
    told = r.engine.explain(PROMPT, namespace=replace(NAMESPACE, salt="swordfish"))
    (other,) = told.elsewhere
    assert [d.field for d in other.differs] == ["salt"]
    assert "digest" in other.differs[0].ours
    assert "hunter2" not in repr(told)
    assert "swordfish" not in repr(told)


def test_a_namespace_that_holds_no_more_is_not_named(rig):
    r = rig([memory()])
    r.engine.store(PROMPT[: 2 * CHUNK], computed(PROMPT[: 2 * CHUNK]))
    other = replace(NAMESPACE, model="other")
    r.engine.store(PROMPT[: 2 * CHUNK], computed(PROMPT[: 2 * CHUNK]), namespace=other)
    told = r.engine.explain(PROMPT)
    assert (told.hit_chunks, told.elsewhere) == (2, ())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text("abc", min_size=1), JSON, max_size=4))
def test_an_identity_differs_from_itself_in_nothing(identity):
    assert differing(identity, json.loads(json.dumps(identity))) == ()


def test_blocks_that_only_vllm_understands_differ_in_the_layout(rig):
    heads, key, value = 2, 8, 4
    layer = LayerShape(CHUNK * heads * (key + value) * 2, heads, key, value)
    names = [f"layers.{number}" for number in range(LAYOUT.layers)]
    # On a CPU vLLM's kernels cut a block in a way that is their own.
    caches = {
        name: torch.zeros(8, CHUNK * heads * (key + value), dtype=torch.half) for name in names
    }
    shapes = dict.fromkeys(names, layer)
    blocks = pages_of(caches, shapes, count=8, block=CHUNK, apart=False)
    theirs = replace(NAMESPACE, layout=blocks.layout)
    for stored, asked in ((NAMESPACE, theirs), (theirs, NAMESPACE)):
        r = rig([memory()])
        device = HeapKV(stored.layout, len(PROMPT)).compute(PROMPT)
        r.engine.store(PROMPT, device, namespace=stored)
        told = r.engine.explain(PROMPT, namespace=asked)
        assert told.hit_tokens == 0
        (other,) = told.elsewhere
        assert {d.field.partition(".")[0] for d in other.differs} == {"layout"}
        assert "namespace differs in layout." in str(told)
