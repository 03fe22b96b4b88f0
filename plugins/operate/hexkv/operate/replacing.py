"""Replacing: another form of a chunk takes the place of the one on a tier."""

from __future__ import annotations

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.write.framing import expected, recount
from hexkv.core.tiers.write.writing import Writer
from hexkv.ports import ChunkKey, Deadline, Item, Stored


def replace(
    writer: Writer, tier: Tier, key: ChunkKey, block: BlockLease, owner: str, deadline: Deadline
) -> bool:
    """Replace the chunk on *tier* by the frame of *block*.

    A store's write replaces a frame as a whole, so the chunk can be read all the time. Return True
    if it was replaced; False if it is absent, does not fit, or another call replaces it.
    """
    mine = block.share(f"write {tier.name}")  # not the call's, which may end before the write

    def work(go: bool) -> tuple[bool, bool | None]:
        with mine:
            return (go and _replace(writer, tier, key, mine, owner, deadline)), None

    try:
        ticket = tier.submit(Priority.PUT, len(block.frame), work, deadline)
    except Refused:
        mine.release()
        return False
    return bool(ticket.wait(deadline) and ticket.result)


def _replace(
    writer: Writer, tier: Tier, key: ChunkKey, block: BlockLease, owner: str, deadline: Deadline
) -> bool:
    index, size = tier.index, expected(tier, block)
    with tier.replacing(key, owner) as mine:
        if not mine:
            return False
        former = index.size(key) or size
        victims = index.resize(key, max(size, former))
        if victims is None:
            return False
        if not writer.evict(tier, victims, deadline):
            index.resize(key, former)
            return False
        batch = Batch([key], [block], None)
        (outcome,) = writer.write(tier, [Item(key, block.frame)], batch, deadline)
        ok = isinstance(outcome, Stored)
        if index.resize(key, size if ok else former) is None:
            tier.delete([key], deadline)  # set aside as damaged in the meantime
            return False
        return ok and not recount(tier, [key], writer.evict, deadline)
