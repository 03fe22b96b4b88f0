"""The eviction policies that come with hexkv, by their names in a configuration.

KV is only useful from the start of a prompt on: a chunk without those before it is dead weight. So
all of them evict the last chunk of a call before the first, and LRU and LFU never evict a parent
before its child, in any order of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hexkv.core.policies.arc import ARC
from hexkv.core.policies.fifo import FIFO
from hexkv.core.policies.lfu import LFU
from hexkv.core.policies.lru import LRU
from hexkv.core.policies.mru import MRU
from hexkv.ports import Policy

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {"lru": LRU, "lfu": LFU, "fifo": FIFO, "mru": MRU, "arc": ARC}
)

__all__ = ["ARC", "FIFO", "LFU", "LRU", "MRU", "POLICIES"]
