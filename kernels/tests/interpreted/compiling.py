"""Compiles every kernel for GPUs that need not be there: ``python compiling.py 80 90``.

The interpreter knows nothing of Triton's types and of what a GPU cannot do; the compiler does.
Prints the name of each kernel and the size of its machine code. Sizes of one for the first only.
"""

import sys
from itertools import islice

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from hexkv.kernels.coding.plain import GROUP, LEAST
from hexkv.kernels.coding.tables import BITS, CLASSES, TOTAL
from hexkv.kernels.in_triton import bits, lowbit, payloads, rans, rope, rows, xxh3
from hexkv.kernels.payloads import FORMS

CODER = {"GROUP": GROUP, "BITS": BITS, "LEAST": LEAST}
LANES = CODER | {"GROUPS": 9, "WIDE": 16}
TABLES = {"ROW": 576, "PLANE": 5, "LINE": 2, "BLOCK": 3}
PLACES = TABLES | {"WIDTH": 72}
MOVER = {"PLANE": rows.PLANE_FIELDS, "CHUNK": rows.CHUNK_FIELDS}
MOVER |= {"ROW": 144, "WIDTH": 72, "TOKENS": 16, "ELEMENTS": rows.ELEMENTS}
ROTOR = {"ROWS": rope.ROWS, "PAIRS": 64}
SCALE = {"MOST": lowbit.INT8, "ROWS": 8, "PEERS": 128}
FLOAT8 = SCALE | {"MOST": lowbit.FLOAT8_MOST}
ROUND = {"ROUNDING": lowbit._ROUNDING}


def bit_planes(form):
    whole, sevens, _ = form
    return {"WHOLE": whole, "SEVENS": sevens}


CASES = [
    *(
        (
            rows._move,
            ["*i64", "*i64", "*i64", *["i32"] * 6],
            {**MOVER, "ALIGN": align, "WORD": word, "SCATTER": scatter},
        )
        for word, align in (
            (tl.uint8, 1),
            (tl.int16, 1),
            (tl.int32, 1),
            (tl.int64, 1),
            (tl.int64, 2),
        )
        for scatter in (False, True)
    ),
    *(
        (
            rans._decode,
            ["*i16", "*i64", "*i64", "*i32", "*u8", "*u8", "*i32", value, value, "*i32"]
            + ["i32"] * 3,
            CODER,
        )
        for value in ("*i16", "*i32", "*bf16", "*fp32")
    ),
    (
        rans._encode,
        ["*u8", "*u8", "*u8", "*i32", "*i16", "*i64", "*i32", "i32", "i32", "i32"],
        CODER,
    ),
    *(
        case
        for (kind, into, infinity), form in zip(
            payloads._KINDS.values(), FORMS.values(), strict=True
        )
        for case in (
            (
                bits._from_levels,
                ["*u8", "*i64", "*i64", "*i64", "*i64", *["i32"] * 4, "*i32", "*i32", "*fp32"],
                {
                    **LANES,
                    **PLACES,
                    "KIND": kind,
                    "INTO": into,
                    "INFINITY": infinity,
                    "HALF_NUMBERS": bits.HALF_NUMBERS,
                    "CLASSES": CLASSES,
                },
            ),
            (
                bits._slots,
                ["*u8", "*i64", "*i64", "*i64", *["i32"] * 3, "*i32"],
                {**TABLES, **bit_planes(form), "INTO": into, "TOTAL": TOTAL, "BITS": BITS},
            ),
            (
                bits._from_bits,
                ["*u8", "*i64", "*i64", "*i64", "*i64", *["i32"] * 4, "*i32"],
                {**LANES, **PLACES, **bit_planes(form), "INTO": into, "SHIFT": form[2]},
            ),
            *(
                (
                    payloads._from_scaled,
                    ["*u8", "*i64", "*i64", "*i64", "*i64", *["i32"] * 4],
                    {
                        **PLACES,
                        "KIND": kind,
                        "INTO": into,
                        "INFINITY": infinity,
                        "CODE": code,
                        "MOST": payloads.MOST[code],
                        "TOGETHER": together,
                        "BY_CHANNEL": by_channel,
                        "PACE": 8,
                        "ALIGN": 8,
                        "ROWS": 8,
                        "PEERS": 128,
                    },
                )
                for code, by_channel, together in (
                    (1, False, 0),
                    (2, True, 0),
                    (3, False, 0),
                    (3, True, 64),
                )
            ),
        )
    ),
    (xxh3._accumulate, ["*i64", "*i64", "*i64", "*i64"], {"PRIME": xxh3._P32[0]}),
    *(
        (
            rope._rotate,
            [kind, kind, "*fp32", "*fp32", "i32", "i32", "i32"],
            {**ROTOR, "INTERLEAVED": interleaved},
        )
        for kind in ("*bf16", "*fp16", "*fp32")
        for interleaved in (False, True)
    ),
    *(
        (
            lowbit._to_levels,
            [kind, level, "*fp32", "i32", "i32"],
            SCALE | ROUND | {"ADDED": added},
        )
        for kind in ("*bf16", "*fp16", "*fp32")
        for level, added in (("*i8", 0), ("*u8", 14))
    ),
    *(
        case
        for kind in ("*bf16", "*fp16", "*fp32")
        for case in (
            (lowbit._from_int8, ["*i8", "*fp32", kind, "i32", "i32"], SCALE),
            (lowbit._to_float8, [kind, "*u8", "*fp32", "i32", "i32"], FLOAT8 | ROUND),
            (lowbit._from_float8, ["*u8", "*fp32", kind, "i32", "i32"], FLOAT8),
            (lowbit._to_int4, [kind, "*u8", "*fp32", "*fp32", "i32", "i32"], SCALE | ROUND),
            (lowbit._from_int4, ["*u8", "*fp32", "*fp32", kind, "i32", "i32"], SCALE),
        )
    ),
]


def sources(kernel, kinds, constants):
    """The code for any sizes, and for sizes of one, which Triton compiles in at a launch."""
    arguments = iter(kinds)
    kept = {
        parameter.name: "constexpr" if parameter.name in constants else next(arguments)
        for parameter in kernel.params
    }
    yield ASTSource(fn=kernel, signature=kept, constexprs=constants, attrs={})
    ones = {
        parameter.name: 1
        for parameter in kernel.params
        if kept[parameter.name] == "i32" and not parameter.do_not_specialize
    }
    kept |= dict.fromkeys(ones, "constexpr")
    yield ASTSource(fn=kernel, signature=kept, constexprs=constants | ones, attrs={})


def main(architectures):
    for architecture in architectures:
        variants = 2 if architecture == architectures[0] else 1
        target = GPUTarget("cuda", int(architecture), 32)
        options = vars(make_backend(target).parse_options({"enable_fp_fusion": False}))
        for case in CASES:
            for source in islice(sources(*case), variants):
                made = triton.compile(source, target=target, options=options)
                size = len(made.asm["cubin"])
                sys.stdout.write(f"{architecture} {source.fn.__name__} {size}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
