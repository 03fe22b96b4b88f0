"""One tier: a store with a name, a place in the order, an index and rules.

Everything a store may do wrong becomes an outcome here: an exception, an answer of the
wrong length, an index that lags behind. Nothing of it goes further up.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from hexkv.core.index import TierIndex
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Failed,
    Item,
    Lease,
    ReadOutcome,
    Sink,
    StoreError,
    SupportsQuarantine,
    SupportsScan,
    SupportsSharing,
    WriteOutcome,
)

log = logging.getLogger("hexkv")


@dataclass(slots=True, eq=False)
class Tier:
    """A store, what the core knows of its content, and what may be done with it."""

    name: str
    store: ChunkStore

    index: TierIndex | None = None
    """What the tier holds, where this engine alone decides that. ``None``: ask the store."""

    writes: bool = True
    """New chunks are stored here."""

    promotes: bool = True
    """Chunks found further down are copied here."""

    failures: int = 0
    """Calls that the store answered with an exception."""

    undeleted: list[ChunkKey] = field(default_factory=list)
    """Chunks that the index let go of and the store did not delete yet."""

    sharing: SupportsSharing | None = field(init=False)

    def __post_init__(self) -> None:
        # Asked once: a runtime protocol check costs microseconds.
        self.sharing = self.store if isinstance(self.store, SupportsSharing) else None

    def rebuild(self, deadline: Deadline) -> None:
        """Fill the index from what the store holds, and delete what is over the budget."""
        if self.index is None or not isinstance(self.store, SupportsScan):
            return
        try:
            entries = list(self.store.scan())
        except Exception as error:  # noqa: BLE001 - a store's failure is never the engine's
            self._failed("scan", error)
            return
        self.delete(self.index.restore(entries), deadline)

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Whether each chunk can be expected here."""
        if self.index is not None:
            return self.index.contains(keys)
        try:
            found = self.store.contains(keys, deadline)
        except Exception as error:  # noqa: BLE001
            self._failed("contains", error)
            return [False] * len(keys)
        return found if len(found) == len(keys) else [False] * len(keys)

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        """The store's answers, or its failure once for each chunk."""
        try:
            outcomes = self.store.read(keys, sink, deadline)
        except Exception as error:  # noqa: BLE001
            self._failed("read", error)
            return [Failed(error)] * len(keys)
        if len(outcomes) != len(keys):
            return [Failed(self._short_answer(len(keys), len(outcomes)))] * len(keys)
        return outcomes

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        """Likewise."""
        try:
            outcomes = self.store.write(items, deadline)
        except Exception as error:  # noqa: BLE001
            self._failed("write", error)
            return [Failed(error)] * len(items)
        if len(outcomes) != len(items):
            return [Failed(self._short_answer(len(items), len(outcomes)))] * len(items)
        return outcomes

    def lend(self, keys: Sequence[ChunkKey], owner: str) -> Sequence[Lease | None]:
        """Shares of the blocks that a tier in memory keeps."""
        if self.sharing is None:
            return [None] * len(keys)
        try:
            leases = self.sharing.lend(keys, owner)
        except Exception as error:  # noqa: BLE001
            self._failed("lend", error)
            return [None] * len(keys)
        return leases if len(leases) == len(keys) else [None] * len(keys)

    def keep(self, key: ChunkKey, lease: Lease) -> bool:
        """Let a tier in memory keep a share of a block. Whether it does."""
        if self.sharing is None:
            return False
        try:
            self.sharing.keep(key, lease)
        except Exception as error:  # noqa: BLE001
            self._failed("keep", error)
            return False
        return True

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        """Remove chunks that the index let go of, and give their bytes back to the budget.

        What the store fails to delete still takes room: it counts until a later call
        has deleted it.
        """
        keys = [*self.undeleted, *keys]
        self.undeleted = []
        if not keys:
            return
        try:
            self.store.delete(keys, deadline)
        except Exception as error:  # noqa: BLE001
            self._failed("delete", error)
            self.undeleted = keys
            return
        if self.index is not None:
            self.index.deleted(keys)

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[ChunkKey]:
        """Delete chunks whoever has pinned them. Those that were here, where that is known."""
        gone = keys if self.index is None else self.index.discard(keys)
        self.delete(gone, deadline)
        return gone

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        """Make damaged chunks unreadable, and keep them for a person where the store can."""
        gone = keys if self.index is None else self.index.discard(keys)
        if isinstance(self.store, SupportsQuarantine):
            try:
                self.store.quarantine(keys, deadline)
            except Exception as error:  # noqa: BLE001
                self._failed("quarantine", error)
            else:
                if self.index is not None:
                    self.index.deleted(gone)
                return
        self.delete(gone, deadline)

    def close(self) -> None:
        """Close the store, whatever it says to that."""
        try:
            self.store.close()
        except Exception as error:  # noqa: BLE001
            self._failed("close", error)

    def _short_answer(self, asked: int, answered: int) -> StoreError:
        error = StoreError(f"{self.name} answered {answered} of {asked} chunks")
        self._failed("answer", error)
        return error

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        log.warning("tier %s: %s failed: %s: %s", self.name, what, type(error).__name__, error)
