"""The calls of one store, each of them answered, however the store fails.

Each possible fault of a store becomes an outcome here: an exception, or an invalid answer
(:mod:`hexkv.core.tiers.stores.answers`). None of it propagates further: no other module calls a
store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from hexkv.core.keys.bounded import BoundedKeys
from hexkv.core.memory.pool import Give
from hexkv.core.notices import READING, WRITING, Notices, kind_of
from hexkv.core.tiers.stores import answers
from hexkv.core.tiers.stores.key_faults import KeyFaults
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Clock,
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
    StoreFull,
    StoreUnreachable,
    SupportsClear,
    SupportsDeviceRead,
    SupportsLimit,
    SupportsOwnMemory,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
    WriteOutcome,
    release_all,
)

log = logging.getLogger(__name__)

_READS = frozenset({"contains", "read", "read_range", "read_to_device"})
_ENDS = _READS | {"write", "scan", "delete"}
"""Calls whose next success after a failure is logged."""


class LastError(NamedTuple):
    """The last failure of a store."""

    words: str = ""
    """The call and the error; empty before the first failure."""

    when: float | None = None
    """Wall-clock seconds."""


_WRITTEN = 16_384
"""The most written chunks that are remembered of a store without an index: 3 MB."""


class StoreCalls:
    """A store, its capabilities, and its number of failures."""

    def __init__(self, name: str, store: ChunkStore, clock: Clock, *, indexed: bool = True) -> None:
        """Make the calls of one tier.

        Args:
            name: of the tier, for log lines.
            store: the store.
            clock: for log lines.
            indexed: True if an index knows the chunks that were written.

        Raises:
            ConfigError: a property of the store that must be a boolean is not.
        """
        self.store = store
        self.failures = 0
        """Calls that the store answered with an exception, with an invalid answer, or with
        ``Failed`` for a chunk."""

        self.unanswered = 0
        """The number of those that were calls of ``contains``."""

        self.last_error = LastError()
        self._written = None if indexed else BoundedKeys(_WRITTEN)
        self.full = False
        """True if the store had no room for the last chunks that it was given."""

        self.faults = KeyFaults(clock)
        self._clock = clock
        self.notices = Notices(log, f"tier {name}", clock)  # those of its lanes, too
        # Checked once: a runtime protocol check costs microseconds.
        self.sharing = store if isinstance(store, SupportsZeroCopy) else None
        self.scanning = store if isinstance(store, SupportsScan) else None
        self.clearing = store if isinstance(store, SupportsClear) else None
        self.ranges = store if isinstance(store, SupportsRangeRead) else None
        self.quarantining = store if isinstance(store, SupportsQuarantine) else None
        self._limiting = store if isinstance(store, SupportsLimit) else None
        self.past_host = store if isinstance(store, SupportsDeviceRead) else None
        self.shared = _declared(name, "shared", isinstance(store, SharedMedium) and store.shared)
        own = isinstance(store, SupportsOwnMemory) and store.own_memory
        self.own_memory = _declared(name, "own_memory", own)
        fixed = isinstance(store, ReadOnlyStore) and store.read_only
        self.read_only = _declared(name, "read_only", fixed)
        self._name = name
        self._keeps = f"{name} store"
        """The owner of the leases that the store keeps."""

    @property
    def lends(self) -> bool:
        """True if the store leases its chunks in place."""
        return self.sharing is not None

    @property
    def _errors(self) -> type[BaseException]:
        """The exceptions that count as a failure of the store.

        Workers call a store that does I/O, and its lanes must keep them even if the store exits.
        The engine's callers call a store that lends; there a signal may end the process.
        """
        return Exception if self.lends else BaseException

    def limit(self, size: int) -> None:
        """Change the store's own limit, if it has one. Raises ``StoreError`` if it cannot."""
        try:
            if self._limiting is not None:
                self._limiting.limit(size)
        except self._errors as error:
            self.failed("limit", error)
            raise StoreError(f"tier {self._name}: no limit of {size} bytes: {error}") from error

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """True for each chunk that the store holds; ``False`` for all if it fails."""
        try:
            here = answers.flags(self.store.contains(tuple(keys), deadline), len(keys))
        except self._errors as error:  # a store's failure is never the engine's
            self.unanswered += 1
            self.failed("contains", error)
            return [False] * len(keys)
        if self.faults.noted:
            self.faults.answered()
        self.notices.works("contains")
        return here

    def read(self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline) -> list[ReadOutcome]:
        """Return the store's answers, or its failure once per chunk. A hit fills its buffer."""
        rooms = answers.Rooms(sink, len(keys))
        try:
            # A tuple: a store that sorts its batch would serve one chunk for another.
            answer = self.store.read(tuple(keys), rooms, deadline)
            outcomes, wrong = answers.read_outcomes(answer, rooms)
        except self._errors as error:
            return [Failed(self.failed("read", error))] * len(keys)
        finally:
            rooms.end()
        if wrong is not None:
            self.failed("read", wrong)
        if wrong is not None or self._judge("read", outcomes) or self.faults.noted:
            self.faults.read(keys, outcomes)
        return outcomes

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        """Read a part of a frame. A hit fills *into*."""
        if self.ranges is None:
            return Miss(Reason.REFUSED)
        try:
            answer = self.ranges.read_range(key, start, into, deadline)
            outcome = answers.range_outcome(answer, len(into))
        except self._errors as error:
            return Failed(self.failed("read_range", error))
        if type(outcome) is Failed or self.faults.noted or self.notices.troubles:
            self._judge("read_range", [outcome])
            self.faults.read([key], [outcome])
        return outcome

    @property
    def reads_to_devices(self) -> bool:
        """True if the store can read into the memory of devices at present."""
        try:
            return self.past_host is not None and self.past_host.reads_to_devices is True
        except self._errors as error:
            self.failed("reads_to_devices", error)
            return False

    def read_to_device(
        self, key: ChunkKey, page: memoryview, into: DeviceRange, deadline: Deadline
    ) -> ReadOutcome:
        """Read a frame: its header into *page*, the rest into a device. A hit fills both."""
        if self.past_host is None:
            return Miss(Reason.REFUSED)
        try:
            answer = self.past_host.read_to_device(key, page, into, deadline)
            outcome = answers.range_outcome(answer, len(page) + into.length)
        except self._errors as error:
            return Failed(self.failed("read_to_device", error))
        if type(outcome) is Failed or self.notices.troubles:
            self._judge("read_to_device", [outcome])
        return outcome

    def write(
        self, items: Sequence[Item], deadline: Deadline, *, made_room: bool = False
    ) -> list[WriteOutcome]:
        """Return the store's answers, or its failure once per chunk; *made_room*: see Tier."""
        try:
            answer = self.store.write(tuple(items), deadline)
            outcomes, wrong = answers.write_outcomes(answer, items)
        except self._errors as error:
            return [Failed(self.failed("write", error))] * len(items)
        noted = not made_room or Failed in map(type, outcomes)
        if wrong is not None:
            self.failed("write", wrong)
        elif not (noted and self._judge("write", outcomes)) and self._written is not None:
            self._written.add([item.key for item in items])
        return outcomes

    def wrote(self, key: ChunkKey) -> bool:
        """True if a chunk without an index was written of late, and not cleared."""
        return self._written is not None and key in self._written

    def cleared(self) -> None:
        """Forget the chunks that were written: the store alone knows which ones it deleted."""
        if self._written is not None:
            self._written.clear()

    def scan(self) -> list[Entry] | None:
        """Return the entries of a scan; ``None`` if it fails. Empty if the store cannot scan."""
        if self.scanning is None:
            return []
        try:
            entries = list(answers.entries(self.scanning.scan()))
        except self._errors as error:
            self.failed("scan", error)
            return None
        self.notices.works("scan")
        return entries

    def get_lease(self, keys: Sequence[ChunkKey], owner: str) -> list[Lease | None]:
        """Return new, checked shares of the blocks that a tier in memory keeps of these chunks."""
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
        """Let a tier in memory keep a share of each block. Return True for each that it keeps.

        With *give* it gets these leases themselves; those that it does not keep are returned.
        """
        if self.sharing is None:
            return [False] * len(keys)
        mine, former = leases, leases[0].owner if leases else ""
        try:
            # The store gets leases of its own, so it cannot end those of the caller.
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
            # One block that it cannot keep is no reason to lose the others.
            each = zip(keys, leases, strict=True)
            return [self.put_leases([key], [lease], deadline, give)[0] for key, lease in each]
        if answer is not None:
            self.failed("put_lease", answers.answered(answer))
            self.delete(keys, deadline)  # it may have kept the blocks nevertheless
            _take_back(mine, former, give)
        return [answer is None] * len(keys)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Delete chunks. Return True if the store reports for each if it was there."""
        try:
            answers.flags(self.store.delete(tuple(keys), deadline), len(keys))
        except self._errors as error:
            self.failed("delete", error)
            return False
        self.notices.works("delete")
        return True

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int | None:
        """Return the number of chunks deleted by prefix; ``None`` if some may be left."""
        if self.clearing is None:
            return None
        try:
            return answers.count(self.clearing.clear_prefix(prefix, deadline))
        except self._errors as error:
            self.failed("clear_prefix", error)
            return None

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> bool:
        """Keep damaged chunks for inspection. Return True if the store can, and did."""
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
        """Close the store, and count any failure."""
        try:
            answers.nothing(self.store.close())  # type: ignore[func-returns-value]
        except Exception as error:  # noqa: BLE001
            self.failed("close", error)

    def failed(self, what: str, error: BaseException) -> Exception:
        """Count a call that the store failed. Return the error for its outcomes."""
        words = self._remember(what, error)
        self.notices.failed(what, words, lasts=what in _ENDS, outage=self._outage(what, error))
        return error if isinstance(error, Exception) else StoreError(words)

    def give_up(self, key: ChunkKey, words: str) -> None:
        """Log that a chunk is barred."""
        named = "" if key.hex() in words else f": {key.hex()}"
        detail = f"; it is not used until it is written anew{named}"
        self.notices.failed("two reads of a chunk", words, detail=detail, lasts=False)

    def set_aside(self, keys: Sequence[ChunkKey]) -> None:
        """Log damaged frames: the first one, and the number of others of the same read."""
        others = f" and {len(keys) - 1} more" if keys[1:] else ""
        words, detail = "not the frame that was written", f": {keys[0].hex()}{others}"
        self.notices.failed("verification", words, len(keys), detail=detail, lasts=False)

    def _judge(self, what: str, outcomes: Sequence[ReadOutcome | WriteOutcome]) -> bool:
        """Count and log the failed chunks of a call; True if there is any."""
        if Failed not in set(map(type, outcomes)):
            self.notices.works(what)
            self.full = self.full and what != "write"
            return False
        errors = [outcome.error for outcome in outcomes if type(outcome) is Failed]
        self._remember(what, errors[0])
        said = [(answers.words(error), self._outage(what, error)) for error in errors]
        kinds = [outage or kind_of(words) for words, outage in said]
        for kind, (words, outage) in dict(zip(kinds, said, strict=True)).items():
            count = kinds.count(kind)
            detail = f" ({count} of {len(outcomes)} chunks)"
            self.notices.failed(what, words, count, detail=detail, outage=outage)
        return True

    def _outage(self, what: str, error: BaseException) -> str:
        """Return the direction in which the store does not answer; empty for other errors."""
        if self.lends or not isinstance(error, StoreUnreachable):
            return ""
        return READING if what in _READS else WRITING

    def _remember(self, what: str, error: BaseException) -> str:
        self.failures += 1
        if what == "write":
            self.full = isinstance(error, StoreFull)
        words = answers.words(error)
        self.last_error = LastError(f"{what}: {words}", self._clock.wall())
        return words


def _take_back(leases: Sequence[Lease], owner: str, give: Give | None) -> None:
    """Return given leases to *owner*, or release shared ones."""
    if give is None:
        release_all(leases)
    else:
        give(leases, owner)


def _declared(name: str, what: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"store {name}: {what} is a {type(value).__qualname__}, not True or False")
