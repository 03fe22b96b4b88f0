"""Counts of what a call runs, without the finalizers of earlier tests' garbage."""

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
