"""Pass the chunks of tiers in blocks of the pool from one process to the next.

The blocks stay where they are. The next process adopts them
(:meth:`hexkv.core.memory.pool.BlockPool.adopt`), and lets its own tiers keep them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.evicting import background_deadline
from hexkv.ports import Change, Entry, Lease

_AT_ONCE = 1024


def kept(stack: TierStack, owner: str) -> Iterator[tuple[str, Lease]]:
    """Yield, by tier, leases of *owner* on its chunks in the pool, the least valuable first."""
    for tier in stack.tiers:
        if tier.lends and not tier.own_memory:
            keys = tier.index.ranked()
            for start in range(0, len(keys), _AT_ONCE):
                for lease in tier.calls.get_lease(keys[start : start + _AT_ONCE], owner):
                    if lease is not None:
                        yield tier.name, lease


def keep(stack: TierStack, name: str, leases: Sequence[Lease]) -> int:
    """Have a tier keep the blocks of its predecessor of the same *name*. Return how many it keeps.

    Zero if no tier in memory has that *name*. With a smaller budget the first of *leases*, which
    are in the order of :func:`kept`, are evicted.
    """
    for tier in stack.tiers:
        if tier.name != name or not tier.lends or tier.own_memory:
            continue
        specs = [lease.spec for lease in leases]
        keys = [spec.key for spec in specs if spec is not None]
        here = tier.calls.put_leases(keys, leases, background_deadline(stack.runtime))
        # Each gets a second of its own: so they are adopted one after the other, in this order.
        entries = [
            Entry(key, len(lease.frame), float(number))
            for number, (key, lease, kept) in enumerate(zip(keys, leases, here, strict=True))
            if kept
        ]
        victims = tier.index.restore(entries)
        stack.runtime.tell(Change.STORED, tier.name, [entry.key for entry in entries])
        stack.writer.evict(tier, victims, background_deadline(stack.runtime))
        return len(entries) - len(victims)
    return 0


def give_up(stack: TierStack) -> None:
    """Close the tiers outside the memory, which belongs to another process from now on.

    No block of the pool is written or released; ``BlockPool.freeze`` came first.
    """
    for tier in stack.tiers:
        if not tier.lends or tier.own_memory:
            tier.close()
    stack.runtime.closing()  # for a directory, where only one process at a time has a name
