"""A tier that loses a little: what an engine gives back from it."""

import pytest
import torch

from hexkv.kernels import ContiguousKV, torch_dtype
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.ports import DType, KVLayout, Namespace

LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=64)
PROMPT = list(range(512))
NAMES = ["cachegen", "cachegen-fine", "cachegen-small", "cachegen-tiny", "int8", "int4", "fp8"]


def window(layout, fill):
    """Contiguous KV of the prompt, and its tensors."""
    dtype = torch_dtype(layout.dtype)
    tensors = [
        [fill(1, plane.heads, len(PROMPT), plane.width).to(dtype) for plane in planes]
        for planes in layout.planes
    ]
    return ContiguousKV(layout, tensors), tensors


@pytest.fixture
def engine(tmp_path):
    """Builds an engine with one disk tier of a given serde."""
    engines = []

    def make(layout, serde):
        settings = {
            "pool": {"bytes": 64 << 20},
            "tiers": ({"store": "disk", "serde": serde, "settings": {"root": str(tmp_path)}},),
        }
        engines.append(build(EngineSettings.model_validate(settings), Namespace("m", layout)))
        return engines[-1]

    yield make
    for one in engines:
        one.close()


def files(root):
    """The sizes of the frames on disk."""
    found = (path.stat().st_size for path in root.rglob("[!.]*") if path.is_file())
    return [size for size in found if size >= 4096]


@pytest.mark.parametrize("serde", NAMES)
def test_what_comes_back_is_near_and_took_less_room(engine, tmp_path, serde):
    torch.manual_seed(0)
    stored, tensors = window(LAYOUT, torch.randn)
    first = engine(LAYOUT, serde)
    assert first.store(PROMPT, stored).stored_tokens == len(PROMPT)
    first.close()
    into, back = window(LAYOUT, torch.zeros)
    assert engine(LAYOUT, "raw").retrieve(PROMPT, into).hit_tokens == len(PROMPT)
    for before, after in zip(tensors, back, strict=True):
        for old, new in zip(before, after, strict=True):
            error = (old.float() - new.float()).abs().max()
            assert 0 < error < 0.2 * old.float().abs().max()
    assert sum(files(tmp_path)) < 0.55 * LAYOUT.chunk_bytes(len(PROMPT))


def test_kv_with_nan_comes_back_bit_for_bit(engine):
    torch.manual_seed(0)
    stored, tensors = window(LAYOUT, torch.randn)
    for planes in tensors:
        for plane in planes:
            plane[0, 0, 3, 5] = float("nan")
            plane[0, 1, 300, 0] = float("inf")
    first = engine(LAYOUT, "cachegen")
    assert first.store(PROMPT, stored).stored_tokens == len(PROMPT)
    into, back = window(LAYOUT, torch.zeros)
    assert first.retrieve(PROMPT, into).hit_tokens == len(PROMPT)
    for before, after in zip(tensors, back, strict=True):
        for old, new in zip(before, after, strict=True):
            assert torch.equal(old.view(torch.int16), new.view(torch.int16))


@pytest.mark.parametrize("serde", NAMES)
def test_bytes_that_only_an_engine_understands_come_back_as_they_were(engine, serde):
    layout = KVLayout.attention(DType.UINT8, layers=3, heads=2, key_width=64)
    stored, tensors = window(layout, lambda *shape: torch.randint(0, 256, shape))
    one = engine(layout, serde)
    assert one.store(PROMPT, stored).stored_tokens == len(PROMPT)
    into, back = window(layout, torch.zeros)
    assert one.retrieve(PROMPT, into).hit_tokens == len(PROMPT)
    for before, after in zip(tensors, back, strict=True):
        assert all(map(torch.equal, before, after))
