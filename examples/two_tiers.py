"""A cache over memory and disk: fill it, lose the memory, find everything on disk.

Needs hexkv, hexkv-local and hexkv-contracts; no torch. The contract kit's ``HeapKV`` stands
in for a serving engine's KV memory: the KV that it computes tells which tokens it is of.
"""

from __future__ import annotations

import sys
import tempfile

from hexkv.api import DType, KVLayout, Namespace, PrefixCache, open_cache
from hexkv.contracts.doubles.heap_kv import HeapKV

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=8)
NAMESPACE = Namespace("toy-model", LAYOUT, revision="1")
PROMPT = [token * token % 50_000 for token in range(2_000)]


def cache_over(root: str) -> PrefixCache:
    """A cache as a new process would open it: its memory empty, its disk as it was left."""
    configuration = {
        "pool": {"bytes": "4MiB"},
        "tiers": [
            {"store": "memory"},
            {"store": "disk", "budget": "64MiB", "settings": {"root": root}},
        ],
    }
    return open_cache(configuration, namespace=NAMESPACE)


def main() -> int:
    """Store, start again, retrieve twice. 0 if the KV is the very one that was stored."""
    computed = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
    correct = True
    with tempfile.TemporaryDirectory() as root:
        with cache_over(root) as cache:
            report = cache.store(PROMPT, computed)
            print(f"stored {report.stored_tokens} of {report.tokens} tokens: {report.tiers}")
        with cache_over(root) as cache:
            for _ in range(2):
                loaded = HeapKV(LAYOUT, len(PROMPT))
                got = cache.retrieve(PROMPT, loaded)
                print(f"loaded {got.loaded_tokens} of {got.tokens} tokens: {got.tiers}")
                correct = correct and loaded.agrees(computed, got.hit_tokens)
    print("the KV is the one that was stored" if correct else "the KV differs")
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
