"""The tier: a store of the chunks that peers hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import count, groupby
from threading import Event, Lock
from typing import TYPE_CHECKING, TypeVar

from hexkv.adapters.peer.remotes import Patience, Remote, Remotes
from hexkv.adapters.peer.sinks import CallersSink, RangeSink
from hexkv.peers.questions import BUSY, ask_of_each
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Clock,
    Corrupt,
    Deadline,
    Directory,
    Failed,
    Hit,
    Item,
    Member,
    Miss,
    Part,
    PeerAccess,
    ReadOutcome,
    Reason,
    Sink,
    StoreError,
    StoreUnreachable,
    SupportsRangeRead,
    TimedOut,
    WriteOutcome,
)

K = TypeVar("K")
V = TypeVar("V")

_Lost = Miss | Corrupt | Failed | TimedOut

_MOST = 1 << 14
"""Chunks whose holders, non-holders and givers are remembered."""

_FRESH = 1.0
"""Seconds for which a chunk's holders stay valid, between a lookup and the read."""

_LOOKS = (0.01, 0.02, 0.03, 0.05, 0.1)
"""Seconds before each new search for holders; then the last one repeats."""

_AGAIN = 8
"""Searches after which peers are queried again that were busy with others."""

_HASTE = 0.1
"""Seconds within which a time-out does not count against a peer."""

_CHUNK = 1 << 20
"""Bytes assumed for a frame before the first one has come."""


