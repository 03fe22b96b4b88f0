"""What a tier's index writes down, and how it is mended after a change that did not end.

Of all that is written down, sizes, reservations, what is leaving and who pins what are the truth.
The sum of bytes, the counts of pins and the policy follow from them, so an exception out of nowhere
in the middle of a change costs nothing: the next change derives them anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from threading import Lock

from hexkv.core.tiers.checked import CheckedPolicy
from hexkv.core.tiers.keypins import KeyPins
from hexkv.core.tiers.reservation import Claimed, Pending, recount
from hexkv.ports import ChunkKey, Entry, Policy

_AT_ONCE = 1024
"""Chunks that a restart takes over at a time: others use the index in between."""


class Bookkeeping:
    """The books of one index. All of it is used under its lock."""

    def __init__(self, policy: Policy) -> None:
        self._sizes: dict[ChunkKey, int] = {}
        self._policy = CheckedPolicy(policy, self._sizes)
        self._lock = Lock()
        self._reserved: dict[ChunkKey, Pending] = {}
        self._leaving: dict[ChunkKey, Pending] = {}
        self._pins = KeyPins()
        self._used = 0
        self._torn = False
        """True while a change is under way; a change that finds it so derives everything anew."""

    def __len__(self) -> int:
        return len(self._sizes)

    def size(self, key: ChunkKey) -> int | None:
        """Bytes of a resident chunk, ``None`` for any other."""
        return self._sizes.get(key)

    def keys(self) -> list[ChunkKey]:
        """Every resident chunk, in one copy: the only call that grows with the tier."""
        with self._lock:
            return list(self._sizes)

    def _freed(self) -> int:
        return sum(claim.freed for claim in {pending.claim for pending in self._leaving.values()})

    def _evictable(self, spared: Collection[ChunkKey | None]) -> Iterator[ChunkKey]:
        return (
            key for key in self._policy.victims() if key not in self._pins and key not in spared
        )

    def _dismiss(self, keys: Sequence[ChunkKey], claim: Claimed, *, evicted: bool) -> None:
        """From resident to leaving: not found any more, but still on the store."""
        for key in keys:
            size = self._sizes[key]
            self._leaving[key] = Pending(size, claim)
            del self._sizes[key]
            self._used -= size
            self._settle(claim, leaving=size)
            self._policy.drop(key, evicted=evicted)

    def _settle_reserved(self, keys: Iterable[ChunkKey]) -> dict[ChunkKey, Pending]:
        # All are looked up before any is changed. A prompt may hold a segment twice.
        settled = {key: self._reserved[key] for key in keys}
        for key, pending in settled.items():
            del self._reserved[key]
            self._settle(pending.claim, writing=-pending.size)
        return settled

    def _settle(self, claim: Claimed, *, writing: int = 0, leaving: int = 0) -> None:
        self._used -= max(claim.writing, claim.leaving)
        claim.writing += writing
        claim.leaving += leaving
        self._used += max(claim.writing, claim.leaving)

    def _derive(self) -> None:
        for key in self._leaving:
            self._sizes.pop(key, None)
            self._reserved.pop(key, None)
        for key in [key for key in self._reserved if key in self._sizes]:
            del self._reserved[key]
        self._used = sum(self._sizes.values()) + recount(self._reserved, self._leaving)
        self._pins.derive(self._sizes)
        known = set(self._policy.known())
        for key in known.difference(self._sizes):
            self._policy.drop(key, evicted=False)
        if new := [key for key in self._sizes if key not in known]:
            self._policy.admit(new, None)


def in_order(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """What a scan found, in parts to adopt one after the other: the oldest first.

    A prompt's chunks were written one after the other, the beginning first. Those of one
    second pass for one request, or every parent would be older than its child.
    """
    found = sorted(entries, key=lambda entry: entry.stored)
    for _, second in groupby(found, key=lambda entry: entry.stored // 1):
        together = list(second)
        # The end first: what is admitted last is the youngest, and that is the beginning.
        for start in reversed(range(0, len(together), _AT_ONCE)):
            yield together[start : start + _AT_ONCE]
