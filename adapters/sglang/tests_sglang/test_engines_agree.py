"""What vLLM on a GPU prefills, SGLang decodes, as far as names go: pages of plain KV, no more.

vLLM's CPU build packs blocks as its kernels want them, so no two engines on a CPU can share a
chunk. What decides on GPUs is tested here: names, and bytes in the port's order.
"""

from types import SimpleNamespace

import pytest

from hexkv.adapters.sglang.configuration import RawConfig
from hexkv.adapters.sglang.identity.identity import Rank as SGLangRank
from hexkv.adapters.sglang.identity.identity import namespace_of as of_sglang
from hexkv.adapters.vllm.configuration.configuration import configure
from hexkv.adapters.vllm.configuration.identity import Rank as VLLMRank
from hexkv.adapters.vllm.configuration.identity import namespace_of as of_vllm
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.worker.serving import Scopes
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import DType, KVLayout

pytestmark = pytest.mark.usefixtures("unloaded")

PAGE = 64
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)
PROMPT = list(range(5 * PAGE + 20))


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "model.safetensors").write_bytes(bytes(1 << 16))
    return str(folder)


@pytest.fixture
def tiers(tmp_path):
    """One disk for both."""
    root = str(tmp_path / "cache")
    return {"tiers": [{"store": "disk", "settings": {"root": root}}], "pool": {"bytes": "4MiB"}}


def vllm(model, tiers, chunk, **said):
    """An engine as a worker of vLLM builds it over blocks whose tokens lie apart."""
    commit = SimpleNamespace(rope_theta=1.0, _commit_hash="1")
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model=model, hf_config=commit, seed=0, revision=None, dtype="float16",
            max_model_len=4096, **said,
        ),
        load_config=SimpleNamespace(load_format="auto"),
    )  # fmt: skip
    made = configure(tiers | {"chunk": chunk}, discover(), block_tokens=16, environ={}).engine
    return build(made, of_vllm(config, LAYOUT, VLLMRank(0, 1), made, inside={}))


def sglang(model, tiers, namespace="canonical", **said):
    """Likewise of SGLang, over pages of plain KV."""
    known = SimpleNamespace(model_path=model, dtype="float16", **said)
    made = RawConfig(tiers | {"namespace": namespace}, discover(), {}).with_pages(PAGE)
    space = of_sglang(LAYOUT, SGLangRank(), made, page=PAGE, arguments=known)
    return build(made.engine, space)


def computed():
    return HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)


def loaded(engine, **said):
    """How much of the prompt *engine* loads; all of it is what was computed."""
    window = HeapKV(LAYOUT, len(PROMPT))
    got = engine.retrieve(PROMPT, window, **said).hit_tokens
    assert window.agrees(computed(), got)
    return got


def test_pages_of_one_are_found_by_the_other(model, tiers):
    chunk = {"size": PAGE, "seeded": False}
    with vllm(model, tiers, chunk) as prefill:
        assert prefill.store(PROMPT, computed()).stored_tokens == 5 * PAGE  # no tail: whole pages
    with sglang(model, tiers) as decode:
        assert loaded(decode) == 5 * PAGE
        decode.clear()
        assert decode.store(PROMPT, computed()).stored_tokens == 5 * PAGE
    with vllm(model, tiers, chunk) as prefill:
        assert loaded(prefill) == 5 * PAGE


def test_what_is_not_one_kind_of_kv_is_not_found(model, tiers):
    """vLLM's default chunks and tails; SGLang's own namespace; salts; quantised KV."""
    chunk = {"size": PAGE, "seeded": False}
    with vllm(model, tiers, {}) as prefill:
        assert prefill.store(PROMPT, computed()).stored_tokens
        with_salt = Scopes(prefill.namespace).namespace(Scope(salt="tenant"))
    with sglang(model, tiers) as decode:
        assert loaded(decode) == 0
    with vllm(model, tiers, chunk) as prefill:
        prefill.store(PROMPT, computed(), namespace=with_salt)
    with sglang(model, tiers) as decode:
        assert loaded(decode) == 0
    with vllm(model, tiers, chunk) as prefill:
        prefill.store(PROMPT, computed())
    with sglang(model, tiers, "own") as decode:
        assert loaded(decode) == 0
    with sglang(model, tiers, quantization="fp8") as decode:
        assert loaded(decode) == 0
