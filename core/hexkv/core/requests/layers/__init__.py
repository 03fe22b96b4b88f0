"""Layer by layer: a model computes one layer while the next one is still under way.

These are the same chunks on the same tiers as for the calls that copy all layers at once;
only the order differs. Whole chunks have to be held for as long as the model takes, so
nothing in here waits for a block that the very thread that waits may hold; what finds no
block is left out. Only the time in here counts against a call's deadline: how long the
model computes between two layers is its own affair.

One thread at a time uses an object of these; it need not always be the same.
"""

from hexkv.core.requests.layers.limits import Hosts, TimeBudget
from hexkv.core.requests.layers.retrieve import LayeredRetrieve
from hexkv.core.requests.layers.store import LayeredStore

__all__ = ["Hosts", "LayeredRetrieve", "LayeredStore", "TimeBudget"]
