"""Chunks that are being written to the tiers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hexkv.core.tiers.batches import Pending
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkKey, Deadline


class Published:
    """Chunks being written to the tiers; see :class:`hexkv.ports.ServicePublishing`."""

    def __init__(
        self,
        tiers: Sequence[Tier] = (),
        keys: Sequence[ChunkKey] = (),
        written: Mapping[str, Pending] | None = None,
    ) -> None:
        """Report *keys*, *written* to *tiers*; by default nothing is."""
        self._tiers = tiers
        self._keys = keys
        self._written = written or {}

    @property
    def targets(self) -> Collection[str]:
        return self._written

    @property
    def done(self) -> bool:
        return all(pending.done for pending in self._written.values())

    def wait(self, deadline: Deadline, tier: str | None = None) -> bool:
        if tier is not None:
            return self._written[tier].wait(deadline)
        waits = [pending.wait(deadline) for pending in self._written.values()]
        return all(waits)

    @property
    def tiers(self) -> Mapping[str, Sequence[bool]]:
        on: dict[str, Sequence[bool]] = {n: it.result for n, it in self._written.items()}
        for tier in self._tiers:
            row = on.get(tier.name, ())
            if tier.index.decides and True in row:
                # A concurrent clear may have deleted it.
                here = tier.index.contains(self._keys)
                on[tier.name] = [a and b for a, b in zip(row, here, strict=True)]
        return on
