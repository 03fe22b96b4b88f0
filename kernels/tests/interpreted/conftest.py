"""Tests of Triton's kernels: on a GPU if there is one, else by Triton's interpreter.

Triton decides while it is imported whether to interpret, so on a CPU these files are
collected in a process of their own alone; ``kernels/tests/test_triton.py`` starts it.
"""

import os
from importlib.util import find_spec

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

RUNS = find_spec("triton") is not None and (INTERPRETED or torch.cuda.is_available())

collect_ignore_glob = [] if RUNS else ["test_*.py"]
