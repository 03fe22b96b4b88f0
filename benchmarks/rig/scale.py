"""How much is measured: the real thing, or a little of everything to see that it works."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.ports import DType, KVLayout


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of all benchmarks."""

    layout: KVLayout
    """KV of the benchmarks that move bytes."""

    small: KVLayout
    """KV of a small model, or of one rank of a large one."""

    chunk: int
    """Tokens of a chunk."""

    memory_chunks: int
    disk_chunks: int
    pool_chunks: int
    """Blocks that the disk benchmarks pass through."""

    pages: int
    """Pages of 16 tokens, each of them a chunk."""

    short: int
    """Tokens of a short prompt, whose chunks are of 16, too."""

    prompt: int
    """Tokens of the benchmarks that name chunks and look them up."""

    rounds: int

    turn: float
    """Seconds that a turn of short runs lasts at least: clocks and caches settle."""


FULL = Scale(
    # 128 KiB per token and 32 MiB per chunk, as of an 8B model with grouped-query attention.
    layout=KVLayout.attention(DType.BFLOAT16, layers=32, heads=8, key_width=128),
    small=KVLayout.attention(DType.BFLOAT16, layers=4, heads=8, key_width=128),  # 4 MiB a chunk
    chunk=256,
    memory_chunks=32,
    disk_chunks=16,
    pool_chunks=31,  # a pool of the default size, 1 GiB
    pages=8192,
    short=304,
    prompt=131_072,
    rounds=21,
    turn=0.05,
)

QUICK = Scale(
    layout=KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=8),
    small=KVLayout.attention(DType.BFLOAT16, layers=1, heads=2, key_width=8),
    chunk=32,
    memory_chunks=4,
    disk_chunks=4,
    pool_chunks=8,
    pages=128,
    short=48,
    prompt=1024,
    rounds=3,
    turn=0.001,
)

SLIM = KVLayout.attention(DType.BFLOAT16, layers=4, heads=2, key_width=128)
"""KV of which a page of 16 tokens takes 64 KiB, 8 KiB of each plane."""

THIN = KVLayout.attention(DType.UINT8, layers=1, heads=1, key_width=8)
"""As little KV as fits a page per chunk, where only names matter."""