class PeerStore:
    """Chunks that peers hold. Accepts no writes, and never deletes from peers.

    Args:
        access: to peers; neither the channel nor the directory is closed here.
        directory: of the holders of chunks.
        clock: for deadlines.
        locate: seconds to wait for the directory.
        patience: with each peer.
        tries: holders to query for a chunk.
        lacking: seconds for which a peer that missed a chunk counts as without it, also against the
            directory.
    """

    def __init__(
        self,
        access: PeerAccess,
        directory: Directory,
        clock: Clock,
        *,
        locate: float = 0.5,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        tries: int = 3,
        lacking: float = 1.0,
    ) -> None:
        self._channel = access.channel
        self._directory = directory
        self._clock = clock
        self._locating = locate
        self._patience = patience
        self._tries = tries
        self._lacking_seconds = lacking
        self._remotes = Remotes(access.member, clock, patience)
        self._lock = Lock()
        self._holders: OrderedDict[ChunkKey, tuple[float, Sequence[Remote]]] = OrderedDict()
        self._lacking: OrderedDict[tuple[ChunkKey, Remote], float] = OrderedDict()
        self._givers: OrderedDict[ChunkKey, Remote] = OrderedDict()
        self._frame = _CHUNK
        self._closed = Event()

    @property
    def read_only(self) -> bool:
        return True

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        self._must_be_open()
        flags: list[bool] = []
        # Neighbours of one prompt have the same holders: so check these once.
        for remotes, run in groupby(self._locate(keys, deadline)):
            able = not all(remote.off for remote in remotes)
            flags += [able] * len(list(run))
        return flags

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return self._read(list(map(Part, keys)), sink, deadline)

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        part = Part(key, start, len(into))
        return self._read([part], RangeSink(into), deadline)[0]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        del deadline
        self._must_be_open()
        return [Failed(StoreError("peers take no writes here"))] * len(items)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        del deadline
        self._must_be_open()
        if keys:
            raise StoreError("a peer's chunks are deleted by the peer only")
        return []

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        """Stop using the peers that sent damaged frames: no frame of theirs is kept aside."""
        del deadline
        for key in keys:
            with self._lock:
                giver = self._givers.pop(key, None)
            if giver is not None:
                giver.lied()
                self._note_lacking(key, giver)

    def close(self) -> None:
        self._closed.set()

    def _read(self, parts: Sequence[Part], sink: Sink, deadline: Deadline) -> list[ReadOutcome]:
        self._must_be_open()
        reading = _Reading(parts, self._known([part.key for part in parts], deadline))
        for _ in range(self._tries):
            if not self._round(reading, sink, deadline):
                break
        if reading.lacked and (busy := self._busy(reading, deadline)):
            until = Deadline.after(deadline.clock, min(self._patience.wait, deadline.remaining()))
            self._await_others(reading, busy, sink, until)
        return reading.settled(late=deadline.expired)

    def _await_others(
        self, reading: _Reading, busy: Sequence[int], sink: Sink, deadline: Deadline
    ) -> None:
        """Read *busy* chunks from peers that are receiving them, as soon as these have them."""
        refused = {i: {reading.lacked[i]} for i in busy}
        for look in count():
            pause = _LOOKS[min(look, len(_LOOKS) - 1)]
            if not busy or deadline.expired or self._closed.wait(min(pause, deadline.remaining())):
                break
            keys = [reading.parts[i].key for i in busy]
            found = self._locate(keys, deadline, believe=False)
            for i, remotes in zip(busy, found, strict=True):
                if look % _AGAIN == _AGAIN - 1:
                    refused[i].clear()
                reading.left[i] = [remote for remote in remotes if remote not in refused[i]]
            self._round(reading, sink, deadline)
            busy = [i for i in busy if reading.outcomes[i] is None]
            for i in busy:
                refused[i].add(reading.lacked[i])

    def _round(self, reading: _Reading, sink: Sink, deadline: Deadline) -> bool:
        """Query one holder for each missing chunk. False if there was none to query."""
        asked = False
        wanted = {i for i, outcome in enumerate(reading.outcomes) if outcome is None}
        while wanted and not deadline.expired:
            remote = reading.best(wanted, self._frame)
            if remote is None:
                break
            some = sorted(i for i in wanted if remote in reading.left[i])
            wanted.difference_update(some)
            asked = True
            self._fetch(reading, remote, some, sink, deadline)
        return asked

    def _fetch(
        self, reading: _Reading, remote: Remote, which: list[int], sink: Sink, deadline: Deadline
    ) -> None:
        """Read some chunks from one holder, and note their outcomes."""
        others = any(len(reading.left[i]) > 1 for i in which)
        for i in which:
            reading.left[i].remove(remote)
        parts = [reading.parts[i] for i in which]
        size = sum([part.size or self._frame for part in parts])
        if not remote.begin(size):
            reading.off.update(which)
            return
        until = remote.until(size, deadline, others=others)
        into = CallersSink(sink, which)
        start = self._clock.now()
        outcomes: Sequence[ReadOutcome] = ()
        arrived, well = 0, False
        try:
            outcomes = self._channel.read(remote.peer, parts, into, until)
            arrived = sum([outcome.size for outcome in outcomes if isinstance(outcome, Hit)])
            well = {Failed, TimedOut, Corrupt}.isdisjoint(map(type, outcomes))
        except StoreError as error:
            outcomes = [Failed(error)] * len(which)
        finally:
            into.settle()
            seconds = self._clock.now() - start
            hasty = not well and seconds < _HASTE and any(map(_is_late, outcomes))
            remote.end(size, arrived, seconds, well=None if hasty else well)
        given: list[ChunkKey] = []
        for i, part, outcome in zip(which, parts, outcomes, strict=True):
            if isinstance(outcome, Hit):
                reading.outcomes[i] = outcome
                given.append(part.key)
                if part.size is None:
                    self._frame = outcome.size
            else:
                self._note(reading, i, remote, outcome)
        with self._lock:
            self._givers.update(dict.fromkeys(given, remote))
            _bound(self._givers)

    def _note(self, reading: _Reading, i: int, remote: Remote, outcome: _Lost) -> None:
        """Note why a chunk did not come."""
        key = reading.parts[i].key
        match outcome:
            case Miss(reason) if reason is Reason.REFUSED:
                reading.outcomes[i] = outcome  # the caller has no memory for it
            case Miss():
                reading.lacked[i] = remote
                self._note_lacking(key, remote)
            case Corrupt():
                remote.lied()
                reading.failed[i] = outcome
            case _:
                reading.failed[i] = outcome

    def _busy(self, reading: _Reading, deadline: Deadline) -> list[int]:
        """Return the chunks that a holder has but is busy giving to others."""
        by_remote: dict[Remote, list[int]] = {}
        for i, remote in reading.lacked.items():
            if reading.outcomes[i] is None:
                by_remote.setdefault(remote, []).append(i)
        busy: list[int] = []
        for remote, which in by_remote.items():
            until = remote.until(0, deadline, others=False)

            def ask(
                kind: bytes, body: bytes, remote: Remote = remote, until: Deadline = until
            ) -> bytes:
                return self._channel.ask(remote.peer, kind + body, until)

            try:
                are_busy = ask_of_each(ask, [reading.parts[i].key for i in which], BUSY)
            except StoreError:
                continue  # then it counts as without them
            for i in (i for i, is_busy in zip(which, are_busy, strict=True) if is_busy):
                busy.append(i)
                with self._lock:
                    self._lacking.pop((reading.parts[i].key, remote), None)
        return sorted(busy)

    def _known(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Remote]]:
        """Return the holders of each chunk: remembered ones, or else from the directory."""
        now = self._clock.now()
        with self._lock:
            known = [self._holders.get(key) for key in keys]
        held = [one[1] if one is not None and one[0] >= now else () for one in known]
        unknown = [key for key, remotes in zip(keys, held, strict=True) if not remotes]
        asked = iter(self._locate(unknown, deadline) if unknown else ())
        return [
            (self._having(key, remotes, now) if self._lacking else remotes)
            if remotes
            else next(asked)
            for key, remotes in zip(keys, held, strict=True)
        ]

    def _locate(
        self, keys: Sequence[ChunkKey], deadline: Deadline, *, believe: bool = True
    ) -> Sequence[Sequence[Remote]]:
        """Return the holders of each chunk, from the directory.

        If *believe*, without peers that missed it a moment ago, also against the directory.

        Raises:
            StoreUnreachable: the directory does not answer in time.
        """
        until = Deadline.after(deadline.clock, min(self._locating, deadline.remaining()))
        rows = self._directory.locate(keys, until)
        now = self._clock.now()
        found: list[list[Remote]] = []
        # Most rows are equal: neighbours of one prompt.
        same: dict[tuple[Member, ...], list[Remote]] = {}
        for row, run in groupby(map(tuple, rows)):
            if row not in same:
                same[row] = self._remotes.of(row)
            found += [same[row]] * len(list(run))
        if len(found) != len(keys):
            raise StoreUnreachable("the directory does not name the holders of each chunk")
        with self._lock:
            for key, remotes in zip(keys, found, strict=True):
                self._holders[key] = now + _FRESH, remotes
                self._holders.move_to_end(key)
            _bound(self._holders)
        if not (believe and self._lacking):
            return found
        return [self._having(key, remotes, now) for key, remotes in zip(keys, found, strict=True)]

    def _having(self, key: ChunkKey, remotes: Sequence[Remote], now: float) -> list[Remote]:
        return [it for it in remotes if self._lacking.get((key, it), 0.0) < now]

    def _note_lacking(self, key: ChunkKey, remote: Remote) -> None:
        with self._lock:
            self._lacking[key, remote] = self._clock.now() + self._lacking_seconds
            _bound(self._lacking)

    def _must_be_open(self) -> None:
        if self._closed.is_set():
            raise StoreError("the store is closed")


