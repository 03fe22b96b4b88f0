"""Storing: what no tier holds is copied from the device, once, and written to all of them."""

from __future__ import annotations

from collections import Counter as Tally
from contextlib import ExitStack
from dataclasses import dataclass, field

from hexkv.core.copying import Copier
from hexkv.core.pool import BlockLease
from hexkv.core.prompts import Prompt
from hexkv.core.stack import TierStack
from hexkv.ports import Deadline, DeviceKV, PoolExhausted


@dataclass(slots=True)
class Kept:
    """What a store kept so far, in tokens."""

    present: int = 0
    present_chunks: int = 0
    stored: int = 0
    size: int = 0
    dropped: int = 0
    tiers: Tally[str] = field(default_factory=Tally)


def store_missing(
    stack: TierStack,
    copier: Copier,
    prompt: Prompt,
    device: DeviceKV,
    *,
    window: int,
    owner: str,
    deadline: Deadline,
) -> Kept:
    """Gather and write the chunks of *prompt* that no tier holds, *window* at a time.

    Raises:
        InvalidRequest: the device says so.
    """
    kept = Kept()
    missing = []
    for i, tier in enumerate(stack.where(prompt.keys, deadline)):
        if tier >= 0:
            kept.present += prompt.tokens(i)
            kept.present_chunks += 1
        else:
            missing.append(i)
    try:
        while missing:
            count = 1
            while count < min(window, len(missing)) and missing[count] == missing[0] + count:
                count += 1
            part = prompt.part(missing[0], missing[0] + count)
            taken = _store(stack, copier, part, device, owner, deadline, kept)
            if not taken:
                break
            missing = missing[taken:]
    finally:
        stack.unpin(owner)
    kept.dropped += sum(prompt.tokens(i) for i in missing)
    return kept


def _store(
    stack: TierStack,
    copier: Copier,
    part: Prompt,
    device: DeviceKV,
    owner: str,
    deadline: Deadline,
    kept: Kept,
) -> int:
    """Store as many chunks of *part*, from its beginning, as there are blocks for."""
    with ExitStack() as held:
        leases: list[BlockLease] = []
        for i in range(len(part)):
            # Only the first block is waited for, see PoolSink.
            wait = Deadline(deadline.clock, 0.0) if leases else deadline
            try:
                lease = stack.pool.lease(part.raw_bytes(i), owner, wait)
            except PoolExhausted:
                break
            leases.append(held.enter_context(lease))
        if not leases:
            return 0
        part = part.part(0, len(leases))
        spans = [part.span(i, lease.payload) for i, lease in enumerate(leases)]
        if not copier.copy(device, spans, leases, deadline, gather=True):
            return 0
        on = stack.put(part, leases, deadline)
    # Until the call ends, so that the end of a long prompt never pushes out its beginning.
    stack.pin(owner, part.keys)
    for i in range(len(part)):
        tokens = part.tokens(i)
        tiers = [name for name, here in on.items() if here[i]]
        kept.tiers.update(dict.fromkeys(tiers, tokens))
        if tiers:
            kept.stored += tokens
            kept.size += part.raw_bytes(i)
        else:
            kept.dropped += tokens
    return len(part)
