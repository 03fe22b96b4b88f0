"""Layered requests: a model computes one layer while the next one is still under way.

They use the same chunks on the same tiers as the calls that copy all layers at once; only the
order differs. Whole chunks have to be held for as long as the model takes, so no call here waits
for a block that its own thread may hold; chunks without a block are left out. Only the time in
these calls counts against a deadline, not the time that the model computes between two layers.

One thread at a time uses such an object; it need not always be the same.
"""
