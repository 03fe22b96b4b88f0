"""Measures the serde on the KV of real forward passes: ``python adapters/lossless/measure``.

The models have random weights, so their attention and their outliers are not those of a
trained model. What carries over are speeds, and that floats of a few magnitudes shrink.
Needs torch and transformers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import zstandard
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.ports import DType, KVLayout

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


def _kv(model: torch.nn.Module, ids: torch.Tensor, dtype: DType) -> bytes:
    """Chunk bytes of what *model* caches for *ids*. Computed in bfloat16 at most, then cast."""
    computed = torch.float32 if dtype is DType.FLOAT32 else torch.bfloat16
    if dtype is DType.FLOAT16:
        computed = torch.float16
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


def measure(name: str, layout: KVLayout, raw: bytes) -> None:
    """Print one row of the table."""
    chunk, back = memoryview(raw), memoryview(bytearray(len(raw)))
    ratios, speeds = [], []
    for serde in (ZstdSerde(0), ZstdSerde(1)):
        into = memoryview(bytearray(serde.bound(len(raw))))
        encode = seconds(partial(serde.encode, chunk, layout, TOKENS, into))
        payload = into[: serde.encode(chunk, layout, TOKENS, into)]
        decode = seconds(partial(serde.decode, payload, layout, TOKENS, back))
        if back != chunk:
            raise SystemExit(f"{name}: other KV came back")
        ratios.append(len(raw) / len(payload))
        speeds += [len(raw) / encode / 1e9, len(raw) / decode / 1e9]
    itemsize = layout.dtype.itemsize
    whole = sum(zstd(raw[place::itemsize]) for place in range(itemsize))
    ratios += [len(raw) / whole, len(raw) / zstd(raw)]
    numbers = " | ".join(f"{number:.2f}" for number in ratios + speeds)
    print(f"| {name} | {layout.dtype} | {numbers} |")


def main() -> None:
    """Print the table of the README."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = b" ".join(TEXT.read_bytes().split())
    texts = {
        "text": torch.tensor([list(words[:TOKENS])]),
        "no text": torch.randint(0, 256, (1, TOKENS)),
    }
    print(
        "| KV of | dtype | ratio, level 0 | level 1 | level 1, layers together "
        "| zstd 1 on all bytes | encode, level 0 | decode | encode, level 1 | decode |"
    )
    print("|---|---" + "|--:" * 8 + "|")
    for text, ids in texts.items():
        for dtype in DTYPES:
            measure(f"GQA, {text}", *grouped_queries(ids, dtype))
        measure(f"MLA, {text}", *latents(ids, DType.BFLOAT16))


main()
