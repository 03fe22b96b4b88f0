"""Tests of Triton's kernels: on a GPU if there is one, else by Triton's interpreter.

Triton decides while it is imported whether to interpret, so on a CPU these files are
collected in a process of their own alone; ``kernels/tests/test_triton.py`` starts it.
"""

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

collect_ignore_glob = [] if INTERPRETED or torch.cuda.is_available() else ["test_*.py"]
