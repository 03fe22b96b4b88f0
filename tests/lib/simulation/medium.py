"""What outlives a process: frames by key, and a store on them that spends no time itself."""

from hexkv.contracts.faults import FaultyStore
from hexkv.ports import (
    Entry,
    Hit,
    Miss,
    Reason,
    Stored,
    StoreError,
    StoreUnreachable,
)


class Medium:
    """Frames, their bytes, and the most there were when one was put there.

    With a *capacity* it makes room by itself, the oldest first, as a cache server does.
    """

    def __init__(self, capacity=None):
        self.capacity = capacity
        self.frames = {}
        self.used = 0
        self.most = 0

    def put(self, key, frame, wall):
        self.drop(key)
        while self.capacity is not None and self.used + len(frame) > self.capacity:
            self.drop(next(iter(self.frames)))
        self.frames[key] = frame, wall
        self.used += len(frame)
        self.most = max(self.most, self.used)

    def drop(self, key):
        former = self.frames.pop(key, None)
        if former is not None:
            self.used -= len(former[0])
        return former is not None


class MediumStore:
    """One process's hold on a medium. It ends with the process."""

    def __init__(self, medium, clock):
        self.medium = medium
        self.dead = False
        self._clock = clock
        self._closed = False

    def contains(self, keys, deadline):
        self._check()
        return [key in self.medium.frames for key in keys]

    def read(self, keys, sink, deadline):
        self._check()
        outcomes = []
        for i, key in enumerate(keys):
            found = self.medium.frames.get(key)
            if found is None:
                outcomes.append(Miss())
                continue
            room = sink.room(i, len(found[0]))
            if room is None:
                outcomes.append(Miss(Reason.REFUSED))
                continue
            room[:] = found[0]
            outcomes.append(Hit(len(room)))
        return outcomes

    def write(self, items, deadline):
        self._check()
        for item in items:
            self.medium.put(item.key, bytes(item.frame), self._clock.wall())
        return [Stored(len(item.frame)) for item in items]

    def delete(self, keys, deadline):
        self._check()
        return [self.medium.drop(key) for key in keys]

    def close(self):
        self._closed = True

    def _check(self):
        if self.dead:
            raise StoreUnreachable("the process is gone")
        if self._closed:
            raise StoreError("closed")


class ListingStore(MediumStore):
    """One that can say what it holds."""

    def scan(self):
        self._check()
        for key, (frame, wall) in list(self.medium.frames.items()):
            yield Entry(key, len(frame), wall)


class LossyStore(FaultyStore):
    """A faulty one that notes what it said was stored, and lost: whoever believed it does so on."""

    def __init__(self, store, plan, **ways):
        super().__init__(store, plan, **ways)
        self._medium = store.medium  # *inner* may be wrapped by who listens
        self.lost = set()

    def write(self, items, deadline):
        outcomes = super().write(items, deadline)
        for item, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, Stored) and item.key not in self._medium.frames:
                self.lost.add(item.key)
            else:
                self.lost.discard(item.key)
        return outcomes
