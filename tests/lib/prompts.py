"""What tests of whole engines share: a prompt of ten chunks and a tail, and where it is kept."""

import random

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.memory.store import MemoryStore
from rigging import CHUNK, FRAME, LAYOUT, tier

PROMPT = random.Random(1).choices(range(50_000), k=10 * CHUNK + 5)
FULL = 10 * CHUNK


def computed(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def empty(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens))


def memory():
    return tier("memory", MemoryStore(ManualClock()))


def disk(path, **options):
    return tier("disk", DiskStore(path), **options)


def files_in(path):
    return sorted(f for f in path.rglob("*") if f.is_file() and f.stat().st_size >= FRAME)
