"""Prefetches: holds of chunks that are requested before a retrieve waits for them.

A prefetch has the id of its lookup in the serving engine. It never blocks its caller and never
waits for memory: it takes free blocks up to a share of the pool, and a retrieve reads the rest.
Blocks that no retrieve takes within a time limit are released; a service in another process
enforces the limit, so a retrieve first keeps a hold that it takes, and reads it after.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import TYPE_CHECKING

from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.prefix import Prefix, find_prefix, find_tail
from hexkv.core.requests.retrieve import Held
from hexkv.core.tiers.matching import runs
from hexkv.ports import (
    ChunkKey,
    ChunkService,
    Clock,
    Deadline,
    HoldTerms,
    InvalidRequest,
    Reason,
    ServiceHold,
    frame_bytes,
)

if TYPE_CHECKING:
    from hexkv.core.requests.pipeline import Pace

AT_ONCE = 0.02
"""Seconds that a prefetch may take to name its prompt, in its caller's thread: enough for about a
million tokens in chunks of 256. A longer one is not begun; its retrieve then reads all chunks."""

_ON_A_TIER = (None, Reason.PRESENT, Reason.REFUSED)
"""The reasons of chunks that a tier has: here or coming, leased in place, and beyond the share."""


@dataclass(frozen=True, slots=True)
class PrefetchRules:
    """How much memory prefetches take, and for how long."""

    share: float = 0.25
    """The largest share of the pool that all prefetches together hold."""

    seconds: float = 60.0
    """Seconds after which a prefetch that no retrieve took is released."""


@dataclass(slots=True)
class _Prefetch:
    prompt: Prompt
    read: Deadline
    expires: float
    holds: list[tuple[Prompt, ServiceHold]]
    """Each of some chunks of the prompt: the full ones, and perhaps a tail."""

    found: Prefix | None = None
    """The prefix on the tiers, once that is known."""


class Prefetches:
    """Every prefetch that no retrieve has taken yet. Safe from any thread."""

    def __init__(
        self, chunks: ChunkService, pace: Pace, rules: PrefetchRules, clock: Clock
    ) -> None:
        """Prefetch by holds of *chunks*, by *rules*."""
        self._chunks = chunks
        self._pace = pace
        self._rules = rules
        self._clock = clock
        self._decoded: Collection[str] = ()
        self._lock = Lock()
        self.waiting: dict[str, _Prefetch] = {}
        """By the id of the lookup; may be read without the lock."""

    def begin(self, lookup_id: str, name: Callable[[], Prompt], read: Deadline) -> int | None:
        """Hold the first chunks of a prompt; see :meth:`hexkv.ports.PrefixCache.prefetch`.

        Only an id's first call runs *name*.
        """
        if lookup_id in self.waiting:
            return self._hit(lookup_id)
        prompt = name()
        if not prompt.keys or not self._chunks.fits(prompt.largest_bytes):
            return 0  # a retrieve would bring nothing
        near = self._chunks.near
        # Near tiers are queried for a tail apart, once it is known behind which chunk.
        part = prompt.part(0, prompt.full) if near else self._within(prompt)
        expires = self._clock.now() + self._rules.seconds
        try:
            hold = self._hold(part, f"prefetch {lookup_id}", read)
        except InvalidRequest:  # a service was restarted with less memory than a chunk takes
            return 0
        entry = _Prefetch(prompt, read, expires, [(part, hold)])
        # After an interrupt the hold is either here, whole, or dropped, which ends it.
        with self._lock:
            known = self.waiting.setdefault(lookup_id, entry)
        if known is not entry:
            hold.release()
        # Far away it is usually not known yet: a caller that loads it waits for it then.
        return self._hit(lookup_id) if near else None

    def take(
        self, lookup_id: str, prompt: Prompt, deadline: Deadline, decoded: Collection[str] = ()
    ) -> list[Held]:
        """Return the parts of *prompt* that *lookup_id* holds; the caller releases them.

        The service has up to *deadline* to confirm that it still holds them. *decoded* are the
        serdes that the caller's device decodes. Later prefetches leave their frames encoded: an
        engine's devices are usually of one kind.
        """
        with self._lock:
            entry = self.waiting.pop(lookup_id, None)
        if entry is not None:
            self._decoded = decoded = frozenset(decoded)  # names alone: not the caller's device
        parts: list[Held] = []
        for held, hold in entry.holds if entry is not None else ():
            same = _common(held.keys, prompt.keys)
            if same is None or not hold.keep(deadline, decoded):
                hold.release()
            else:
                parts += self._parts(hold, *same, self._pace.of(prompt).step)
        return parts

    def holds(self, lookup_id: str) -> bool:
        """True if there is such a prefetch, and it holds memory."""
        entry = self.waiting.get(lookup_id)
        return entry is not None and any(hold.bytes for _, hold in entry.holds)

    def cancel(self, lookup_id: str) -> bool:
        """Release everything. True if there was such a prefetch."""
        with self._lock:
            entry = self.waiting.pop(lookup_id, None)
        for _, hold in entry.holds if entry is not None else ():
            hold.release()
        return entry is not None

    def reap(self) -> bool:
        """Cancel expired prefetches. True if there were any."""
        if not self.waiting:
            return False
        now = self._clock.now()
        late = [name for name, entry in list(self.waiting.items()) if entry.expires <= now]
        return bool([name for name in late if self.cancel(name)])

    def first_end(self) -> float:
        """Return when the first of them expires, by the clock; infinity for never."""
        return min((entry.expires for entry in list(self.waiting.values())), default=inf)

    def close(self) -> None:
        """Cancel everything."""
        for name in list(self.waiting):
            self.cancel(name)

    def __len__(self) -> int:
        return len(self.waiting)

    def _hold(self, part: Prompt, owner: str, read: Deadline) -> ServiceHold:
        terms = HoldTerms(
            part.after,
            encoded=self._decoded,
            ahead=True,
            most=self._free(part),
            seconds=self._rules.seconds,
        )
        return self._chunks.hold(part.specs(), owner, read, terms)

    def _free(self, prompt: Prompt) -> int:
        """Return the bytes that one more prefetch may hold; at first at least a chunk's."""
        if not self._rules.share:
            return 0
        least = frame_bytes(prompt.largest_bytes)
        share = max(least, int(self._chunks.pool_bytes * self._rules.share))
        others = list(self.waiting.values())
        return max(0, share - sum([hold.bytes for entry in others for _, hold in entry.holds]))

    def _within(self, prompt: Prompt) -> Prompt:
        """Return the first chunks of *prompt* that fit the share."""
        free, count = self._free(prompt), 0
        while count < len(prompt) and (size := frame_bytes(prompt.raw_bytes(count))) <= free:
            free -= size
            count += 1
        return prompt.part(0, count)

    def _hit(self, lookup_id: str) -> int | None:
        """Return the hit of a begun prefetch, if known by now; 0 if it was taken or cancelled."""
        entry = self.waiting.get(lookup_id)
        if entry is None:
            return 0
        if entry.found is not None:
            return entry.found.tokens
        (part, hold), near = entry.holds[0], self._chunks.near
        if not hold.known(Deadline(self._clock, 0.0)):
            return 0 if near and entry.read.expired else None
        known = _ON_A_TIER if near else (None,)
        reasons = [*hold.reasons[: len(part)], Reason.ABSENT]
        here = next(i for i, why in enumerate(reasons) if why not in known)
        soon = Deadline.after(self._clock, AT_ONCE)
        # Chunks beyond the share are not held, but the answer counts those that are there.
        if here == len(part):
            found = find_prefix(self._chunks, entry.prompt, soon, first=[""] * here)
        else:
            found = find_tail(self._chunks, entry.prompt, [""] * here, soon)
        tails: list[tuple[Prompt, ServiceHold]] = []
        if near and len(found.tiers) > here:
            tail = found.found.part(here, here + 1)
            tails.append((tail, self._hold(tail, f"prefetch {lookup_id}", entry.read)))
        with self._lock:  # once an entry is taken or cancelled, its holds do not change
            first = self.waiting.get(lookup_id) is entry and entry.found is None
            if first:
                entry.found = found
                entry.holds += tails
        for _, hold in () if first else tails:
            hold.release()
        return found.tokens

    def _parts(self, hold: ServiceHold, at: int, start: int, count: int, step: int) -> list[Held]:
        """Return *count* chunks of a prompt from *start* on, which a hold has from *at* on."""
        if not self._chunks.near:  # chunks that were missing then may have been stored since
            hold.known(Deadline(self._clock, 0.0))
            step = count = Held(hold, start, start + count, at).begun
        coming = [i for i, why in enumerate(hold.reasons[at : at + count]) if why is None]
        parts = [
            Held(hold, start + i, start + min(i + step, run[-1] + 1), at + i)
            for run in runs(coming)
            for i in range(run[0], run[-1] + 1, step)
        ]
        for part in parts:
            part.early, part.last = True, part is parts[-1]
        if not parts:
            hold.release()
        return parts


def _common(held: Sequence[ChunkKey], wanted: Sequence[ChunkKey]) -> tuple[int, int, int] | None:
    """Return where chunks of both begin, in *held* and in *wanted*, and how many there are."""
    if wanted and wanted[0] in held:
        at, start = held.index(wanted[0]), 0
    elif held and held[0] in wanted:
        at, start = 0, wanted.index(held[0])
    else:
        return None
    pairs = zip(held[at:], wanted[start:], strict=False)
    count = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return at, start, min(len(held) - at, len(wanted) - start) if count is None else count
