"""XXH3 with 128 bits (xxHash 0.8, ``doc/xxhash_spec.md``) of ranges in a device's memory.

The hash goes through its input in blocks of 1024 bytes, one after the other; within a block its
sums come in any order. So one program does one range, a block at a time, and the ranges of
all layers of all chunks are hashed beside each other. Programs end with the eight words from which
the host makes a digest.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

SHORTEST = 241
"""Bytes from which inputs are hashed this way; shorter ones are hashed in other ways."""

_BLOCK, _STRIPE, _LANES = 1024, 64, 8
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_START = (_P32[2], *_P64[:4], _P32[1], _P64[4], _P32[0])
_MASK = (1 << 64) - 1


def _words(data: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(data, "<i8")


def digests(memory: torch.Tensor, parts: Sequence[tuple[int, int]]) -> torch.Tensor | None:
    """Queue the hashing of *parts*, ``(start, end)`` in *memory*: ``[parts, 8]`` for :func:`ends`.

    ``None`` if one is too short, or is not made of whole words of 8 bytes.
    """
    if not parts or any(s % 8 or e % 8 or e - s < SHORTEST for s, e in parts):
        return None
    table = torch.tensor(parts, dtype=torch.int64).to(memory.device, non_blocking=True)
    keys = np.concatenate(
        # Keys of the stripes, of the scrambling, of the last stripe, and the initial sums.
        [_words(_SECRET[:184]), _words(_SECRET[128:192]), _words(_SECRET[121:185])]
    )
    start = np.array(_START, np.uint64).view(np.int64)
    known = torch.from_numpy(np.concatenate([keys, start])).to(memory.device, non_blocking=True)
    sums = torch.empty(len(parts), _LANES, dtype=torch.int64, device=memory.device)
    _accumulate[(len(parts),)](
        memory.view(torch.int64), table, known, sums, PRIME=_P32[0], num_warps=1
    )
    return sums


def ends(sums: npt.NDArray[np.int64], parts: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the digests, as ``xxh3_128_digest`` returns them."""
    rows = sums.view(np.uint64).tolist()
    found = []
    for row, (start, end) in zip(rows, parts, strict=True):
        size = end - start
        low = _merged(row, _SECRET[11:75], size * _P64[0] & _MASK)
        high = _merged(row, _SECRET[117:181], ~(size * _P64[1]) & _MASK)
        found.append((high << 64 | low).to_bytes(16, "big"))
    return found


def _merged(row: Sequence[int], secret: bytes, result: int) -> int:
    key = np.frombuffer(secret, "<u8").tolist()
    for i in range(0, _LANES, 2):
        product = (row[i] ^ key[i]) * (row[i + 1] ^ key[i + 1])
        result += (product & _MASK) ^ (product >> 64)
    result &= _MASK
    result = (result ^ (result >> 37)) * 0x165667919E3779F9 & _MASK
    return result ^ (result >> 32)


@triton.jit
def _sums(data, swapped, key):
    """Return the terms of a stripe in the eight sums: ``[stripes, 8]`` int64."""
    mixed = data ^ key
    return swapped + (mixed & 0xFFFFFFFF) * ((mixed >> 32) & 0xFFFFFFFF)


@triton.jit
def _accumulate(memory, table, known, sums, PRIME: tl.constexpr):
    """Hash one range. 23 words of *known* are of the stripes, then 8, 8 and 8."""
    first = tl.load(table + 2 * tl.program_id(0)) // 8
    words = tl.load(table + 2 * tl.program_id(0) + 1) // 8 - first
    stripe = tl.arange(0, 16)[:, None]
    lane = tl.arange(0, 8)
    lanes = lane[None, :]
    key = tl.load(known + stripe + lanes)
    scramble = tl.load(known + 23 + lane)
    acc = tl.load(known + 39 + lane)
    blocks = (words * 8 - 1) // 1024
    at = memory + first + stripe * 8
    for _ in range(blocks):
        acc += tl.sum(_sums(tl.load(at + lanes), tl.load(at + (lanes ^ 1)), key), 0)
        acc = (acc ^ ((acc >> 47) & 0x1FFFF) ^ scramble) * PRIME
        at += 128
    left = (words * 8 - 1 - blocks * 1024) // 64
    some = stripe + lanes * 0 < left
    data = tl.load(at + lanes, mask=some, other=0)
    swapped = tl.load(at + (lanes ^ 1), mask=some, other=0)
    acc += tl.sum(tl.where(some, _sums(data, swapped, key), 0), 0)
    last = memory + first + words - 8
    final = tl.load(known + 31 + lane)
    acc += _sums(tl.load(last + lane), tl.load(last + (lane ^ 1)), final)
    tl.store(sums + tl.program_id(0) * 8 + lane, acc)
