"""The kernels for CUDA, on machines without one: interpreted, and compiled but not run."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from depth import thorough

HERE = Path(__file__).parent
KERNELS = HERE.parent / "hexkv" / "kernels" / "in_triton"
LIMIT = 3600
"""Seconds, for a machine that does much else; on one that does not the longest takes minutes."""

pytest.importorskip("triton", reason="Triton exists for Linux only")


QUICK = ["-k", "not (TestPagedByOneLaunch or not_finite or counted_serve)"]
"""Without the contract of windows, whose promises on rows are those of the reference, too, and
without what takes seconds: planes that no coder takes, and tables that are counted."""


@pytest.mark.parametrize(
    "options", [QUICK, *thorough(["-m", "", "--hypothesis-profile", "thorough"])]
)
def test_interpreted_they_do_what_numpy_and_torch_do(options):
    """Triton decides while it is imported, so this takes a process of its own."""
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*pytest_, HERE / "interpreted"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.thorough
def test_they_compile_for_gpus_that_are_not_here(tmp_path):
    """A100, H100 and B200; the interpreter does not know what a GPU cannot do."""
    done = subprocess.run(
        [sys.executable, "-W", "error", HERE / "interpreted" / "compiling.py", "90", "80", "100"],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = [line.split() for line in done.stdout.splitlines()]
    kernels = {"_move", "_decode", "_encode", "_rotate", "_to_levels", "_from_int8"}
    kernels |= {
        "_accumulate",
        "_to_float8",
        "_from_float8",
        "_to_int4",
        "_from_int4",
        "_from_scaled",
        "_from_levels",
        "_from_bits",
        "_slots",
    }
    assert {name for _, name, _ in compiled} == kernels
    assert all(int(size) > 1000 for _, _, size in compiled)


def test_nothing_imports_triton_before_a_gpu_is_met():
    code = (
        "import sys, torch;"
        "from hexkv.kernels import BlockKV, ContiguousKV, PagedKV, rope;"
        "rope.rotate(torch.ones(2, 4), torch.ones(2), 1);"
        "print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_no_kernel_negates_a_tensor():
    """Compiled, ``-x`` is ``0 - x`` and makes +0.0 of +0.0; interpreted, it makes -0.0."""
    assert [f"{path.name}:{line}" for path in KERNELS.glob("*.py") for line in _negated(path)] == []


def _negated(path):
    """Lines of kernels that have a unary minus before anything but a literal."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        if not any("triton.jit" in ast.unparse(one) for one in function.decorator_list):
            continue
        for node in ast.walk(function):
            match node:
                case ast.UnaryOp(op=ast.USub(), operand=operand):
                    if not isinstance(operand, ast.Constant):
                        yield node.lineno
