"""Prefetches over a service: holds that are requested before a retrieve waits for them.

The service enforces their time limit: it takes them back also if this process sleeps, or was
stopped. So a retrieve first keeps a hold that it takes, and reads it after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from hexkv.core.engine.leased.fitting import hold_fitting
from hexkv.core.engine.leased.windows import Held, find_prefix, find_tail
from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.prefetch import AT_ONCE, PrefetchRules
from hexkv.core.tiers.matching import run_of
from hexkv.ports import ChunkService, Clock, Deadline, ServiceHold, frame_bytes


@dataclass(slots=True)
class _Prefetch:
    prompt: Prompt
    held: int
    """The number of requested chunks; others exceed the share of memory."""

    size: int
    expires: float
    hold: ServiceHold
    hit_tokens: int | None = None


class HeldPrefetches:
    """Every prefetch that no retrieve has taken yet. Safe from any thread."""

    def __init__(self, service: ChunkService, rules: PrefetchRules, clock: Clock) -> None:
        """Prefetch by holds of *service*, by *rules*."""
        self._service = service
        self._rules = rules
        self._clock = clock
        self.waiting: dict[str, _Prefetch] = {}
        self._lock = Lock()

    def begin(self, lookup_id: str, name: Callable[[], Prompt], read: Deadline) -> int | None:
        """Hold the first chunks of a prompt; see :meth:`hexkv.ports.PrefixCache.prefetch`."""
        if lookup_id in self.waiting:
            return self._ask(lookup_id)
        prompt = name()
        if not prompt.keys:
            return 0
        sizes = list(map(prompt.raw_bytes, range(len(prompt))))
        if not self._service.fits(max(sizes)):
            return 0  # a retrieve would bring nothing
        frames = list(map(frame_bytes, sizes))
        free = int(self._service.pool_bytes * self._rules.share) - sum(
            other.size for other in list(self.waiting.values())
        )
        count = size = 0
        while count < len(frames) and size + frames[count] <= free:
            size += frames[count]
            count += 1
        owner = f"prefetch {lookup_id}"
        try:
            seconds = self._rules.seconds
            expires = self._clock.now() + seconds
            specs = prompt.specs(0, count)
            hold = hold_fitting(self._service, specs, owner, read, seconds)
            entry = _Prefetch(prompt, count, size, expires, hold)
            with self._lock:
                if lookup_id in self.waiting:
                    hold.release()
                    return self.waiting[lookup_id].hit_tokens
                self.waiting[lookup_id] = entry
        except BaseException:
            self._service.sweep(owner)
            raise
        # Usually not known yet: a caller that goes on to load it waits for the service then.
        return None

    def take(self, lookup_id: str, prompt: Prompt, deadline: Deadline) -> Held | None:
        """Return the hold of *lookup_id*, if it is of *prompt*; the caller releases it.

        The service has up to *deadline* to confirm that it still holds the chunks.
        """
        with self._lock:
            entry = self.waiting.pop(lookup_id, None)
        if entry is None:
            return None
        keys, wanted = entry.prompt.keys[: entry.held], prompt.keys
        if wanted and wanted[0] in keys:
            at = keys.index(wanted[0])
            if keys[at:] == wanted[: len(keys) - at] and entry.hold.keep(deadline):
                return Held(entry.hold, 0, len(keys) - at, at)
        entry.hold.release()
        return None

    def cancel(self, lookup_id: str) -> bool:
        """Release everything. True if there was such a prefetch."""
        with self._lock:
            entry = self.waiting.pop(lookup_id, None)
        if entry is not None:
            entry.hold.release()
        return entry is not None

    def reap(self) -> bool:
        if not self.waiting:
            return False
        now = self._clock.now()
        late = [name for name, it in list(self.waiting.items()) if it.expires <= now]
        return bool([name for name in late if self.cancel(name)])

    def close(self) -> None:
        for name in list(self.waiting):
            self.cancel(name)

    def __len__(self) -> int:
        return len(self.waiting)

    def _ask(self, lookup_id: str) -> int | None:
        """Return the hit of a begun prefetch, if known by now; 0 if it was taken or cancelled."""
        entry = self.waiting.get(lookup_id)
        if entry is None:
            return 0
        if entry.hit_tokens is None and entry.hold.known(Deadline(self._clock, 0.0)):
            here = run_of([None if why else "" for why in entry.hold.reasons[: entry.held]])
            soon = Deadline.after(self._clock, AT_ONCE)
            # Chunks beyond the share are not held, but the answer counts those that are there.
            if len(here) == entry.held:
                found = find_prefix(self._service, entry.prompt, soon, sure=entry.held)
            else:
                found = find_tail(self._service, entry.prompt, here, soon)
            entry.hit_tokens = found.prompt.ends[-1] if found.prompt.keys else 0
        return entry.hit_tokens
