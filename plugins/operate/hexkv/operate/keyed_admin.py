"""Administration by key over the tiers of one cache: of an engine, or of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat, zip_longest
from typing import TYPE_CHECKING

from hexkv.core.admin.explain import explain_tier
from hexkv.core.engine.calls import Calls
from hexkv.core.requests.checks import check_seconds
from hexkv.core.tiers.cache import TierStack, contains_by_deadline
from hexkv.core.tiers.read.pieces import STEP
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.runtime import RAW
from hexkv.core.tiers.tier import Tier, TierPlan
from hexkv.core.tiers.write.clearing import forget, part_with, settle_writes
from hexkv.operate.adjusting import Adjusting
from hexkv.operate.moving import Moved, Mover
from hexkv.operate.relocations import Relocations
from hexkv.operate.selecting import Chosen, Namespaces
from hexkv.operate.tier_changes import changed_rules
from hexkv.operate.time_limit import TimeLimit
from hexkv.plugins.configuration.config import Loaded
from hexkv.ports import (
    Administration,
    ChunkKey,
    Deadline,
    Health,
    InvalidRequest,
    NamespaceState,
    Selection,
    TierState,
    TraceStep,
    Watch,
    Why,
    WorkReport,
)

_CLEARED = 256
"""Chunks between two such checks of a clear, which reads nothing."""

_KEPT = 1000

Step = Callable[[Sequence[ChunkKey], Mover], Moved]
"""Does the work of a verb for some chunks."""


class KeyedAdmin(Relocations):
    """The verbs; see :class:`hexkv.ports.Administration`. Ends with its cache."""

    def __init__(
        self,
        stack: TierStack,
        calls: Calls,
        *,
        look: float,
        work: float,
        pin: float,
        tenants: Mapping[str, str],
    ) -> None:
        """Administer the tiers of *stack*.

        Args:
            stack: the cache's.
            calls: the cache's.
            look: seconds for a verb that only reads.
            work: seconds for a verb that changes something; see
                :class:`~hexkv.operate.time_limit.TimeLimit`.
            pin: default seconds of a pin.
            tenants: names by the digest of the salt in identities.
        """
        self.open_tier: Callable[[Mapping[str, object]], TierPlan] | None = None
        """Opens a tier from its configuration; ``None``: none can be opened."""

        self.adjusting: Adjusting | None = None
        """Changes settings; ``None``: none can be changed."""

        super().__init__(stack, calls, work=work)
        self.peers = stack.runtime.peers  # used by fleets
        self.stack = stack
        self._look = look
        self._pin = pin
        self._namespaces = Namespaces(stack, tenants)

    def status(self) -> Health:
        return self._calls.health(self._look)

    def steps(self) -> Sequence[TraceStep]:
        self._calls.door.home.check()
        return self._stack.runtime.steps.steps()

    def tiers(self) -> Sequence[TierState]:
        states = {tier.name: tier for tier in self._stack.tiers}
        found = []
        for health in self.status().tiers:
            if (tier := states.get(health.name)) is not None:
                rules = tier.rules
                found.append(
                    TierState(
                        health,
                        tier.index.policy,
                        rules.reads,
                        rules.writes.value,
                        rules.promotes,
                        bool(tier.shared),
                    )
                )
        return found

    def namespaces(self) -> Sequence[NamespaceState]:
        return self._states(self._until())

    def _states(self, until: Deadline) -> Sequence[NamespaceState]:
        with self._calls.call() as owner:
            return self._namespaces.states(Mover(self._stack, owner, until).spec)

    def lookup(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        with self._calls.call():
            found = self._stack.find_tiers(keys, self._until(self._look))
            return [None if tier is None else tier.name for tier in found]

    def explain(self, keys: Sequence[ChunkKey]) -> Sequence[Mapping[str, Why]]:
        with self._calls.call():
            until = self._until(self._look)
            # Their number of tokens is unknown: assume as many as any tier takes.
            columns = {
                tier.name: explain_tier(self._stack, tier, keys, repeat(1 << 32), until)
                for tier in self._stack.tiers
            }
            return [{name: whys[i] for name, whys in columns.items()} for i in range(len(keys))]

    def pin(self, owner: str, chosen: Selection, seconds: float | None = None) -> int:
        seconds = self._pin if seconds is None else check_seconds(seconds)
        if not owner:
            raise InvalidRequest("a pin has an owner")
        known = [tier for tier in self._stack.tiers if tier.index.decides]
        found = self._choose(chosen, known, self._limit())
        with self._calls.call():
            keys = dict.fromkeys(key for tier in known for key in found.keys(tier))
            return self._stack.pins.pin(owner, list(keys), self._until(seconds))

    def unpin(self, owner: str) -> int:
        with self._calls.call():
            return self._stack.pins.unpin(owner)

    def freeze(self, frozen: bool = True) -> None:
        with self._calls.call():
            self._calls.frozen = bool(frozen)

    def flush(self, seconds: float | None = None) -> bool:
        seconds = self._work if seconds is None else check_seconds(seconds)
        with self._calls.call():
            return self._stack.flush(self._until(seconds))

    def clear(
        self, chosen: Selection, tiers: Sequence[str] | None = None, watch: Watch | None = None
    ) -> WorkReport:
        places = self._stack.named(tiers)
        limit = self._limit()
        found = self._choose(chosen, places, limit)
        whole = chosen.oldest == 1
        with self._calls.call():
            # The store itself may find a selection without a share; a share needs an index.
            listed = [tier for tier in places if tier.index.decides or not whole]
            rows = zip_longest(*[[(tier, key) for key in found.keys(tier)] for tier in listed])
            left = settle_writes(self._stack.runtime, places, limit.deadline)
        todo = [pair for row in rows for pair in row if pair is not None]

        def delete(some: Sequence[tuple[Tier, ChunkKey]], _: str) -> Moved:
            moved, why = self._forget(some, limit.half)
            left.update(why)
            return moved

        report = self._go_on(todo, watch, delete, limit, _CLEARED)
        if whole and not report.stopped:
            with self._calls.call():
                # Chunks written during the clear, and chunks that only the stores know.
                if chosen.keys:
                    rest = self._stack.forget(chosen.keys, places, limit.deadline)
                else:
                    rest = self._stack.clear(found.prefixes, places, limit.deadline)
            left.update(rest.left)
            done = report.done + rest.chunks
            report = replace(report, chunks=max(report.chunks, done), done=done)
        return replace(report, left=left | found.left(places))

    def copy(
        self, chosen: Selection, source: str, target: str, watch: Watch | None = None
    ) -> WorkReport:
        origin, goal = self._two(source, target)
        return self._each(chosen, origin, watch, lambda some, mover: mover.copy(some, origin, goal))

    def move(
        self, chosen: Selection, source: str, target: str, watch: Watch | None = None
    ) -> WorkReport:
        origin, goal = self._two(source, target)
        return self._each(chosen, origin, watch, lambda some, mover: mover.move(some, origin, goal))

    def compress(
        self, chosen: Selection, tier: str, serde: str, watch: Watch | None = None
    ) -> WorkReport:
        (place,) = self._stack.named([tier])
        serdes = self._stack.runtime.serdes
        if serde != RAW and serde not in serdes:
            known = ", ".join([RAW, *serdes])
            raise InvalidRequest(f"no serde {serde!r}; there are: {known}")

        def change(some: Sequence[ChunkKey], mover: Mover) -> Moved:
            if serde == RAW:
                return mover.decompress(some, place)
            return mover.compress(some, place, serde)

        return self._each(chosen, place, watch, change)

    def drain(self, tier: str, target: str | None = None, watch: Watch | None = None) -> WorkReport:
        (place,) = self._stack.named([tier])
        goal = self._beside(place) if target is None else self._two(tier, target)[1]
        everything = Selection(everything=True)
        limit = self._limit()
        # If its content is unknown, change nothing.
        self._choose(everything, [place], limit).keys(place)
        closed = replace(place.rules, writes=Writes.NONE, promotes=False)
        with self._calls.call():
            self._stack.change_rules(place, closed)
            unwritten = settle_writes(self._stack.runtime, [place], limit.deadline)
        kept: list[ChunkKey] = []

        def rescue(some: Sequence[ChunkKey], mover: Mover) -> Moved:
            only = self._only_there(some, place, goal, limit.half)
            got = mover.copy(only, place, goal)
            if got.done < len(only):
                still = self._only_there(only, place, goal, mover.deadline)
                here = place.index.contains(still)
                kept.extend(key for key, there in zip(still, here, strict=True) if there)
                del kept[_KEPT:]
            return got._replace(done=got.done + len(some) - len(only))

        report = self._each(everything, place, watch, rescue, limit)
        return replace(report, kept=tuple(kept), left={**report.left, **unwritten})

    def attach(self, tier: Mapping[str, object], position: int | None = None) -> None:
        with self._calls.call():
            self.add(tier, position)

    def add(self, tier: Mapping[str, object], position: int | None = None) -> None:
        """Attach a tier as a part of a call."""
        if self.open_tier is None:
            raise InvalidRequest("tiers cannot be opened here")
        most = len(self._stack.tiers)
        if position is not None and not 0 <= position <= most:
            raise InvalidRequest(f"a position among {most} tiers is 0 to {most}")
        plan = self.open_tier(tier)
        try:
            self._stack.attach(plan, position)
        except BaseException:
            plan.store.close()
            raise

    def detach(self, tier: str) -> bool:
        with self._calls.call():
            return self.remove(tier)

    def remove(self, tier: str) -> bool:
        """Detach a tier as a part of a call."""
        self._stack.named([tier])
        if len(self._stack.tiers) == 1:
            raise InvalidRequest(f"{tier!r} is the last tier")
        return self._stack.detach(tier, self._until())

    def rules(
        self,
        tier: str,
        *,
        reads: bool | None = None,
        writes: str | None = None,
        promotes: bool | None = None,
    ) -> None:
        with self._calls.call():
            (place,) = self._stack.named([tier])
            changed = changed_rules(place.rules, reads=reads, writes=writes, promotes=promotes)
            self._stack.change_rules(place, changed)

    def adjust(self, settings: Mapping[str, object]) -> None:
        if self.adjusting is None:
            raise InvalidRequest("settings cannot be changed here")
        self.adjusting.adjust(settings)

    def reread(self, read: Callable[[], Loaded]) -> None:
        """Apply a configuration that was changed; see :meth:`Adjusting.reread`."""
        if self.adjusting is not None:
            self.adjusting.reread(read)

    def _choose(self, chosen: Selection, tiers: Sequence[Tier], limit: TimeLimit) -> Chosen:
        """Resolve a selection, once *tiers* know their content, or half of the time is over."""
        until = limit.half
        with self._calls.call():
            for tier in tiers:
                if tier.indexing:
                    tier.flush(until)
            late = {tier.name for tier in tiers if tier.indexing}
        return Chosen(chosen, partial(self._states, limit.half), late)

    def _each(
        self,
        chosen: Selection,
        tier: Tier,
        watch: Watch | None,
        work: Step,
        limit: TimeLimit | None = None,
    ) -> WorkReport:
        """Do *work* for the selected chunks of *tier*."""
        limit = limit or self._limit()
        found = self._choose(chosen, [tier], limit)

        def do(some: Sequence[ChunkKey], owner: str) -> Moved:
            return work(some, Mover(self._stack, owner, limit.deadline))

        with self._calls.call():
            keys = found.keys(tier)
            left = found.left([tier])
        return replace(self._go_on(keys, watch, do, limit, STEP), left=left)

    def _forget(
        self, some: Sequence[tuple[Tier, ChunkKey]], until: Deadline
    ) -> tuple[Moved, Mapping[str, str]]:
        """Delete chunks from their tiers. Return also, by tier, why chunks may be left."""
        mine: dict[Tier, list[ChunkKey]] = {}
        for tier, key in some:
            mine.setdefault(tier, []).append(key)
        parts = list(mine)
        got = part_with(
            self._stack.runtime, parts, lambda tier: forget(tier, mine[tier], until), until
        )
        done = sum(got.tiers.values())
        late = [tier for tier in parts if tier.name in got.left]
        failed = sum(len(mine[tier]) - got.tiers[tier.name] for tier in late)
        return Moved(done, len(some) - done - failed, failed), got.left

    def _two(self, source: str, target: str) -> tuple[Tier, Tier]:
        origin, goal = self._stack.named([source, target])
        if origin is goal:
            raise InvalidRequest(f"{source!r} is both: name two tiers")
        return origin, goal

    def _beside(self, place: Tier) -> Tier:
        """Return the default target for the chunks that only *place* has."""
        tiers = self._stack.tiers
        at = tiers.index(place)
        faster = tiers[:at][::-1]
        order = [*tiers[at + 1 :], *sorted(faster, key=lambda tier: tier.in_memory)]
        for tier in order:
            if tier.rules.writes is not Writes.NONE:
                return tier
        raise InvalidRequest(f"no tier beside {place.name!r} is written to: attach one, or name it")

    def _only_there(
        self, keys: Sequence[ChunkKey], place: Tier, goal: Tier, deadline: Deadline
    ) -> list[ChunkKey]:
        """Return those of *keys* that neither *goal* nor any other persistent tier has."""
        for tier in self._stack.tiers:
            if tier is not place and (tier is goal or not tier.in_memory):
                there = contains_by_deadline(tier, keys, deadline)
                keys = [key for key, here in zip(keys, there, strict=True) if not here]
        return list(keys)


if TYPE_CHECKING:

    def _is_administration(admin: KeyedAdmin) -> Administration:
        return admin
