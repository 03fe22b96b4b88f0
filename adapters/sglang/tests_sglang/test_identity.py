"""What tells two servers' KV apart beside tokens: weights, adapters, and how RoPE is stretched."""

import json
from types import SimpleNamespace

import pytest
from sglang.srt.lora.lora_registry import LoRARef

from hexkv.adapters.sglang.configuration import Said
from hexkv.adapters.sglang.identity import Rank, namespace_of
from hexkv.plugins.discovery import discover
from hexkv.ports import DType, KVLayout

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)


def namespace(extra=None, **arguments):
    said = Said({"model": {"name": "tiny", "revision": "one"}} | (extra or {}), discover(), {})
    known = SimpleNamespace(**arguments) if arguments else None
    return namespace_of(LAYOUT, Rank(), said.with_pages(4), page=4, arguments=known)


def adapter(folder, weights):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(folder)


@pytest.mark.parametrize(
    "given",
    [
        lambda path: [LoRARef(lora_name="one", lora_path=path)],
        lambda path: [{"lora_name": "one", "lora_path": path}],
        lambda path: [f"one={path}"],
        lambda path: [path],
        lambda path: {"one": path},
        lambda path: {"one": LoRARef(lora_name="one", lora_path=path)},
    ],
    ids=["records", "mappings", "NAME=PATH", "paths", "paths by name", "records by name"],
)
def test_new_weights_in_an_old_folder_are_another_adapter(given, tmp_path):
    def served(weights):
        return namespace(enable_lora=True, lora_paths=given(adapter(tmp_path / "one", weights)))

    assert served(b"a" * 100) == served(b"a" * 100)
    assert served(b"a" * 100) != served(b"b" * 100)
    assert served(b"a" * 100) != namespace()


def test_an_operator_may_say_which_adapters_they_are(tmp_path):
    said = {"model": {"name": "tiny", "revision": "one", "lora": "poets"}}
    spaces = [
        namespace(said, enable_lora=True, lora_paths=[adapter(tmp_path / "one", weights)])
        for weights in (b"a" * 100, b"b" * 100)
    ]
    assert spaces[0] == spaces[1]


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters", "of a kind", "of a part"])
def test_where_rope_depends_on_the_length_the_length_counts(place, tmp_path):
    rope = {"rope_type": "dynamic", "factor": 2.0}
    config = {
        "of a kind": {"rope_parameters": {"full_attention": rope, "sliding_attention": {}}},
        "of a part": {"text_config": {"rope_scaling": rope}},
    }.get(place, {place: rope})
    (tmp_path / "config.json").write_text(json.dumps(config))
    served = [namespace(model_path=str(tmp_path), context_length=size) for size in (64, 128)]
    assert served[0] != served[1]
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    served = [namespace(model_path=str(tmp_path), context_length=size) for size in (64, 128)]
    assert served[0] == served[1]