class _Reading:
    """The outcomes of the chunks of one call so far."""

    def __init__(self, parts: Sequence[Part], holders: Sequence[Sequence[Remote]]) -> None:
        self.parts = parts
        self.left = list(map(list, holders))
        """The holders that may still be queried, for each."""

        self.outcomes: list[ReadOutcome | None] = [None] * len(parts)
        self.failed: dict[int, Corrupt | Failed | TimedOut] = {}
        self.lacked: dict[int, Remote] = {}
        """The last peer that missed each chunk."""

        self.off: set[int] = set()
        """Chunks for which a holder was skipped."""

    def best(self, wanted: Collection[int], frame: int) -> Remote | None:
        """Return the next peer to query: the one that brings most of *wanted* per second."""
        counts: dict[Remote, int] = {}
        for i in wanted:
            for remote in self.left[i]:
                counts[remote] = counts.get(remote, 0) + 1
        for remote in [remote for remote in counts if remote.off]:
            del counts[remote]
            for i in wanted:
                if remote in self.left[i]:
                    self.left[i].remove(remote)
                    self.off.add(i)
        rated = {remote: count / remote.cost(count * frame) for remote, count in counts.items()}
        return max(rated, key=lambda remote: rated[remote], default=None)

    def settled(self, *, late: bool) -> list[ReadOutcome]:
        """Return one outcome for each; *late*: the deadline has passed."""
        return [
            self._settled(i, late) if outcome is None else outcome
            for i, outcome in enumerate(self.outcomes)
        ]

    def _settled(self, i: int, late: bool) -> ReadOutcome:
        failed = self.failed.get(i)
        if failed is None and late:
            return TimedOut()
        if isinstance(failed, TimedOut) and not late:
            return Failed(StoreUnreachable("no peer brought it in time"))
        if failed is None and i in self.off and i not in self.lacked:
            return Failed(StoreUnreachable("the peers that have it are left alone"))
        return Miss() if failed is None else failed


def _is_late(outcome: ReadOutcome) -> bool:
    return isinstance(outcome, TimedOut)


def _bound(table: OrderedDict[K, V]) -> None:
    while len(table) > _MOST:
        table.popitem(last=False)


if TYPE_CHECKING:

    def _is_a_store(store: PeerStore) -> ChunkStore:
        return store

    def _reads_ranges(store: PeerStore) -> SupportsRangeRead:
        return store
