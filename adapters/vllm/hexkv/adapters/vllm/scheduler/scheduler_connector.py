"""The scheduler side of the connector: it plans loads and saves.

Every method is called by the scheduler's one thread. The engines are in the workers'
processes; they are asked through a channel, and their answers are hints only: the load
shows whether the KV really arrives.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from secrets import token_hex

from hexkv.adapters.vllm.configuration.settings import ConnectorSettings
from hexkv.adapters.vllm.configuration.weights import Weights
from hexkv.adapters.vllm.messages import Computed, Kept, RankClient, Scope, Step
from hexkv.adapters.vllm.scheduler.blocks_read import BlocksRead
from hexkv.adapters.vllm.scheduler.compute_meter import ComputeMeter
from hexkv.adapters.vllm.scheduler.requests import (
    Allowed,
    Found,
    Request,
    Scheduled,
    Shape,
    Tracked,
    common,
    found_in,
)
from hexkv.adapters.vllm.scheduler.resetting import reset
from hexkv.ports import Reason

_NAMING = 0.5
"""Seconds to wait for a rank, once, for the name of this node at other nodes."""


class SchedulerConnector:
    """Plans loads and saves. Closed by :meth:`close`."""

    def __init__(
        self,
        settings: ConnectorSettings,
        shape: Shape,
        ranks: Sequence[RankClient],
        now: Callable[[], float] = time.monotonic,
        weights: Weights | None = None,
    ) -> None:
        self._weights = Weights() if weights is None else weights
        self._changes = 0
        """Changes of the weights that requests were stopped for."""

        self._settings = settings
        self._shape = shape
        self._ranks = ranks
        self._now = now
        self._requests: dict[str, Tracked] = {}
        self._step = Step()
        self._number = 0
        self._unconfirmed: dict[int, set[int]] = {}
        self._confirmed: defaultdict[int, int] = defaultdict(int)
        self.meter = ComputeMeter()
        self.reading = BlocksRead(shape.block, len(ranks), within=shape.saves_within)
        self._name: str | None = None
        self._settling: dict[int, int] = {}
        """By rank, the number of the question for requests that need not wait longer."""

    def arrived(self, request: Request, scope: Scope, may: Allowed) -> None:
        """Take in a new request: begin to look up its KV."""
        self._stop_after_changes()
        if request.request_id not in self._requests:
            takes_over = may.takes_over and may.reads
            # A step whose load may yet turn out to have failed stores nothing, and a prompt that is
            # handed over may have no other step.
            handed = takes_over or (may.hands_over and self._shape.checked_later)
            later = self._settings.between_steps(images=bool(scope.inputs), handed=handed)
            whole = self._shape.keeps_blocks
            tracked = Tracked(
                request,
                scope,
                may.reads,
                may.writes,
                later,
                may.hands_over and may.writes and whole,
                takes_over and whole,
                may.holds and self._settings.hold_seconds > 0,
                may.kept,
                may.decode_node,
                may.prefill_node,
            )
            tracked.waits_until = self._now() + self._settings.wait_seconds
            self._requests[request.request_id] = tracked
            if self._weights.intact:
                self._announce(tracked)
                self._ask(tracked)
            else:
                size = self._shape.chunk
                tracked.asked = request.num_tokens // size * size if tracked.reads else 0
                self._stop(tracked)

    def knows(self, request: str) -> bool:
        """True if *request* has arrived, and has not left."""
        return request in self._requests

    def matched(self, request: str, local: int) -> tuple[int | None, bool]:
        """Tokens beyond *local* that can be loaded, and True if that happens between steps.

        ``None`` makes vLLM ask again. It may be called at every step.
        """
        self._stop_after_changes()
        tracked = self._requests.get(request)
        if tracked is None or not tracked.reads:
            return 0, False
        tracked.local = local
        if tracked.allocated:  # preempted since: the KV of then may not be cached now
            self.reading.moved(request)
            tracked.forget()
            self._ask(tracked)
        if tracked.found is None and not self._answered(tracked):
            return None, False
        external = tracked.loadable(local)
        return external, tracked.later and external > 0

    def allocated(self, request: str, blocks: Sequence[int], external: int) -> None:
        """Note that a request got its blocks, to load *external* tokens into them."""
        tracked = self._requests.get(request)
        if external:
            # Of an unknown request any block may be written.
            known = tracked.local // self._shape.block if tracked else 0
            self.reading.write(blocks[known:], self._step)
        if tracked is None:
            return
        tracked.blocks = list(blocks)
        first, tracked.allocated = not tracked.allocated, True
        if first and tracked.found is not None:
            tracked.saved = min(tracked.found.tokens, tracked.request.num_tokens)
            self._step.missed.extend(tracked.missed(self._shape.chunk))
        if external:
            load = tracked.load(external, self._shape.chunk)
            self._step.loads.append(load)
            # The workers release it when they have loaded.
            tracked.held, tracked.kept = False, Kept()
        else:
            self._release(tracked)

    def sources(self, request: str, external: int) -> dict[str, int]:
        """The *external* tokens by the tier that is to give them."""
        tracked = self._requests.get(request)
        if tracked is None or tracked.found is None:
            return {}
        return tracked.found.between(tracked.local, tracked.local + external)

    def plan(
        self,
        scheduled: Sequence[Scheduled],
        blocks_of: Callable[[str], Sequence[int] | None] = lambda _: None,
    ) -> Step:
        """Return the workers' part in the step that vLLM just planned.

        Args:
            scheduled: the requests that compute something in it.
            blocks_of: all blocks of a request, where vLLM has them.
        """
        self._stop_after_changes()
        if scheduled:
            self._weights.computed()
        step, self._step = self._step, Step()
        step.replaced = not self._weights.intact
        self._number += 1
        step.number = self._number
        step.idle = not scheduled
        step.waits = step.idle and any(one.waits for one in self._requests.values())
        block = self._shape.block
        if self._shape.checked_later and (now := [load for load in step.loads if not load.later]):
            self._unconfirmed[step.number] = {
                number for load in now for number in load.blocks[load.start // block :]
            }
        doubted = set().union(*self._unconfirmed.values())
        self.reading.give(scheduled, step)
        self.meter.plan(step, scheduled, self._requests)
        for part in scheduled:
            tracked = self._requests.get(part.request)
            if tracked is None:
                continue
            tracked.known = part.computed + part.scheduled
            if tracked.announced and tracked.known >= tracked.prompt:
                tracked.announced = False
                step.computed.append(self._computed(tracked))
            if part.replaces:
                tracked.blocks = list(part.blocks)
            else:
                tracked.blocks.extend(part.blocks)
            if not tracked.writes:
                continue
            shape, generated = self._shape, self._settings.write_generated
            ends = [tracked.completed(shape.chunk, shape.tail, generated=generated)]
            if tracked.hands_over and part.computed < tracked.prompt <= tracked.known:
                ends.append(tracked.whole(block))
            for end in ends:
                if end <= tracked.saved:
                    continue
                blocks_now = blocks_of(part.request)
                tracked.blocks = tracked.blocks if blocks_now is None else list(blocks_now)
                used = tracked.blocks[: end // block]
                if len(used) * block == end and doubted.isdisjoint(used):
                    step.saves.append(tracked.save(end, shape.chunk, block, events=shape.events))
        self.reading.plan(step)
        return step

    def done(self, bad_blocks: Collection[int], steps: Mapping[int, int]) -> None:
        """Take in the workers' report of a step.

        Args:
            bad_blocks: those that were not loaded as they should have been.
            steps: numbers of steps whose loads are over, and on how many ranks.
        """
        if bad_blocks:
            bad = set(bad_blocks)
            for tracked in self._requests.values():
                tracked.spoiled(bad, self._shape.block, self._shape.chunk)
        for number, ranks in steps.items():
            self._confirmed[number] += ranks
            if self._confirmed[number] >= len(self._ranks):
                del self._confirmed[number]
                self._unconfirmed.pop(number, None)

    def give_up(self, request: str) -> None:
        """Load nothing more for a request, and drop its loads that are not yet under way."""
        self._step.loads = [load for load in self._step.loads if load.request != request]
        tracked = self._requests.get(request)
        if tracked is not None:
            tracked.reads = False

    def handed_over(self, request: str) -> tuple[Kept | None, str]:
        """Return the KV kept of a prompt for its decoder, and this node's name at other nodes."""
        self._stop_after_changes()
        tracked = self._requests.get(request)
        if tracked is None or not tracked.holds or not tracked.kept.hold:
            return None, ""
        kept, tracked.kept = tracked.kept, Kept()
        if tracked.naming:
            patience = _NAMING if self._name is None else 0.0
            answer = self._ranks[0].take(tracked.naming, patience)
            self._name = self._name if answer is None else str(answer.get("node") or "")
        return kept, self._name or ""

    def left(self, request: str) -> None:
        """A request has finished, or was given up."""
        if (tracked := self._requests.pop(request, None)) is not None:
            self._release(tracked)
            if tracked.naming:
                self._ranks[0].drop(tracked.naming)
            self._withdraw(tracked)

    def reset(self) -> None:
        """Handle a reset of vLLM's own caches."""
        tiers = self._settings.reset_clears
        reset(self._ranks, tiers, self._now)
        for tracked in self._requests.values() if tiers else ():
            if tracked.reads and not tracked.allocated:
                tracked.forget()
                tracked.held = True
                self._release(tracked)
                self._ask(tracked)

    def close(self) -> None:
        """Close the connections to the ranks."""
        for rank in self._ranks:
            rank.close()

    def _stop_after_changes(self) -> None:
        """Stop the requests that are older than the last change of the weights."""
        if self._changes != self._weights.changes:
            self._changes = self._weights.changes
            for tracked in self._requests.values():
                self._stop(tracked)

    def _stop(self, tracked: Tracked) -> None:
        """Load nothing more for a request, and store nothing: its KV may be of other weights."""
        self._release(tracked)
        self._withdraw(tracked)
        tracked.stop(Reason.TIER_OFF)

    def _withdraw(self, tracked: Tracked) -> None:
        """Withdraw the announcement of a request's prompt to other engines."""
        if tracked.announced:
            tracked.announced = False
            for rank in self._ranks:
                rank.ask("withdraw", wanted=False, id=tracked.request.request_id)

    def _announce(self, tracked: Tracked) -> None:
        """Announce to other engines that a prompt that is handed over is computed here."""
        if tracked.hands_over:
            tracked.announced = True
            packed = tracked.tokens(tracked.whole(self._shape.block))
            tracked.hold = token_hex(16) if tracked.holds and tracked.decode_node else ""
            message = {
                "id": tracked.request.request_id,
                "scope": list(tracked.scope),
                "node": tracked.decode_node,
                "hold": tracked.hold,
                "seconds": float(self._settings.hold_seconds),
            }
            for index, rank in enumerate(self._ranks):
                named = tracked.holds and not index
                number = rank.ask("announce", packed, wanted=named, **message)
                tracked.naming = number if named else tracked.naming

    def _computed(self, tracked: Tracked) -> Computed:
        """A prompt that is handed over, which was announced and is computed now."""
        if tracked.holds:
            before = 0 if tracked.found is None else tracked.found.tokens
            fresh = before // self._shape.chunk * self._shape.chunk
            tracked.kept = Kept(tracked.hold or token_hex(16), fresh)
        packed = tracked.tokens(tracked.whole(self._shape.block))
        hold = "" if tracked.hold else tracked.kept.hold  # it is pinned where it is pushed
        return Computed(tracked.request.request_id, tracked.scope, packed, hold)

    def _ask(self, tracked: Tracked) -> None:
        """Look up a request on every rank, and have the ranks hold the KV that they find."""
        step = self._shape.tail or self._shape.chunk
        end = tracked.request.num_tokens // step * step
        if tracked.takes_over:
            end = max(end, tracked.whole(step))
        if not tracked.reads or not end:
            tracked.found = Found()
            return
        tracked.asked_at = self._now()
        tracked.asked = end
        tracked.held = True
        packed = tracked.tokens(end)
        for index, rank in enumerate(self._ranks):
            number = rank.ask(
                "find",
                packed,
                id=tracked.request.request_id,
                scope=list(tracked.scope),
                rate=0.0 if tracked.takes_over else self.meter.rate(end) or 0.0,
                waits=tracked.takes_over and tracked.asked_at < tracked.waits_until,
                node=tracked.prefill_node,
                parent=tracked.parent,
            )
            if not number:
                tracked.found = Found(why=Reason.NO_ANSWER)
            tracked.queries[index] = number

    def _answered(self, tracked: Tracked) -> bool:
        """True if the lookup of a request is complete; waits for it unless lookups are async."""
        if tracked.coming:
            if not self._settled(tracked):
                return False
            tracked.forget()
            self._ask(tracked)
        until = tracked.asked_at + self._settings.lookup_seconds
        for index, number in list(tracked.queries.items()):
            left = max(0.0, until - self._now())
            answer = self._ranks[index].take(number, 0.0 if self._settings.async_lookup else left)
            if answer is None:
                if self._settings.async_lookup and left > 0:
                    return False
                tracked.found = Found(why=Reason.NO_ANSWER)
                return True
            del tracked.queries[index]
            if answer.get("follows") is not True:
                tracked.answers.append(found_in(answer))
            if answer.get("coming") is True:
                tracked.coming.add(index)
        if tracked.coming:
            return False
        tracked.found = common(tracked.answers, self._shape.chunk)
        return True

    def _settled(self, tracked: Tracked) -> bool:
        """True if a request need not wait longer for KV that another engine computes."""
        for index in list(tracked.coming):
            rank = self._ranks[index]
            if index not in self._settling:
                self._settling[index] = rank.ask("settled")
            answer = rank.take(self._settling[index])
            if answer is None and self._settling[index]:
                continue
            del self._settling[index]
            names = None if answer is None else answer.get("settled")
            # A rank without a valid answer is not waited for.
            settled = names if isinstance(names, list) else list(self._requests)
            for name in settled:
                if (other := self._requests.get(name)) is not None:
                    other.coming.discard(index)
        return not tracked.coming or self._now() >= tracked.waits_until

    def _release(self, tracked: Tracked) -> None:
        """Have the workers release the KV that they hold for a request."""
        for index, number in tracked.queries.items():
            self._ranks[index].drop(number)
        tracked.queries.clear()
        if tracked.held:
            tracked.held = False
            for rank in self._ranks:
                name, hold = tracked.request.request_id, tracked.kept.hold
                rank.ask("release", wanted=False, id=name, hold=hold)
            tracked.kept = Kept()
