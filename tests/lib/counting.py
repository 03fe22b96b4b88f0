"""Counting what a call runs: garbage of earlier tests, finalized meanwhile, would count, too."""

import gc
from contextlib import contextmanager


@contextmanager
def no_collection():
    """Collect garbage before, and none in the context."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
