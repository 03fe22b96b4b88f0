"""``hexkv size``: its arithmetic is that of the layouts that caches use."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.plan.cache_size import ModelShape, PlannedTraffic, size_cache
from hexkv.plan.model_config import read_shape
from hexkv.plugins.__main__ import main
from hexkv.ports import (
    ConfigError,
    DType,
    InvalidRequest,
    KVLayout,
    LayerGroup,
    RecordedKind,
    frame_bytes,
)
from operating.call_records import CHUNK, a_call, keys_of, write_record

WIDTHS = st.integers(1, 256)
SHAPES = st.one_of(
    st.builds(
        ModelShape,
        st.sampled_from(DType),
        st.integers(1, 96),
        st.integers(1, 64),
        WIDTHS,
        WIDTHS,
    ),
    st.builds(
        ModelShape,
        st.sampled_from(DType),
        st.integers(1, 96),
        latent_width=WIDTHS,
        rope_width=WIDTHS,
    ),
)


@given(SHAPES, st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.integers(1, 512))
def test_sizes_are_those_of_the_layouts_that_ranks_have(shape, tensor, pipeline, chunk):
    traffic = PlannedTraffic(2.0, 1000.0, 0.25, 3)
    try:
        found = {
            one.name: one
            for one in size_cache(
                shape, traffic, tensor=tensor, pipeline=pipeline, chunk_tokens=chunk
            )
        }
    except InvalidRequest:
        assert pipeline > shape.layers or (shape.heads % tensor and tensor % shape.heads)
        return
    whole = shape.layout()
    assert found["a token"].value == whole.token_bytes
    assert found["a chunk"].value == frame_bytes(whole.chunk_bytes(chunk))
    # The ranks of one stage: heads are divided, or repeated; latent vectors are repeated.
    planes = whole.planes[0]
    if shape.heads:
        heads = max(1, shape.heads // tensor)
        part = KVLayout.attention(
            shape.dtype,
            layers=-(-shape.layers // pipeline),
            heads=heads,
            key_width=planes[0].width,
            value_width=planes[1].width,
        )
    else:
        part = KVLayout(shape.dtype, (LayerGroup(-(-shape.layers // pipeline), planes),))
    assert found["a token on one rank"].value == part.token_bytes
    assert part.token_bytes * tensor * pipeline >= whole.token_bytes
    # What the formula says in numbers is the result.
    said = found["a token"].formula.partition(" = ")[2]
    assert eval(said.replace("x", "*")) == whole.token_bytes
    assert found["tokens hit"].value + found["new tokens"].value == pytest.approx(2000.0)
    bytes_each = found["a chunk"].value / chunk
    assert found["writing to disk"].value == pytest.approx(1500.0 * bytes_each)
    assert found["memory tier"].value == pytest.approx((1500.0 * 300 + 750) * bytes_each)
    assert found["pool"].value == pytest.approx(1.25 * found["memory tier"].value)
    assert found["network"].value == pytest.approx(2000.0 * bytes_each)


LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
GROUPED = LLAMA | {"num_key_value_heads": 8, "torch_dtype": "bfloat16"}
LATENT = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16"}


@pytest.mark.thorough
@each(
    ("config", "expected"),
    [
        (GROUPED, 32 * 8 * 256 * 2),
        (LLAMA | {"dtype": "float16"}, 32 * 32 * 256 * 2),
        (GROUPED | {"head_dim": 64}, 32 * 8 * 128 * 2),
        (LATENT, 61 * 576 * 2),
        ({"text_config": GROUPED, "hidden_size": 1}, 32 * 8 * 256 * 2),
        (GROUPED | {"layer_types": ["linear_attention", "full_attention"] * 16}, 16 * 8 * 512),
        (GROUPED | {"layer_types": ["sliding_attention", "conv"] * 16}, 16 * 8 * 512),
        (GROUPED | {"num_kv_shared_layers": 12}, 20 * 8 * 512),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "dtype": "float32"}, 12 * 12 * 128 * 4),
    ],
)
def test_a_configuration_says_what_the_kv_is_like(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path).token_bytes == expected
    assert read_shape(tmp_path / "config.json").layout().token_bytes == expected


@pytest.mark.thorough
@each(
    ("text", "words"),
    [
        ("[]", "no attribute"),
        ("{", "Expecting"),
        (json.dumps(LLAMA), "no dtype: say which"),
        (json.dumps(GROUPED | {"dtype": "int4"}), "int4"),
        (json.dumps({"dtype": "float16"}), "no num_hidden_layers or n_layer"),
        (json.dumps(GROUPED | {"num_hidden_layers": True}), "num_hidden_layers is True"),
        (json.dumps(GROUPED | {"layer_types": ["mamba"] * 32}), "a model has layers"),
        ("{}" + " " * (1 << 22), "too long"),
    ],
)
def test_a_configuration_that_does_not_say_it_is_an_error(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_shape(tmp_path)


@pytest.mark.thorough
def test_the_command_takes_a_record_for_its_traffic(tmp_path, capsys):
    keys = keys_of(*range(4))
    kind = RecordedKind.RETRIEVE
    calls = [a_call(kind, 10.0 * number, keys[: 2 + number % 2 * 2]) for number in range(5)]
    path = write_record(tmp_path / "record", calls)
    model = ["--layers", "2", "--heads", "2", "--width", "8", "--tp", "2"]
    assert main(["size", *model, "--record", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lengths = [2, 4, 2, 4, 2]
    assert found["traffic"]["requests"] == pytest.approx(5 / 40)
    assert found["traffic"]["tokens"] == pytest.approx(CHUNK * sum(lengths) / 5)
    assert found["traffic"]["shared"] == pytest.approx((sum(lengths) - 4) / sum(lengths))
    assert main(["size", *model]) == 0
    out = capsys.readouterr().out
    assert "layers x KV heads x (key + value width) x bytes = 2 x 2 x (8 + 8) x 2" in out
    assert main(["size"]) == 1
    assert main(["size", *model, "--model", str(tmp_path)]) == 2
    assert main(["size", *model, "--tp", "3"]) == 1
