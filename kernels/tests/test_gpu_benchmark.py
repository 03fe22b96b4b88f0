"""The benchmark for GPUs runs: here without one, or small and interpreted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def bench(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_in_a_line():
    done = bench()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "there is no CUDA device on this machine: nothing is measured"
    ]


@pytest.mark.thorough
def test_every_path_is_compared_with_its_reference_and_told(tmp_path):
    pytest.importorskip("triton", reason="Triton exists for Linux only")
    told = tmp_path / "gpu.json"
    small = ("--device", "cpu", "--tiny", "--unchecked", "--output", str(told))
    done = bench(*small, TRITON_INTERPRET="1")
    assert done.returncode in (0, 1), done.stdout + done.stderr  # the speed means nothing
    found = json.loads(told.read_text())
    assert {"date", "device", "versions", "size"} < set(found)
    names = " ".join(result["name"] for result in found["results"])
    for path in ("gather", "scatter", "gather, by the kernel itself", "encode", "decode", "RoPE"):
        assert path in names
    for form in ("int8", "int4", "fp8"):
        assert f"{form} quantise" in names
        assert f"{form} dequantise" in names
