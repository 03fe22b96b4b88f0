"""Administration by key over the tiers of one cache: of an engine, or of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING

from hexkv.core.admin.explain import explain_tier
from hexkv.core.admin.moving import Moved, Mover
from hexkv.core.admin.selecting import Chosen, Namespaces
from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.engine.relocations import Relocations
from hexkv.core.keys.hashing import hashed_salt
from hexkv.core.requests.checks import check_seconds
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.index.tenants import Tenant
from hexkv.core.tiers.local import LocalChunks
from hexkv.core.tiers.matching import contains_by_deadline
from hexkv.core.tiers.rules import Writes, changed_rules
from hexkv.core.tiers.runtime import RAW
from hexkv.core.tiers.tier import Tier, TierPlan
from hexkv.core.tiers.write.clearing import settle_writes
from hexkv.ports import (
    Administration,
    ChunkKey,
    ChunkService,
    Deadline,
    EngineClosed,
    Health,
    InvalidRequest,
    NamespaceState,
    Progress,
    Selection,
    TierState,
    TraceStep,
    Watch,
    Why,
    WorkReport,
)

_STEP = 8
"""Chunks between two checks of whether to continue."""

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
            work: seconds for each few chunks of a verb that changes something.
            pin: default seconds of a pin.
            tenants: names by the digest of the salt in identities.
        """
        self.open_tier: Callable[[Mapping[str, object]], TierPlan] | None = None
        """Opens a tier from its configuration; set by the composition root."""

        super().__init__(stack, calls, work=work)
        self.peers = stack.runtime.peers  # used by fleets
        self.stack = stack  # explained by tokens
        self._look = look
        self._pin = pin
        self._namespaces = Namespaces(stack, tenants)

    def at_close(self, work: Callable[[], None]) -> None:
        """Do *work*, which never raises and refers to nothing of the cache, when that closes."""
        self._calls.at_close(work)

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
        with self._calls.call() as owner:
            mover = Mover(self._stack, owner, self._until())
            return self._namespaces.states(mover.spec)

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
        found = self._choose(chosen)
        with self._calls.call():
            known = [tier for tier in self._stack.tiers if tier.index.decides]
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
        found = self._choose(chosen)
        whole = chosen.oldest == 1
        with self._calls.call():
            # The store itself may find a selection without a share; a share needs an index.
            todo = [(tier, found.keys(tier)) for tier in places if tier.index.decides or not whole]
            left = settle_writes(self._stack.runtime, places, self._until())
        report = WorkReport(sum(len(keys) for _, keys in todo))
        passed = 0
        for tier, keys in todo:

            def forget(some: Sequence[ChunkKey], mover: Mover, tier: Tier = tier) -> Moved:
                done = self._stack.forget(some, [tier], mover.deadline)
                left.update(done.left)
                return Moved(done.chunks, len(some) - done.chunks)

            report = self._go_on(report, keys, watch, forget, step=_CLEARED, before=passed)
            passed += len(keys)
            if report.stopped:
                break
        if whole and not report.stopped:
            with self._calls.call():
                until = self._until()
                # Chunks written during the clear, and chunks that only the stores know.
                if chosen.keys:
                    rest = self._stack.forget(chosen.keys, places, until)
                else:
                    rest = self._stack.clear(found.prefixes, places, until)
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
        self._choose(everything).keys(place)  # if its content is unknown, change nothing
        closed = replace(place.rules, writes=Writes.NONE, promotes=False)
        with self._calls.call():
            self._stack.change_rules(place, closed)
            unwritten = settle_writes(self._stack.runtime, [place], self._until())
        kept: list[ChunkKey] = []

        def rescue(some: Sequence[ChunkKey], mover: Mover) -> Moved:
            only = self._only_there(some, place, goal, mover.deadline)
            got = mover.copy(only, place, goal)
            if got.done < len(only):
                still = self._only_there(only, place, goal, mover.deadline)
                here = place.index.contains(still)
                kept.extend(key for key, there in zip(still, here, strict=True) if there)
                del kept[_KEPT:]
            return replace(got, done=got.done + len(some) - len(only))

        report = self._each(everything, place, watch, rescue)
        return replace(report, kept=tuple(kept), left={**report.left, **unwritten})

    def attach(self, tier: Mapping[str, object], position: int | None = None) -> None:
        if self.open_tier is None:
            raise InvalidRequest("tiers cannot be opened here")
        most = len(self._stack.tiers)
        if position is not None and not 0 <= position <= most:
            raise InvalidRequest(f"a position among {most} tiers is 0 to {most}")
        with self._calls.call():
            plan = self.open_tier(tier)
            try:
                self._stack.attach(plan, position)
            except BaseException:
                plan.store.close()
                raise

    def detach(self, tier: str) -> bool:
        with self._calls.call():
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

    def _go_on(
        self,
        report: WorkReport,
        keys: Sequence[ChunkKey],
        watch: Watch | None,
        work: Step,
        *,
        step: int = _STEP,
        before: int = 0,
    ) -> WorkReport:
        """Do *work* for *keys*, a few in each call of the cache, which may close in between."""
        done, absent, failed, saved = report.done, report.absent, report.failed, report.saved_bytes
        stopped = False
        for start in range(0, len(keys), step):
            at = before + start
            if stopped := watch is not None and not watch(Progress(at, report.chunks)):
                break
            some = keys[start : start + step]
            try:
                with self._calls.call() as owner:
                    got = work(some, Mover(self._stack, owner, self._until()))
            except EngineClosed:
                if not done:
                    raise
                stopped = True
                break
            done += got.done
            absent += got.absent
            failed += got.failed
            saved += got.saved_bytes
        if watch is not None and not stopped:
            watch(Progress(before + len(keys), report.chunks))
        return replace(
            report, done=done, absent=absent, failed=failed, saved_bytes=saved, stopped=stopped
        )

    def _choose(self, chosen: Selection) -> Chosen:
        """Resolve a selection, once tiers know their content, or their time has passed."""
        with self._calls.call():
            late = {tier.name for tier in self._stack.tiers if not self._listed(tier)}
        return Chosen(chosen, self.namespaces, late)

    def _listed(self, tier: Tier) -> bool:
        return not tier.indexing or (tier.flush(self._until()) and not tier.indexing)

    def _each(self, chosen: Selection, tier: Tier, watch: Watch | None, work: Step) -> WorkReport:
        """Do *work* for the selected chunks of *tier*."""
        found = self._choose(chosen)
        with self._calls.call():
            keys = found.keys(tier)
            report = WorkReport(len(keys), left=found.left([tier]))
        return self._go_on(report, keys, watch, work)

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


def keyed_admin(
    chunks: ChunkService, calls: Calls, deadlines: Deadlines, tenants: Sequence[Tenant]
) -> KeyedAdmin | None:
    """Return the administration by key of an engine; ``None`` if its tiers are a node's."""
    if not isinstance(chunks, LocalChunks):
        return None
    return KeyedAdmin(
        chunks.stack,
        calls,
        look=deadlines.lookup,
        work=deadlines.store,
        pin=deadlines.pin,
        tenants={hashed_salt(tenant.salt): tenant.name for tenant in tenants},
    )


if TYPE_CHECKING:

    def _is_administration(admin: KeyedAdmin) -> Administration:
        return admin
