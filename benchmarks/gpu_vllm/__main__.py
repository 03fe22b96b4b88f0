"""``python -m benchmarks.gpu_vllm``: hexkv in a real vLLM on this machine's GPU.

Checks that the tokens from memory, disk and node are those without hexkv, and takes the time to
the first token: of vLLM alone, of its own prefix cache and OffloadingConnector, and of hexkv, for
hits and for misses, beside a bare pinned copy. Runs in the Python that vLLM is installed in;
hexkv itself need not be installed there, and no model is downloaded.

Exit code 0: all tokens are right; missed goals are reported and no failure. 1: a token differs,
or an engine failed. 2: this machine has no GPU, no vLLM, or lacks a module or memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from benchmarks.gpu.bare import ROOT, announce, environment, missing

NEEDED = ("vllm", "pydantic", "pluggy", "yaml", "xxhash", "typer", "zmq")
"""Modules: of vLLM, of hexkv's configuration and of a node's command."""

_PROBE = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_vllm", add_help=False)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".wheels")
    parser.add_argument("--site", type=Path, default=ROOT / ".gpu_site")
    given, others = parser.parse_known_args()
    around = environment(given.site, given.wheels)
    announce(given.site)  # also what an installed hexkv lacks: pinned memory
    asked = {"-h", "--help"} & set(others)
    if not asked and (lacking := missing(NEEDED, given.site)):
        print(f"{sys.executable} has no {', '.join(lacking)}: see benchmarks/gpu/README.md")
        sys.exit(2)
    if not asked and given.device == "cuda" and not _has_gpu(around):
        print("there is no CUDA device on this machine: nothing is measured")
        sys.exit(2)
    paths = os.pathsep.join([str(ROOT / "tests" / "lib"), around["PYTHONPATH"]])
    command = [sys.executable, "-m", "benchmarks.gpu_vllm.run", "--device", given.device, *others]
    # In place of this process: what ends it ends the run.
    os.execve(sys.executable, command, around | {"PYTHONPATH": paths})


def _has_gpu(around: dict[str, str]) -> bool:
    return subprocess.run([sys.executable, "-c", _PROBE], env=around, check=False).returncode == 0


if __name__ == "__main__":
    main()
