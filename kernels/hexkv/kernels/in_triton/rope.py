"""Rotary embeddings turned on by an offset: every pair of every key in one launch."""

import torch
import triton
import triton.language as tl

ROWS = 8


def rotate(
    keys: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    """See :func:`hexkv.kernels.rope.rotate`; *cosines* and *sines* are those of the offset."""
    dense = keys.contiguous()
    made = torch.empty_like(dense)
    width = keys.shape[-1]
    rows = dense.numel() // width
    if rows:
        pairs = triton.next_power_of_2(max(len(cosines), width - 2 * len(cosines)))
        with torch.cuda.device_of(keys):
            _rotate[(triton.cdiv(rows, ROWS),)](
                dense,
                made,
                cosines,
                sines,
                rows,
                width,
                len(cosines),
                INTERLEAVED=interleaved,
                ROWS=ROWS,
                PAIRS=pairs,
                enable_fp_fusion=False,
            )
    return made


@triton.jit
def _rotate(
    keys,
    made,
    cosines,
    sines,
    rows,
    width,
    pairs,
    INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, PAIRS)
    start = (row.to(tl.int64) * width)[:, None]
    mask = (row < rows)[:, None] & (pair < pairs)[None, :]
    if INTERLEAVED:
        first = start + (2 * pair)[None, :]
        second = first + 1
    else:
        first = start + pair[None, :]
        second = first + pairs
    x = tl.load(keys + first, mask=mask, other=0).to(tl.float32)
    y = tl.load(keys + second, mask=mask, other=0).to(tl.float32)
    cosine = tl.load(cosines + pair, mask=pair < pairs, other=0)[None, :]
    sine = tl.load(sines + pair, mask=pair < pairs, other=0)[None, :]
    kind = made.dtype.element_ty
    tl.store(made + first, (x * cosine - y * sine).to(kind), mask=mask)
    tl.store(made + second, (y * cosine + x * sine).to(kind), mask=mask)
    # Elements behind the pairs stay as they are.
    behind = 2 * pairs + pair
    left = start + behind[None, :]
    mask = (row < rows)[:, None] & (behind < width)[None, :]
    tl.store(made + left, tl.load(keys + left, mask=mask), mask=mask)
