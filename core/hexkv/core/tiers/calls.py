"""The calls of one store, each of them answered whatever the store does.

Everything a store may do wrong becomes an outcome here: an exception, or an answer that is none
(:mod:`hexkv.core.tiers.answers`). Nothing of it goes further up: no other module calls a store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hexkv.core.memory.pool import Give
from hexkv.core.tiers import answers
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    ConfigError,
    Deadline,
    DeviceRange,
    Entry,
    Failed,
    Item,
    Lease,
    Miss,
    ReadOnlyStore,
    ReadOutcome,
    Reason,
    SharedMedium,
    Sink,
    StoreError,
    SupportsClear,
    SupportsDeviceRead,
    SupportsOwnMemory,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
    WriteOutcome,
    release_all,
)

log = logging.getLogger("hexkv")


class StoreCalls:
    """A store, its abilities, and how often it failed."""

    def __init__(self, name: str, store: ChunkStore) -> None:
        """*name* is the tier's, for people.

        Raises:
            ConfigError: the store says of itself what is neither true nor false.
        """
        self.store = store
        self.failures = 0
        """Calls that the store answered with an exception, or with what is no answer."""

        # Asked once: a runtime protocol check costs microseconds.
        self.sharing = store if isinstance(store, SupportsZeroCopy) else None
        self.scanning = store if isinstance(store, SupportsScan) else None
        self.clearing = store if isinstance(store, SupportsClear) else None
        self.ranges = store if isinstance(store, SupportsRangeRead) else None
        self.quarantining = store if isinstance(store, SupportsQuarantine) else None
        self.past_host = store if isinstance(store, SupportsDeviceRead) else None
        others: object = store.shared if isinstance(store, SharedMedium) else False
        own: object = store.own_memory if isinstance(store, SupportsOwnMemory) else False
        self.shared = _declared(name, "shared", others)
        self.own_memory = _declared(name, "own_memory", own)
        fixed: object = store.read_only if isinstance(store, ReadOnlyStore) else False
        self.read_only = _declared(name, "read_only", fixed)
        self._name = name
        self._keeps = f"{name} store"
        """In whose name leases are that the store keeps."""

    @property
    def lends(self) -> bool:
        """Whether the store leases what it holds, where it is."""
        return self.sharing is not None

    @property
    def _errors(self) -> type[BaseException]:
        """What a call ends with where it is the store that failed.

        A store that does I/O is called by workers, which its lanes must keep though it exits.
        One that lends is called by the engine's callers, whom a signal may have told to exit.
        """
        return Exception if self.lends else BaseException

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Whether the store has each chunk; ``False`` if it fails."""
        try:
            return answers.flags(self.store.contains(tuple(keys), deadline), len(keys))
        except self._errors as error:  # a store's failure is never the engine's
            self.failed("contains", error)
            return [False] * len(keys)

    def read(self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline) -> list[ReadOutcome]:
        """The store's answers, or its failure once for each chunk. A hit fills its buffer."""
        rooms = answers.Rooms(sink, len(keys))
        try:
            # A tuple: a store that sorts its batch would have one chunk served for another.
            answer = self.store.read(tuple(keys), rooms, deadline)
            outcomes, wrong = answers.read_outcomes(answer, rooms)
        except self._errors as error:
            return [Failed(self.failed("read", error))] * len(keys)
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
        except self._errors as error:
            return Failed(self.failed("read_range", error))

    @property
    def reads_to_devices(self) -> bool:
        """Whether the store has a way into the memory of devices at present."""
        try:
            return self.past_host is not None and self.past_host.reads_to_devices is True
        except self._errors as error:
            self.failed("reads_to_devices", error)
            return False

    def read_to_device(
        self, key: ChunkKey, page: memoryview, into: DeviceRange, deadline: Deadline
    ) -> ReadOutcome:
        """A frame, its header into *page*, the rest into a device; a hit fills both."""
        if self.past_host is None:
            return Miss(Reason.REFUSED)
        try:
            answer = self.past_host.read_to_device(key, page, into, deadline)
            return answers.range_outcome(answer, len(page) + into.length)
        except self._errors as error:
            return Failed(self.failed("read_to_device", error))

    def write(self, items: Sequence[Item], deadline: Deadline) -> list[WriteOutcome]:
        """The store's answers, or its failure once for each chunk."""
        try:
            answer = self.store.write(tuple(items), deadline)
            outcomes, wrong = answers.write_outcomes(answer, items)
        except self._errors as error:
            return [Failed(self.failed("write", error))] * len(items)
        if wrong is not None:
            self.failed("write", wrong)
        return outcomes

    def scan(self) -> list[Entry] | None:
        """What the store lists; ``None`` if it fails to. Empty where it lists nothing at all."""
        if self.scanning is None:
            return []
        try:
            return list(answers.entries(self.scanning.scan()))
        except self._errors as error:
            self.failed("scan", error)
            return None

    def get_lease(self, keys: Sequence[ChunkKey], owner: str) -> list[Lease | None]:
        """New shares of the blocks that a tier in memory keeps, whole and of these chunks."""
        if self.sharing is None:
            return [None] * len(keys)
        try:
            found, wrong = answers.leases(self.sharing.get_lease(tuple(keys), owner), keys, owner)
        except self._errors as error:
            self.failed("get_lease", error)
            return [None] * len(keys)
        if wrong is not None:
            self.failed("get_lease", wrong)
        return found

    def put_leases(
        self,
        keys: Sequence[ChunkKey],
        leases: Sequence[Lease],
        deadline: Deadline,
        give: Give | None = None,
    ) -> list[bool]:
        """Let a tier in memory keep a share of each block. Which of them it does.

        With *give* it gets these leases, but for those that it does not keep.
        """
        if self.sharing is None:
            return [False] * len(keys)
        mine, former = leases, leases[0].owner if leases else ""
        try:
            # Of leases of its own: what the store does with them cannot end the caller's.
            if give is None:
                mine = ()
                mine = answers.shares(leases, self._keeps)
            else:
                give(leases, self._keeps)
            answer: object = self.sharing.put_lease(tuple(keys), tuple(mine))  # type: ignore[func-returns-value]
        except self._errors as error:
            self.failed("put_lease", error)
            _take_back(mine, former, give)
            if len(keys) == 1:
                return [False]
            # One that it cannot keep is no reason to lose the others.
            each = zip(keys, leases, strict=True)
            return [self.put_leases([key], [lease], deadline, give)[0] for key, lease in each]
        if answer is not None:
            self.failed("put_lease", answers.answered(answer))
            self.delete(keys, deadline)  # it may have kept the blocks all the same
            _take_back(mine, former, give)
        return [answer is None] * len(keys)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Whether the store says of each chunk that it was there, or was not."""
        try:
            answers.flags(self.store.delete(tuple(keys), deadline), len(keys))
        except self._errors as error:
            self.failed("delete", error)
            return False
        return True

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int | None:
        """How many chunks the store deleted whose keys begin so; ``None``: some may be left."""
        if self.clearing is None:
            return None
        try:
            return answers.count(self.clearing.clear_prefix(prefix, deadline))
        except self._errors as error:
            self.failed("clear_prefix", error)
            return None

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Have damaged chunks kept for a person. Whether the store can, and did."""
        if self.quarantining is None:
            return False
        try:
            answer: object = self.quarantining.quarantine(  # type: ignore[func-returns-value]
                tuple(keys), deadline
            )
            answers.nothing(answer)
        except self._errors as error:
            self.failed("quarantine", error)
            return False
        return True

    def close(self) -> None:
        """Close the store, whatever it says to that."""
        try:
            answer: object = self.store.close()  # type: ignore[func-returns-value]
            answers.nothing(answer)
        except Exception as error:  # noqa: BLE001
            self.failed("close", error)

    def failed(self, what: str, error: BaseException) -> Exception:
        """Count a call that the store did not answer. What an outcome says of it."""
        self.failures += 1
        log.warning("tier %s: %s failed: %s", self._name, what, answers.words(error))
        return error if isinstance(error, Exception) else StoreError(answers.words(error))


def _take_back(leases: Sequence[Lease], owner: str, give: Give | None) -> None:
    """Make leases that were given *owner*'s again, and release others."""
    if give is None:
        release_all(leases)
    else:
        give(leases, owner)


def _declared(name: str, what: str, value: object) -> bool:
    if not isinstance(value, bool):
        kind = type(value).__qualname__
        raise ConfigError(f"store {name}: {what} is a {kind}, not True or False")
    return value
