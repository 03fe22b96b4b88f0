"""Writing: reserve space, write the frame, update the index; lookups see whole chunks only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, repeat
from operator import attrgetter

from hexkv.core.io.rules import Priority, Refused
from hexkv.core.io.ticket import Ticket
from hexkv.core.runtime import Pause, Stretch, no_pause
from hexkv.core.tiers.batches import Batch, Pending
from hexkv.core.tiers.evicting import background_deadline, evict_soon
from hexkv.core.tiers.index.bookkeeping import Reservation
from hexkv.core.tiers.read.intake import may_retry
from hexkv.core.tiers.remembering import IN_VAIN, described, make_way, read_back, remember_evicted
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.write.admission import Admissions
from hexkv.core.tiers.write.filling import fill_index
from hexkv.core.tiers.write.framing import Framing, recount
from hexkv.ports import (
    Change,
    ChunkKey,
    CounterName,
    Deadline,
    Failed,
    HistogramName,
    Item,
    Lease,
    Reason,
    Stored,
    StoreError,
    StoreFull,
    WriteOutcome,
)

log = logging.getLogger(__name__)

_FINAL = (Reason.NOT_COPIED, Reason.NO_ROOM, Reason.UNLIKELY)
"""Reasons to drop a chunk after which it is not offered to the tier again."""

_SPILLING = "spill"

_spec_of, _size_of, _frame_of = attrgetter("spec"), attrgetter("size"), attrgetter("frame")
_tokens_of = attrgetter("tokens")

OnStored = Callable[[Tier, Sequence[ChunkKey]], None]
"""Called with the chunks that are on a tier now, by the thread that has put them there."""


class Writer:
    """Puts chunks on tiers and evicts them."""

    def __init__(self, runtime: TierRuntime) -> None:
        self._runtime = runtime
        self._framing = Framing(runtime)
        self.sealed = self._framing.sealed
        self.below: dict[str, Tier] = {}
        """The tier that receives the evicted chunks of a tier, by its name."""

        self.admissions = Admissions()

    def put(
        self, tier: Tier, batch: Batch, deadline: Deadline, on_stored: OnStored | None = None
    ) -> Pending:
        """Write a batch: at once to a tier in memory, else in pieces for several workers."""
        if tier.rules.shortest > 1 and (short := batch.shorter(tier.rules.shortest)):
            each = [batch.part(i, i + 1) for i in range(len(batch.keys))]
            written = [
                (1, None) if i in short else self.put(tier, part, deadline, on_stored).parts[0]
                for i, part in enumerate(each)
            ]
            return Pending(written)
        if tier.lends:
            here, _ = self._put(tier, batch, deadline, on_stored)
            return Pending([(len(here), Ticket.of(here))])
        count, step = len(batch.keys), tier.step or len(batch.keys)
        parts = (
            [batch.part(i, i + step) for i in range(0, count, step)] if count > step else [batch]
        )
        return Pending(
            [(len(part.keys), self._submit(tier, part, deadline, on_stored)) for part in parts]
        )

    def _submit(
        self, tier: Tier, batch: Batch, deadline: Deadline, on_stored: OnStored | None = None
    ) -> Ticket[list[bool]] | None:
        """Queue a write; the ticket gives True for each chunk that is on the tier then.

        ``None``: the tier does not take it; the chunks are counted as dropped. A batch that is not
        given away stays with the caller: the write has shares of its own.
        """
        try:
            mine = batch.share(f"write {tier.name}")
        except StoreError as error:
            self.dropped(tier, batch.keys, Reason.FAILED, str(error))
            return None

        def work(go: bool) -> tuple[list[bool], bool | None]:
            pause = Stretch(self._runtime).pause if mine.beside else no_pause
            try:
                if not go:
                    self.dropped(tier, mine.keys, Reason.TIMED_OUT)
                    return [False] * len(mine.keys), None
                found = self._put(tier, mine, deadline, on_stored)
                pause()
                return found
            finally:
                mine.release()

        try:
            try:
                return tier.submit(Priority.PUT, mine.size, work, deadline)
            except Refused as refusal:
                if batch.patience is None or refusal.reason is not Reason.QUEUE_FULL:
                    raise
            # Blocks that the caller holds stop no write: each has what it needs.
            room = tier.lanes[1].admit(Priority.PUT, [mine.size], batch.patience)
            return tier.submit(Priority.PUT, mine.size, work, deadline, room)
        except Refused as refusal:
            mine.release()
            self.dropped(tier, batch.keys, refusal.reason)
            return None

    def evict_soon(self, tier: Tier, victims: Sequence[ChunkKey]) -> None:
        """Delete evicted chunks in the background, or at once from memory. Never blocks."""
        if tier.lends:
            self.evict(tier, victims, background_deadline(self._runtime))
        else:
            evict_soon(self._runtime, tier, victims)

    def evict(
        self,
        tier: Tier,
        victims: Sequence[ChunkKey],
        deadline: Deadline,
        patience: Deadline | None = None,
        pause: Pause = no_pause,
    ) -> bool:
        """Delete evicted chunks, after spilling them to the tier below; *patience*: see Batch.

        For workers of the tier's lane, and for tiers in memory. *pause* is called between parts of
        the work. Return True if all are deleted.
        """
        if not victims:
            return True
        below = self.below.get(tier.name)
        if below is not None:
            self._spill(tier, below, victims, patience, pause)
            pause()
        gone = tier.delete(victims, deadline, pause)
        remember_evicted(self._runtime, tier, victims)
        return gone

    def _put(
        self, tier: Tier, batch: Batch, deadline: Deadline, on_stored: OnStored | None
    ) -> tuple[list[bool], bool | None]:
        """Reserve space, write and update the index. Return which chunks are there, and success."""
        runtime = self._runtime
        pause = Stretch(runtime).pause if batch.beside else no_pause
        if tier.indexing and not fill_index(runtime, tier, self.evict):
            self.dropped(tier, batch.keys, Reason.NOT_INDEXED)
            return [False] * len(batch.keys), False
        faults = tier.calls.faults
        bad = make_way(tier, batch.keys, deadline) if faults.noted else []
        turn = tier.deleting.turn
        keys, leases = batch.keys, batch.leases
        here = list(tier.contains(keys, deadline))
        todo: Sequence[int] = range(len(here))
        if bad or True in here:
            self.dropped(tier, bad, Reason.FAILED, IN_VAIN)
            todo = [i for i in todo if not here[i] and keys[i] not in bad]
            there = list(compress(batch.keys, here))
            if on_stored is not None:
                on_stored(tier, there)
            lengths = [len(lease.frame) for lease in compress(batch.leases, here)]
            found = list(zip(there, lengths, strict=True))
            self.evict(tier, tier.adopt_foreign(found, runtime.clock.wall(), turn), deadline)
            if not todo:
                return here, None
            keys, leases = [keys[i] for i in todo], [leases[i] for i in todo]
        items, sizes = self._items(tier, keys, leases, pause)
        # As long as this call has the reservation, other calls do not write these chunks.
        granted, reserved = self._reserve(tier, batch, keys, sizes, deadline, pause)
        if len(granted) < len(items):
            position = {key: i for i, key in reversed([*enumerate(keys)])}
            some = [position[key] for key in granted]
            todo, keys = [todo[i] for i in some], granted
            leases, items = [leases[i] for i in some], [items[i] for i in some]
        if not todo:
            return here, None
        if keys is not batch.keys:
            batch = batch.of(keys, leases, batch.after)
        specs = list(map(_spec_of, leases))  # a lease that is given away may end at any time
        pause()
        outcomes, written = self.write(tier, items, batch, deadline), keys
        pause()
        failed: list[tuple[ChunkKey, WriteOutcome]] = []
        gone: set[ChunkKey] = set()
        done = keys
        if not {Stored}.issuperset(map(type, outcomes)):
            failed = [
                (key, outcome)
                for key, outcome in zip(keys, outcomes, strict=True)
                if not isinstance(outcome, Stored)
            ]
            gone.update(key for key, _ in failed)
            done = [key for key in keys if key not in gone]
        over = tier.index.commit(done)
        if failed:
            tier.index.abort([key for key, _ in failed])
        del reserved
        lost = recount(tier, done, self.evict, deadline) if tier.own_memory else []
        if faults.noted:
            bad = read_back(runtime, tier, [i for i in items if i.key not in gone], deadline)
            failed += [(key, Failed(StoreError(IN_VAIN))) for key in bad]
            gone.update(bad)
            done = [key for key in done if key not in gone]
        if over:
            self.evict(tier, over, deadline)
            lost += [key for key in over if key in done and key not in lost]
        if lost:
            self.dropped(tier, lost, Reason.NO_ROOM)
            done = [key for key in done if key not in lost]
        if on_stored is not None:
            on_stored(tier, done)
        pause()
        gone.update(lost)
        if gone or len(todo) < len(here):
            for i, key in zip(todo, keys, strict=True):
                here[i] = key not in gone
        else:
            here = [True] * len(here)
        runtime.telemetry.count(CounterName.STORED, len(done), tier=tier.name)
        if gone:
            specs = [spec for key, spec in zip(keys, specs, strict=True) if key not in gone]
        tokens = sum(map(_tokens_of, filter(None, specs)))
        runtime.telemetry.count(CounterName.STORED_TOKENS, tokens, tier=tier.name)
        for key, outcome in failed:
            self.dropped(tier, [key], Reason.FAILED, described(outcome))
        runtime.ages.stored(tier.name, done)
        if faults.withdrawn:
            faults.take_returned(done)
        if runtime.events:
            runtime.tell(Change.STORED, tier.name, done)
        if runtime.history.places:
            runtime.history.forget(done, tier.name)
        if failed or faults.unwritten:
            return here, faults.writes_well(written, outcomes, failed)
        return here, True

    def _reserve(
        self,
        tier: Tier,
        batch: Batch,
        keys: Sequence[ChunkKey],
        sizes: Sequence[int],
        deadline: Deadline,
        pause: Pause,
    ) -> tuple[Sequence[ChunkKey], Reservation]:
        """Return those of *keys* to write now that there is space, and their reservation."""
        index = tier.index
        # Deferred chunks still take space.
        while tier.deleting.undeleted and tier.sweep(deadline):
            pass
        pause()
        reservation = index.reserve(keys, sizes, batch.after)
        if reservation.refused:
            self.dropped(tier, reservation.refused, Reason.NO_ROOM)
        victims = reservation.victims
        pause()
        if victims and not self.evict(tier, victims, deadline, batch.patience, pause):
            # The victims that should have made space are still there.
            index.abort(reservation.keys)
            self.dropped(tier, reservation.keys, Reason.NO_ROOM)
            return [], reservation
        return reservation.keys, reservation

    def write(
        self, tier: Tier, items: Sequence[Item], batch: Batch, deadline: Deadline
    ) -> list[WriteOutcome]:
        """Write chunks that have space reserved, with a retry where that may help.

        The only way to a store: for workers of the tier's lane, or any thread if it is in memory.
        """
        runtime = self._runtime
        start = runtime.clock.now()
        frames: Iterator[memoryview] = map(_frame_of, items)
        outcomes = tier.write(items, batch, deadline)
        if not {Stored}.issuperset(map(type, outcomes)):
            self._once_more(tier, items, batch, outcomes, deadline)
            frames = compress(frames, [isinstance(outcome, Stored) for outcome in outcomes])
        runtime.telemetry.count(CounterName.WRITTEN_BYTES, sum(map(len, frames)), tier=tier.name)
        runtime.telemetry.observe(HistogramName.WRITE, runtime.clock.now() - start, tier=tier.name)
        return outcomes

    def _once_more(
        self,
        tier: Tier,
        items: Sequence[Item],
        batch: Batch,
        outcomes: list[WriteOutcome],
        deadline: Deadline,
    ) -> None:
        """Retry failed writes, where there is space for them now or a retry may help."""

        def again(which: Sequence[int], *, made_room: bool = False) -> None:
            self._runtime.telemetry.count(CounterName.RETRIES, len(which), tier=tier.name)
            retried = [items[i] for i in which]
            some = tier.write(retried, batch.some(which), deadline, made_room=made_room)
            for i, outcome in zip(which, some, strict=True):
                outcomes[i] = outcome

        if full := [i for i, outcome in enumerate(outcomes) if _is_full(outcome)]:
            # The medium, or another engine on it, leaves less space than the budget.
            room = tier.index.evict(sum(len(items[i].frame) for i in full))
            if room and self.evict(tier, room, deadline):
                again(full, made_room=True)
        for _ in range(tier.rules.retries):
            failed = [i for i, outcome in enumerate(outcomes) if may_retry(outcome)]
            if not failed or deadline.expired:
                break
            again(failed)

    def _items(
        self,
        tier: Tier,
        keys: Sequence[ChunkKey],
        leases: Sequence[Lease],
        pause: Pause,
    ) -> tuple[list[Item], list[int]]:
        """Return the frames to write to *tier*, and the bytes to reserve there for each."""
        if tier.lends:
            frames = list(map(_frame_of, leases))
        else:
            frames = []
            for key, lease in zip(keys, leases, strict=True):
                frames.append(self._framing.frame(tier, key, lease))
                pause()
        sizes = list(map(_size_of, leases) if tier.in_pool else map(len, frames))
        # By column: calling the class for each row takes three times as long.
        return list(map(tuple.__new__, repeat(Item), zip(keys, frames, strict=True))), sizes

    def _spill(
        self,
        tier: Tier,
        below: Tier,
        victims: Sequence[ChunkKey],
        patience: Deadline | None,
        pause: Pause,
    ) -> None:
        """Spill victims to the tier below. Chunks that it refuses go to its backlog."""
        now, late = Deadline(self._runtime.clock, 0.0), background_deadline(self._runtime)
        for key in victims:
            pause()
            # An incomplete index needs a query, by a worker: this may be a caller's thread.
            if not below.remote and all(below.contains([key], now)):
                continue
            if not self.admissions.worth(below, key):
                self.dropped(below, [key], Reason.UNLIKELY)
                continue
            (lent,) = tier.calls.get_lease([key], _SPILLING)
            if lent is None:
                continue
            with lent:
                spilled = Batch([key], [lent], None, patience=patience)
                self.put(below, spilled, now if below.lends else late)

    def dropped(
        self, tier: Tier, keys: Sequence[ChunkKey], reason: Reason, error: str | None = None
    ) -> None:
        """Count chunks that *tier* did not take, and record why; *error* if the store failed."""
        if keys:
            if reason not in _FINAL and tier.rules.writes is not Writes.NONE:
                tier.backlog.add(keys)
            cause = Reason.DROPPED if error is None else Reason.WRITE_FAILED
            self._runtime.telemetry.count(
                CounterName.DROPPED, len(keys), tier=tier.name, reason=reason
            )
            self._runtime.note(keys, tier.name, cause, error or reason)


def _is_full(outcome: WriteOutcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, StoreFull)
