"""Measures the serdes on the KV of real forward passes.

``PYTHONPATH=adapters/hf python adapters/lossless/measure``. Two models are small and trained; the
others have random weights, so their attention and their outliers are not those of a trained
model. What carries over from these are speeds, and that floats of a few magnitudes shrink.
Needs torch, transformers and numba.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import zstandard
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

from hexkv.adapters.hf.trained import trained
from hexkv.adapters.lossless.rans import Rans
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.kernels.coding.choosing import Choice
from hexkv.plugins.support.payload import PlaneSerde
from hexkv.ports import DType, KVLayout, Serde
from training import recall

TOKENS = 256
LAYERS = 8
TEXT = Path(__file__).parents[3] / "LICENSE"
DTYPES = {
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
    DType.FLOAT32: torch.float32,
    DType.FLOAT8_E4M3: torch.float8_e4m3fn,
}


def grouped_queries(ids: torch.Tensor, dtype: DType) -> tuple[KVLayout, bytes]:
    """The KV of a Llama: 8 heads of 128 for K and V."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=2048,
        intermediate_size=4096,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=8,
    )
    layout = KVLayout.attention(dtype, layers=LAYERS, heads=8, key_width=128)
    return layout, _kv(LlamaForCausalLM(config), ids, dtype)


def latents(ids: torch.Tensor, dtype: DType) -> tuple[KVLayout, bytes]:
    """The KV of a DeepSeek: a latent of 512 and a rope plane of 64."""
    config = DeepseekV3Config(
        vocab_size=256,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=256,
        kv_lora_rank=512,
        first_k_dense_replace=LAYERS,
    )
    layout = KVLayout.latent(dtype, layers=LAYERS, latent_width=512, rope_width=64)
    return layout, _kv(DeepseekV3ForCausalLM(config), ids, dtype)


def small(ids: torch.Tensor, dtype: DType, model: torch.nn.Module) -> tuple[KVLayout, bytes]:
    """The KV of one of our trained models: 2 heads of 32, computed in single precision."""
    layers = model.config.num_hidden_layers
    layout = KVLayout.attention(dtype, layers=layers, heads=2, key_width=32)
    return layout, _kv(model.float(), ids, dtype, torch.float32)


def _kv(
    model: torch.nn.Module, ids: torch.Tensor, dtype: DType, computed: torch.dtype | None = None
) -> bytes:
    """Chunk bytes of what *model* caches for *ids*, computed in 16 bits at least, and cast."""
    if computed is None:
        same = dtype in (DType.FLOAT32, DType.FLOAT16)
        computed = DTYPES[dtype] if same else torch.bfloat16
    with torch.no_grad():
        cache = model.to(computed).eval()(ids, use_cache=True).past_key_values
    tensors = (tensor for layer in cache.layers for tensor in (layer.keys, layer.values))
    cast = (tensor[0].transpose(0, 1).to(DTYPES[dtype]).contiguous() for tensor in tensors)
    return b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in cast)


def seconds(work: Callable[[], object], runs: int = 7) -> float:
    """The median of a few runs, in processor time of this thread."""
    taken = []
    for _ in range(runs):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)


def zstd(data: bytes) -> int:
    """Bytes that zstd alone needs for *data*, at its own level 1."""
    return len(zstandard.ZstdCompressor(level=1).compress(data))


def measure(name: str, layout: KVLayout, raw: bytes, serdes: dict[str, Serde]) -> None:
    """Print one row of the table."""
    chunk, back = memoryview(raw), memoryview(bytearray(len(raw)))
    ratios, speeds = [], []
    for serde in serdes.values():
        into = memoryview(bytearray(serde.bound(len(raw))))
        encode = seconds(partial(serde.encode, chunk, layout, TOKENS, into))
        payload = into[: serde.encode(chunk, layout, TOKENS, into)]
        decode = seconds(partial(serde.decode, payload, layout, TOKENS, back))
        if back != chunk:
            raise SystemExit(f"{name}: other KV came back")
        ratios.append(len(raw) / len(payload))
        speeds.append(f"{len(raw) / encode / 1e9:.2f} / {len(raw) / decode / 1e9:.2f}")
    itemsize = layout.dtype.itemsize
    whole = sum(zstd(raw[place::itemsize]) for place in range(itemsize))
    ratios += [len(raw) / whole, len(raw) / zstd(raw)]
    numbers = " | ".join([*(f"{ratio:.2f}" for ratio in ratios), *speeds])
    print(f"| {name} | {layout.dtype} | {numbers} |", flush=True)


def cases() -> Iterator[tuple[str, KVLayout, bytes]]:
    """Every chunk that is measured."""
    words = b" ".join(TEXT.read_bytes().split())
    text = torch.tensor([list(words[:TOKENS])])
    lists = recall.sequences(1, recall.MOST, torch.Generator().manual_seed(25))[0][:, :TOKENS]
    for dtype in DTYPES:
        yield "trained, text", *small(text, dtype, trained("text"))
        yield "trained, recall", *small(lists, dtype, trained("recall"))
    for name, ids in (("text", text), ("no text", torch.randint(0, 256, (1, TOKENS)))):
        for dtype in DTYPES:
            yield f"GQA, {name}", *grouped_queries(ids, dtype)
        yield f"MLA, {name}", *latents(ids, DType.BFLOAT16)


def main() -> None:
    """Print the table of the README."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    choice = Choice()
    if not choice.wait(120):
        raise SystemExit("numba did not compile")
    serdes: dict[str, Serde] = {
        "zstd 0": ZstdSerde(0),
        "zstd 1": ZstdSerde(1),
        "rans": PlaneSerde(Rans(choice)),
    }
    ratios = [f"ratio, {name}" for name in serdes]
    ratios += ["zstd 1, layers together", "zstd 1 on all bytes"]
    columns = [*ratios, *(f"encode / decode, {name}" for name in serdes)]
    print(f"| KV of | dtype | {' | '.join(columns)} |")
    print("|---|---" + "|--:" * len(columns) + "|")
    for name, layout, raw in cases():
        measure(name, layout, raw, serdes)


main()
