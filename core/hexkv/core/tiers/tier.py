"""One tier: a store with a name, a place in the order, an index, lanes and rules.

Everything a store may do wrong becomes an outcome here: an exception, an answer that is none
(:mod:`hexkv.core.tiers.answers`), an index that lags behind. Nothing of it goes further up:
no other module calls a store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.io.scheduler import Lane
from hexkv.core.tiers import answers
from hexkv.core.tiers.backlog import Backlog
from hexkv.core.tiers.indexes import Index, Unindexed
from hexkv.core.tiers.rates import Link
from hexkv.core.tiers.rules import TierRules
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    ConfigError,
    Deadline,
    Entry,
    Failed,
    Item,
    Lease,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    StoreError,
    SupportsClear,
    SupportsOthers,
    SupportsOwnMemory,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsSharing,
    WriteOutcome,
)

log = logging.getLogger("hexkv")

_AT_ONCE = 1024
"""Chunks that a store is told to delete at a time: what is done need not be done again."""


@dataclass(slots=True, eq=False)
class Tier:
    """A store, what the core knows of its content, and what may be done with it."""

    name: str
    store: ChunkStore

    index: Index = field(default_factory=Unindexed)
    """What the tier holds, as far as this engine decides it."""

    rules: TierRules = field(default_factory=TierRules)

    failures: int = 0
    """Calls that the store answered with an exception, or with what is no answer."""

    indexing: bool = False
    """Whether the index is still learning what the store holds."""

    reading: Lane | None = field(default=None, init=False)
    writing: Lane | None = field(default=None, init=False)
    """The lanes of a tier that does I/O; made when the tier joins a stack."""

    link: Link = field(default_factory=Link, init=False)
    """How fast reads were."""

    sharing: SupportsSharing | None = field(init=False)
    scanning: SupportsScan | None = field(init=False)
    clearing: SupportsClear | None = field(init=False)
    ranges: SupportsRangeRead | None = field(init=False)
    quarantining: SupportsQuarantine | None = field(init=False)
    """The store, where it has that ability."""

    shared: bool = field(init=False)
    """Whether others add and remove chunks beside this engine."""

    own_memory: bool = field(init=False)
    """True if what the tier keeps takes memory of its store, and none of the pool."""

    backlog: Backlog = field(default_factory=Backlog, init=False)
    """What should be here and could not be written."""

    _undeleted: list[ChunkKey] = field(default_factory=list, init=False)
    _replaced: set[ChunkKey] = field(default_factory=set, init=False)
    _deleting: set[ChunkKey] = field(default_factory=set, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        # Asked once: a runtime protocol check costs microseconds.
        store = self.store
        self.sharing = store if isinstance(store, SupportsSharing) else None
        self.scanning = store if isinstance(store, SupportsScan) else None
        self.clearing = store if isinstance(store, SupportsClear) else None
        self.ranges = store if isinstance(store, SupportsRangeRead) else None
        self.quarantining = store if isinstance(store, SupportsQuarantine) else None
        others: object = store.shared if isinstance(store, SupportsOthers) else False
        own: object = store.own_memory if isinstance(store, SupportsOwnMemory) else False
        self.shared = _declared(self.name, "shared", others)
        self.own_memory = _declared(self.name, "own_memory", own)

    @property
    def off(self) -> bool:
        """Whether the breaker keeps calls from it at present."""
        return self.reading is not None and self.reading.breaker.refuses

    @property
    def remote(self) -> bool:
        """Whether only the store can say all that it holds, and takes I/O to do so."""
        return self.reading is not None and (not self.index.decides or self.indexing or self.shared)

    def lane(self, priority: Priority) -> Lane:
        """Where work of *priority* is queued.

        Raises:
            Refused: the tier does no I/O.
        """
        lane = self.writing if priority.writing else self.reading
        if lane is None:
            raise Refused(Reason.CLOSED)
        return lane

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Whether each chunk is there, from the index or from the store itself."""
        if not self.index.decides or self.indexing:
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
        return self.index.contains(keys)

    def met(self, found: Sequence[tuple[ChunkKey, int]], wall: float) -> Sequence[ChunkKey]:
        """Take chunks that others have stored into the index, with the size of their frames.

        Victims to evict, where that is more than the budget.
        """
        if not self.shared or not self.index.decides:
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
            return answers.flags(self.store.contains(tuple(keys), deadline), len(keys))
        except Exception as error:  # noqa: BLE001 - a store's failure is never the engine's
            self.failed("contains", error)
            return [False] * len(keys)

    def read(self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline) -> list[ReadOutcome]:
        """The store's answers, or its failure once for each chunk. A hit fills its buffer."""
        rooms = answers.Rooms(sink, len(keys))
        try:
            # A tuple: a store that sorts its batch would have one chunk served for another.
            answer = self.store.read(tuple(keys), rooms, deadline)
            outcomes, wrong = answers.read_outcomes(answer, rooms)
        except Exception as error:  # noqa: BLE001
            self.failed("read", error)
            return [Failed(error)] * len(keys)
        finally:
            rooms.end()
        if wrong is not None:
            self.failed("read", wrong)
        return outcomes

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        """A part of a frame. A hit fills *into*."""
        if self.ranges is None:
            return Miss(Reason.REFUSED)
        try:
            answer = self.ranges.read_range(key, start, into, deadline)
            return answers.range_outcome(answer, len(into))
        except Exception as error:  # noqa: BLE001
            self.failed("read_range", error)
            return Failed(error)

    def write(self, items: Sequence[Item], deadline: Deadline) -> list[WriteOutcome]:
        """The store's answers, or its failure once for each chunk."""
        try:
            answer = self.store.write(tuple(items), deadline)
            outcomes, wrong = answers.write_outcomes(answer, items)
        except Exception as error:  # noqa: BLE001
            self.failed("write", error)
            return [Failed(error)] * len(items)
        if wrong is not None:
            self.failed("write", wrong)
        return outcomes

    def scan(self) -> list[Entry] | None:
        """What the store lists; ``None`` if it fails to. Empty where it lists nothing at all."""
        if self.scanning is None:
            return []
        try:
            return list(answers.entries(self.scanning.scan()))
        except Exception as error:  # noqa: BLE001
            self.failed("scan", error)
            return None

    def lend(self, keys: Sequence[ChunkKey], owner: str) -> Sequence[Lease | None]:
        """New shares of the blocks that a tier in memory keeps, whole and of these chunks."""
        if self.sharing is None:
            return [None] * len(keys)
        try:
            found, wrong = answers.leases(self.sharing.lend(tuple(keys), owner), keys, owner)
        except Exception as error:  # noqa: BLE001
            self.failed("lend", error)
            return [None] * len(keys)
        if wrong is not None:
            self.failed("lend", wrong)
        return found

    def keep(self, key: ChunkKey, lease: Lease, deadline: Deadline) -> bool:
        """Let a tier in memory keep a share of a block. Whether it does."""
        if self.sharing is None:
            return False
        try:
            # Of a lease of its own: what the store does with it cannot end the caller's.
            with lease.share(f"keep {self.name}") as mine:
                answer: object = self.sharing.keep(key, mine)  # type: ignore[func-returns-value]
        except Exception as error:  # noqa: BLE001
            self.failed("keep", error)
            return False
        try:
            answers.nothing(answer)
        except StoreError as error:
            self.failed("keep", error)
            self._delete([key], deadline)  # it may have kept the block all the same
            return False
        return True

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Remove chunks that the index let go of, and give their bytes back to the budget.

        What the store fails to delete still takes room: it is put off. Whether none of *keys*
        is left to delete.
        """
        for start in range(0, len(keys), _AT_ONCE):
            with self._deleting_now(keys[start : start + _AT_ONCE]) as part:
                if (start and deadline.expired) or (part and not self._delete(part, deadline)):
                    self.put_off(keys[start:])
                    return False
                self.index.deleted(part)
        return True

    @contextmanager
    def _deleting_now(self, keys: Sequence[ChunkKey]) -> Iterator[Sequence[ChunkKey]]:
        """Those of *keys* that nobody else is deleting, and that nobody has stored anew.

        Whoever is late with a delete would take the bytes of a chunk that the index has again.
        """
        with self._lock:
            mine = [key for key in keys if key not in self._deleting]
            stay = self.index.stays(mine)
            mine = [key for key, stays in zip(mine, stay, strict=True) if not stays]
            self._deleting.update(mine)
        try:
            yield mine
        finally:
            with self._lock:
                self._deleting.difference_update(mine)

    def _delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Whether the store says of each chunk that it was there, or was not."""
        try:
            answers.flags(self.store.delete(tuple(keys), deadline), len(keys))
        except Exception as error:  # noqa: BLE001
            self.failed("delete", error)
            return False
        return True

    def put_off(self, keys: Sequence[ChunkKey]) -> None:
        """Remember to delete chunks that the index let go of; they count until :meth:`sweep`."""
        if self.index.decides:
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
            yield self.index.pin(owner, [key]) == 1
        finally:
            self.index.unpin(owner)
            with self._lock:
                self._replaced.remove(key)

    def let_go(self, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        """Have the index forget chunks whoever has pinned them. Those to delete from the store.

        Nothing that is being replaced: what takes its place would be lost track of.
        """
        with self._lock:
            return self.index.discard([key for key in keys if key not in self._replaced])

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int | None:
        """How many chunks the store deleted whose keys begin so; ``None``: some may be left."""
        if self.clearing is None:
            return None
        try:
            return answers.count(self.clearing.clear_prefix(prefix, deadline))
        except Exception as error:  # noqa: BLE001
            self.failed("clear_prefix", error)
            return None

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        """Make damaged chunks unreadable, and keep them for a person where the store can."""
        free = self.not_replaced(keys)
        gone = self.let_go(free)
        if self.quarantining is not None:
            try:
                answer: object = self.quarantining.quarantine(  # type: ignore[func-returns-value]
                    tuple(free), deadline
                )
                answers.nothing(answer)
            except Exception as error:  # noqa: BLE001
                self.failed("quarantine", error)
            else:
                self.index.deleted(gone)
                return
        self.delete(free, deadline)

    def close(self) -> None:
        """Let the workers go and close the store, whatever it says to that."""
        for lane in (self.reading, self.writing):
            if lane is not None:
                lane.close()
        try:
            answer: object = self.store.close()  # type: ignore[func-returns-value]
            answers.nothing(answer)
        except Exception as error:  # noqa: BLE001
            self.failed("close", error)

    def failed(self, what: str, error: Exception) -> None:
        """Count a call that the store did not answer."""
        self.failures += 1
        log.warning("tier %s: %s failed: %s", self.name, what, answers.words(error))

    def not_replaced(self, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        """Those of *keys* that nothing is being put in the place of."""
        with self._lock:
            return [key for key in keys if key not in self._replaced]


def _declared(name: str, what: str, value: object) -> bool:
    if not isinstance(value, bool):
        kind = type(value).__qualname__
        raise ConfigError(f"store {name}: {what} is a {kind}, not True or False")
    return value
