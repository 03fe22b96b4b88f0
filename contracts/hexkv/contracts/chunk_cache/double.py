"""A keyed cache in plain dictionaries: the port's meaning in as few lines as possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from hexkv.contracts.doubles import HeapBlock, HeapLease
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkService,
    ChunkSpec,
    Cleared,
    Deadline,
    DeviceKV,
    EngineClosed,
    FarTiers,
    Health,
    HoldTerms,
    InvalidRequest,
    Lease,
    Reason,
    Retrieved,
    Span,
    StoreReport,
    WholeChunks,
)

TIER = "heap"


class HeapHold(WholeChunks):
    """A hold whose reads are over when it is made."""

    def __init__(self, leases: list[HeapLease | None], reasons: list[Reason | None]) -> None:
        self._leases = leases
        self.reasons: Sequence[Reason | None] = reasons
        self.origins: Sequence[str] = ["" if lease is None else TIER for lease in leases]

        self.begun = next((i for i, why in enumerate(reasons) if why is not None), len(reasons))
        self.bytes = sum(lease.size for lease in leases if lease is not None)

    done = True

    def wait(self, deadline: Deadline, first: int | None = None) -> bool:
        """Return True: it was done at once."""
        del deadline, first
        return True

    def bring(self, group: int, deadline: Deadline) -> int:
        """Return how many of the first chunks are here, and release the others."""
        del group, deadline
        behind, self._leases[self.begun :] = self._leases[self.begun :], []
        for lease in behind:
            if lease is not None:
                lease.release()
        return self.begun

    @property
    def leases(self) -> Sequence[Lease | None]:
        """The leases on the chunks held."""
        return list(self._leases)

    def release(self) -> None:
        """Release all leases."""
        leases, self._leases = self._leases, []
        for lease in leases:
            if lease is not None:
                lease.release()


class HeapPublishing:
    """Writes that are over when they are made."""

    done = True
    targets: Collection[str] = ()

    def __init__(self, count: int) -> None:
        self.tiers: Mapping[str, Sequence[bool]] = {TIER: [True] * count}

    def wait(self, deadline: Deadline, tier: str | None = None) -> bool:
        """Return True: it was done at once."""
        del deadline, tier
        return True


class HeapChunkCache:
    """Chunks in one tier without a budget, over memory for *blocks* leased chunks.

    For tests of hosts: it evicts nothing, waits for nothing and never fails.
    """

    def __init__(self, blocks: int = 64, largest: int = 1 << 20) -> None:
        self._chunks: dict[ChunkKey, tuple[ChunkSpec, bytes]] = {}
        self._pins: dict[str, set[ChunkKey]] = {}
        self._ends: dict[str, float] = {}
        self._blocks: list[HeapBlock] = []
        self._most = blocks
        self._largest = largest
        self._closed = False

    def ledger(self) -> dict[str, int]:
        """The number of leases by owner."""
        owners: dict[str, int] = {}
        for block in self._blocks:
            for owner, count in block.owners.items():
                owners[owner] = owners.get(owner, 0) + count
        return owners

    def close(self) -> None:
        """Answer every later call with ``EngineClosed``."""
        self._closed = True

    def match(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        del deadline
        self._check()
        return [TIER if key in self._chunks else None for key in keys]

    def hold(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> HeapHold:
        del deadline
        self._check(wanted)
        leases: list[HeapLease | None] = []
        reasons: list[Reason | None] = []
        for spec in wanted:
            lease, reason = self._read(spec, owner)
            leases.append(lease)
            reasons.append(reason)
        return HeapHold(leases, reasons)

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[HeapLease]:
        del deadline
        self._check(wanted)
        found = []
        for spec in wanted:
            lease = self._lease(spec, bytes(spec.raw_bytes), owner)
            if lease is None:
                break
            found.append(lease)
        return found

    def publish(
        self, leases: Sequence[Lease], after: ChunkKey | None, deadline: Deadline
    ) -> HeapPublishing:
        del after, deadline
        self._check()
        for lease in leases:
            if lease.spec is None:
                raise InvalidRequest("a lease without a spec")
            self._chunks[lease.spec.key] = lease.spec, bytes(lease.payload)
        return HeapPublishing(len(leases))

    def load(self, wanted: Sequence[ChunkSpec], device: DeviceKV, deadline: Deadline) -> Retrieved:
        total = self._check_window(wanted, device)
        end, size, misses = 0, 0, 0
        for number, spec in enumerate(wanted):
            with self.hold([spec], "load", deadline) as hold:
                (lease,) = hold.leases
                if lease is None:
                    misses = len(wanted) - number
                    break
                span = Span(end, end + spec.tokens, lease.payload)
                device.scatter([span]).wait(deadline)
            end += spec.tokens
            size += spec.raw_bytes
        tiers = {TIER: end} if end else {}
        reasons = {Reason.ABSENT: misses} if misses else {}
        return Retrieved(total, end, end, size, tiers, reasons)

    def save(
        self,
        wanted: Sequence[ChunkSpec],
        device: DeviceKV,
        deadline: Deadline,
        *,
        wait: bool = True,
    ) -> StoreReport:
        del wait
        total = self._check_window(wanted, device)
        end = stored = present = size = 0
        for spec in wanted:
            if spec.key in self._chunks:
                present += spec.tokens
            else:
                data = memoryview(bytearray(spec.raw_bytes))
                device.gather([Span(end, end + spec.tokens, data)]).wait(deadline)
                self._chunks[spec.key] = spec, bytes(data)
                stored += spec.tokens
                size += spec.raw_bytes
            end += spec.tokens
        tiers = {TIER: stored} if stored else {}
        return StoreReport(total, stored, present, stored_bytes=size, tiers=tiers)

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        del deadline
        self._check()
        return sum(self._chunks.pop(key, None) is not None for key in dict.fromkeys(keys))

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        self._check()
        here = {key for key in keys if key in self._chunks}
        self._pins.setdefault(owner, set()).update(here)
        self._ends[owner] = inf if seconds is None else self._end(seconds)
        return len(here)

    @staticmethod
    def _end(seconds: float) -> float:
        return monotonic() + seconds

    def unpin(self, owner: str) -> int:
        self._check()
        lasts = self._ends.pop(owner, 0.0) > monotonic()
        pinned = self._pins.pop(owner, ())
        return len(pinned) if lasts else 0

    def flush(self, deadline: Deadline) -> bool:
        del deadline
        self._check()
        return True

    def _read(self, spec: ChunkSpec, owner: str) -> tuple[HeapLease | None, Reason | None]:
        kept, data = self._chunks.get(spec.key, (None, b""))
        if kept is None:
            return None, Reason.ABSENT
        if len(data) != spec.raw_bytes:
            return None, Reason.CORRUPT
        lease = self._lease(kept, data, owner)
        return lease, None if lease is not None else Reason.REFUSED

    def _lease(self, spec: ChunkSpec, data: bytes, owner: str) -> HeapLease | None:
        self._blocks = [block for block in self._blocks if block.held]
        if len(self._blocks) >= self._most:
            return None
        block = HeapBlock(bytes(PAGE) + data, spec)
        self._blocks.append(block)
        return block.lease(owner)

    def _check(self, wanted: Sequence[ChunkSpec] = ()) -> None:
        if self._closed:
            raise EngineClosed("the cache was closed")
        if any(spec.raw_bytes > self._largest for spec in wanted):
            raise InvalidRequest(f"a chunk is larger than {self._largest} bytes")

    def _check_window(self, wanted: Sequence[ChunkSpec], device: DeviceKV) -> int:
        self._check(wanted)
        total = sum(spec.tokens for spec in wanted)
        if device.tokens != total:
            raise InvalidRequest(f"a window on {device.tokens} positions for {total} tokens")
        return total


class HeapService(FarTiers, HeapChunkCache):
    """The same as a :class:`~hexkv.ports.ChunkService`: requests may be written over it."""

    @property
    def pool_bytes(self) -> int:
        return self._most * self._largest

    def fits(self, payload_bytes: int) -> bool:
        return payload_bytes <= self._largest

    def match(
        self,
        keys: Sequence[ChunkKey],
        deadline: Deadline,
        *,
        served: bool = True,
        below: int = 0,
        loads: bool = False,
    ) -> Sequence[str | None]:
        del served, below, loads
        return super().match(keys, deadline)

    def stored(
        self,
        keys: Sequence[ChunkKey],
        after: ChunkKey | None,
        owner: str,
        deadline: Deadline,
        *,
        below: int = 0,
        asks: bool = True,
    ) -> Sequence[bool]:
        del after, owner, below, asks
        return [tier is not None for tier in self.match(keys, deadline)]

    def hold(
        self,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        terms: HoldTerms = HoldTerms(),  # noqa: B008 - a tuple
    ) -> HeapHold:
        del terms
        return super().hold(wanted, owner, deadline)

    def reserve(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> HeapHold:
        leases = self.allocate(wanted, owner, deadline)
        return HeapHold([*leases], [None] * len(leases))

    def publish(
        self,
        leases: Sequence[Lease],
        after: ChunkKey | None,
        deadline: Deadline,
        *,
        transfer: bool = False,
        keep: str | None = None,
        wait: bool = True,
    ) -> HeapPublishing:
        del keep, wait
        publishing = super().publish(leases, after, deadline)
        for lease in leases if transfer else ():
            lease.release()
        return publishing

    def sweep(self, owner: str) -> int:
        left = self.ledger().get(owner, 0)
        for block in self._blocks:
            block.sweep(owner)
        return left

    def clear(
        self,
        prefixes: Collection[bytes] | None,
        tiers: Sequence[str] | None,
        deadline: Deadline,
        tails: Sequence[tuple[ChunkKey, int]] = (),
    ) -> Cleared:
        del tiers, deadline
        starts = None if prefixes is None else (*prefixes, *[key for key, _ in tails])
        gone = [key for key in self._chunks if starts is None or key.startswith(starts)]
        for key in gone:
            del self._chunks[key]
        return Cleared(len(gone), {TIER: len(gone)})

    def health(self, deadline: Deadline) -> Health | None:
        del deadline
        return Health("open", False, (), self.pool_bytes, 0, self.ledger(), {}, {}, 0)

    def close(self, deadline: Deadline | None = None) -> None:
        del deadline
        super().close()


if TYPE_CHECKING:

    def _is_a_service(service: HeapService) -> ChunkService:
        return service
