"""One tier: a store with a name, a place in the order, an index, lanes and rules.

Everything a store may do wrong becomes an outcome here: an exception, an answer of the
wrong length, an index that lags behind. Nothing of it goes further up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import NamedTuple

from hexkv.core.io.scheduler import Lane, LaneRules, Priority, Refused
from hexkv.core.tiers.rates import Link
from hexkv.core.tiers.tenants import Index
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Entry,
    Failed,
    Item,
    Lease,
    ReadOutcome,
    Sink,
    StoreError,
    SupportsOthers,
    SupportsQuarantine,
    SupportsScan,
    SupportsSharing,
    WriteOutcome,
    namespace_of,
)

log = logging.getLogger("hexkv")

_AT_ONCE = 1024
"""Chunks that a store is told to delete at a time: what is done need not be done again."""

_OWED = 4096
"""Chunks of which a tier remembers that it should have been given them."""


class Writes(StrEnum):
    """Which chunks are stored on a tier."""

    ALL = "all"
    """Every new one."""

    EVICTED = "evicted"
    """What the tier before it evicts."""

    NONE = "none"


@dataclass(frozen=True, slots=True)
class TierRules:
    """What may be done with a tier."""

    writes: Writes = Writes.ALL
    reads: bool = True
    promotes: bool = True
    """Chunks found further down are copied here."""

    retries: int = 1
    """How often a call that failed is made again, within its deadline."""

    serdes: tuple[str, ...] = ("raw",)
    """What may encode new chunks on their way to the tier, the most faithful first."""

    lane: LaneRules = field(default_factory=LaneRules)


_UNDELETED = "the store failed to delete"
_REPLACED = "something is being replaced"


class Gone(NamedTuple):
    """What went from a tier that was to go."""

    keys: Sequence[ChunkKey]
    """Those that were there, as far as that is known."""

    why: str
    """Why something may be left; empty if nothing is."""


@dataclass(slots=True, eq=False)
class Tier:
    """A store, what the core knows of its content, and what may be done with it."""

    name: str
    store: ChunkStore

    index: Index | None = None
    """What the tier holds, as far as this engine decides it. ``None``: ask the store."""

    rules: TierRules = field(default_factory=TierRules)

    failures: int = 0
    """Calls that the store answered with an exception."""

    indexing: bool = False
    """Whether the index is still learning what the store holds."""

    reading: Lane | None = field(default=None, init=False)
    writing: Lane | None = field(default=None, init=False)
    """The lanes of a tier that does I/O; made when the tier joins a stack."""

    link: Link = field(default_factory=Link, init=False)
    """How fast reads were."""

    sharing: SupportsSharing | None = field(init=False)
    shared: bool = field(init=False)
    """Whether others add and remove chunks beside this engine."""

    _owed: dict[ChunkKey, None] = field(default_factory=dict, init=False)
    _undeleted: list[ChunkKey] = field(default_factory=list, init=False)
    _replaced: set[ChunkKey] = field(default_factory=set, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        # Asked once: a runtime protocol check costs microseconds.
        self.sharing = self.store if isinstance(self.store, SupportsSharing) else None
        self.shared = isinstance(self.store, SupportsOthers) and self.store.shared

    @property
    def off(self) -> bool:
        """Whether the breaker keeps calls from it at present."""
        return self.reading is not None and self.reading.breaker.refuses

    @property
    def remote(self) -> bool:
        """Whether only the store can say all that it holds, and takes I/O to do so."""
        return self.reading is not None and (self.index is None or self.indexing or self.shared)

    def lane(self, priority: Priority) -> Lane:
        """Where work of *priority* is queued.

        Raises:
            Refused: the tier does no I/O.
        """
        lane = self.writing if priority.writing else self.reading
        if lane is None:
            raise Refused("closed")
        return lane

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Whether each chunk is there, from the index or from the store itself."""
        if self.index is None or self.indexing:
            return self._stored(keys, deadline)
        known = self.index.contains(keys)
        if not self.shared or all(known):
            return known
        rest = iter(
            self._stored([k for k, here in zip(keys, known, strict=True) if not here], deadline)
        )
        return [here or next(rest) for here in known]

    def known(self, keys: Sequence[ChunkKey]) -> Sequence[bool]:
        """Whether the index knows each chunk to be there; asks no store."""
        return [False] * len(keys) if self.index is None else self.index.contains(keys)

    def met(self, found: Sequence[tuple[ChunkKey, int]], wall: float) -> Sequence[ChunkKey]:
        """Take chunks that others have stored into the index, with the size of their frames.

        Victims to evict, where that is more than the budget.
        """
        if self.index is None or not self.shared:
            return ()
        known = self.index.contains([key for key, _ in found])
        strange = [
            Entry(key, size, wall)
            for (key, size), here in zip(found, known, strict=True)
            if not here
        ]
        return self.index.restore(strange) if strange else ()

    def _stored(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        try:
            found = self.store.contains(keys, deadline)
        except Exception as error:  # noqa: BLE001 - a store's failure is never the engine's
            self.failed("contains", error)
            return [False] * len(keys)
        return found if len(found) == len(keys) else [False] * len(keys)

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        """The store's answers, or its failure once for each chunk."""
        try:
            outcomes = self.store.read(keys, sink, deadline)
        except Exception as error:  # noqa: BLE001
            self.failed("read", error)
            return [Failed(error)] * len(keys)
        if len(outcomes) != len(keys):
            return [Failed(self._short_answer(len(keys), len(outcomes)))] * len(keys)
        return outcomes

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        """Likewise."""
        try:
            outcomes = self.store.write(items, deadline)
        except Exception as error:  # noqa: BLE001
            self.failed("write", error)
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
            self.failed("lend", error)
            return [None] * len(keys)
        return leases if len(leases) == len(keys) else [None] * len(keys)

    def keep(self, key: ChunkKey, lease: Lease) -> bool:
        """Let a tier in memory keep a share of a block. Whether it does."""
        if self.sharing is None:
            return False
        try:
            self.sharing.keep(key, lease)
        except Exception as error:  # noqa: BLE001
            self.failed("keep", error)
            return False
        return True

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Remove chunks that the index let go of, and give their bytes back to the budget.

        What the store fails to delete still takes room: it is put off. Whether all of *keys*
        are gone.
        """
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            if start and deadline.expired:
                self.put_off(keys[start:])
                return False
            try:
                self.store.delete(part, deadline)
            except Exception as error:  # noqa: BLE001
                self.failed("delete", error)
                self.put_off(keys[start:])
                return False
            if self.index is not None:
                self.index.deleted(part)
        return True

    def put_off(self, keys: Sequence[ChunkKey]) -> None:
        """Remember to delete chunks that the index let go of; they count until :meth:`sweep`."""
        if self.index is not None:
            with self._lock:
                self._undeleted.extend(keys)

    def sweep(self, deadline: Deadline) -> bool | None:
        """Delete some of what was put off. Whether that went well; ``None``: there was nothing."""
        with self._lock:
            part, self._undeleted = self._undeleted[:_AT_ONCE], self._undeleted[_AT_ONCE:]
        return self.delete(part, deadline) if part else None

    @contextmanager
    def replacing(self, key: ChunkKey, owner: str) -> Iterator[bool]:
        """Whether *owner* may put something in the place of a chunk; then nobody else may.

        Nor is it evicted or cleared meanwhile: the index would lose track of its size.
        """
        with self._lock:
            free = key not in self._replaced
            self._replaced.add(key)
        if not free:
            yield False
            return
        try:
            yield self.index is None or self.index.pin(owner, [key]) == 1
        finally:
            if self.index is not None:
                self.index.unpin(owner)
            with self._lock:
                self._replaced.remove(key)

    def owe(self, keys: Sequence[ChunkKey]) -> None:
        """Remember that chunks should be here, and could not be written; the oldest go first."""
        with self._lock:
            self._owed.update(dict.fromkeys(keys))
            while len(self._owed) > _OWED:
                del self._owed[next(iter(self._owed))]

    def owed(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Those of *keys* that should be here; from now on nobody else is told so."""
        if not self._owed:
            return []
        with self._lock:
            mine = [key for key in keys if key in self._owed]
            for key in mine:
                del self._owed[key]
        return mine

    def let_go(self, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        """Have the index forget chunks whoever has pinned them. Those to delete from the store."""
        return [] if self.index is None else self.index.discard(self._not_replaced(keys))

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Gone:
        """Delete chunks whoever has pinned them. Those that were here, where that is known."""
        free = self._not_replaced(keys)
        gone = free if self.index is None else self.index.discard(free)
        # What the index has not learnt of, others may have put there all the same.
        every = self.index is None or self.indexing or self.shared
        well = self.delete(free if every else gone, deadline)
        busy = [] if len(free) == len(keys) else self.known(keys)
        return Gone(gone, _UNDELETED if not well else _REPLACED if any(busy) else "")

    def clear(self, prefixes: Collection[bytes] | None, deadline: Deadline) -> Gone:
        """Delete whatever the namespaces left here whose keys begin so; ``None`` for everything."""

        def wanted(keys: Iterable[ChunkKey]) -> list[ChunkKey]:
            return [key for key in keys if prefixes is None or namespace_of(key) in prefixes]

        known = [] if self.index is None else wanted(self.index.keys())
        if self.index is not None and not self.indexing and not self.shared:
            return self.forget(known, deadline)
        if not isinstance(self.store, SupportsScan):
            return Gone((), "its store cannot list what it holds")
        try:
            found = wanted(entry.key for entry in self.store.scan())
        except Exception as error:  # noqa: BLE001
            self.failed("scan", error)
            return self.forget(known, deadline)._replace(why="its store did not list all it holds")
        return self.forget(list(dict.fromkeys([*known, *found])), deadline)

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        """Make damaged chunks unreadable, and keep them for a person where the store can."""
        gone = keys if self.index is None else self.index.discard(keys)
        if isinstance(self.store, SupportsQuarantine):
            try:
                self.store.quarantine(keys, deadline)
            except Exception as error:  # noqa: BLE001
                self.failed("quarantine", error)
            else:
                if self.index is not None:
                    self.index.deleted(gone)
                return
        self.delete(keys, deadline)

    def close(self) -> None:
        """Let the workers go and close the store, whatever it says to that."""
        for lane in (self.reading, self.writing):
            if lane is not None:
                lane.close()
        try:
            self.store.close()
        except Exception as error:  # noqa: BLE001
            self.failed("close", error)

    def failed(self, what: str, error: Exception) -> None:
        """Count a call that the store did not answer."""
        self.failures += 1
        log.warning("tier %s: %s failed: %s: %s", self.name, what, type(error).__name__, error)

    def _not_replaced(self, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        with self._lock:
            return [key for key in keys if key not in self._replaced]

    def _short_answer(self, asked: int, answered: int) -> StoreError:
        error = StoreError(f"{self.name} answered {answered} of {asked} chunks")
        self.failed("answer", error)
        return error
