"""A correct store in a dictionary, cut into small steps so that each can be broken alone."""

from __future__ import annotations

import time
from threading import Lock

import pytest

from hexkv.contracts.store import StoreContract
from hexkv.ports import (
    KEY_BYTES,
    Entry,
    Failed,
    Hit,
    Miss,
    Reason,
    Stored,
    StoreError,
    StoreFull,
    TimedOut,
)
from media.breakable_dict import DictService, Shelf


class DictStore:
    """A ChunkStore and nothing more."""

    def __init__(self, medium):
        self.medium = medium
        self.lock = Lock()
        self.closed = False
        self.born = time.time()
        self.times = {}

    def name(self, key):
        return key

    def _check(self):
        if self.closed:
            raise StoreError("closed")

    def reach(self, deadline):
        """Come through to the medium, which may be out of reach at present."""
        self._check()
        if isinstance(self.medium, Shelf):
            self.medium.pass_through(deadline, lambda: self.closed)

    def contains(self, keys, deadline):
        self.reach(deadline)
        return [self.has(key) for key in keys]

    def has(self, key):
        return self.name(key) in self.medium

    def read(self, keys, sink, deadline):
        self.reach(deadline)
        return [self.in_time(i, key, sink, deadline) for i, key in enumerate(keys)]

    def in_time(self, index, key, sink, deadline):
        return TimedOut() if deadline.expired else self.read_one(index, key, sink, deadline)

    def read_one(self, index, key, sink, deadline):
        frame = self.fetch(key)
        if frame is None:
            return Miss()
        if isinstance(frame, BadSector):
            return Failed(StoreError("input/output error"))
        room = sink.room(index, self.size(frame))
        if room is None:
            return Miss(Reason.REFUSED)
        self.fill(room, frame)
        return Hit(len(frame))

    def size(self, frame):
        return len(frame)

    def fill(self, room, frame):
        room[:] = frame

    def fetch(self, key):
        return self.medium.get(self.name(key))

    def write(self, items, deadline):
        self.reach(deadline)
        return [TimedOut() if deadline.expired else self.write_one(item) for item in items]

    def write_one(self, item):
        if not self.has_room(item) or (isinstance(self.medium, Shelf) and self.medium.full):
            return Failed(StoreFull("no room"))
        self.publish(self.name(item.key), bytes(item.frame))
        return Stored(len(item.frame))

    def has_room(self, item):
        return True

    def publish(self, name, frame):
        self.medium[name] = frame
        self.times[name] = time.time()

    def delete(self, keys, deadline):
        self.reach(deadline)
        return [self.forget(key) for key in keys]

    def forget(self, key):
        return self.medium.pop(self.name(key), None) is not None

    def close(self):
        self.closed = True
        if isinstance(self.medium, Shelf):
            self.medium.wake()


class ScanningStore(DictStore):
    def scan(self):
        self._check()
        for key, frame in list(self.medium.items()):
            if key in self.medium and len(key) == KEY_BYTES:
                yield Entry(key, len(frame), self.times.get(key, self.born))


class CapableStore(ScanningStore):
    """Also quarantines, clears, reads ranges, keeps leases, and has a limit of bytes."""

    most = None

    def __init__(self, medium):
        super().__init__(medium)
        self.leases = {}
        self.aside = {}

    def limit(self, size):
        self.most = size

    def has_room(self, item):
        return self.most is None or len(item.frame) + self.used_bytes() <= self.most

    def used_bytes(self):
        return sum(map(len, list(self.medium.values())))

    def publish(self, name, frame):
        self.let_go(name)
        super().publish(name, frame)

    def forget(self, key):
        return self.let_go(key) | super().forget(key)

    def quarantine(self, keys, deadline):
        self.reach(deadline)
        for key in keys:
            self.let_go(key)
            frame = self.medium.pop(key, None)
            if frame is not None:
                self.aside = {key: frame}

    def clear_prefix(self, prefix, deadline):
        self.reach(deadline)
        if deadline.expired:
            raise StoreError("no time to clear")
        return sum(self.forget(key) for key in self.starting(prefix))

    def starting(self, prefix):
        return [
            key for key in list(self.medium) if len(key) == KEY_BYTES and key.startswith(prefix)
        ]

    def read_range(self, key, start, into, deadline):
        self.reach(deadline)
        frame = self.fetch(key)
        if frame is None:
            return Miss()
        if start + len(into) > len(frame):
            return Failed(StoreError("beyond the end"))
        into[:] = frame[start : start + len(into)]
        return Hit(len(into))

    def put_lease(self, keys, leases):
        self._check()
        for key, lease in zip(keys, leases, strict=True):
            self.let_go(key)
            self.leases[key] = lease
            self.medium[key] = bytes(lease.frame)

    def get_lease(self, keys, owner):
        self._check()
        return [self.leases[k].share(owner) if k in self.leases else None for k in keys]

    def let_go(self, key):
        lease = self.leases.pop(key, None)
        if lease is not None:
            lease.release()
            self.medium.pop(key, None)
        return lease is not None

    def close(self):
        for key in list(self.leases):
            self.let_go(key)
        super().close()


class BadSector(bytes):
    """A frame that cannot be read."""


class RawDict:
    def __init__(self, medium):
        self.medium = medium

    def get(self, key):
        frame = self.medium.get(key)
        return None if frame is None else bytes(frame)

    def put(self, key, frame):
        self.medium[key] = frame

    def keys(self):
        return {key for key in self.medium if len(key) == KEY_BYTES}


class Zeros:
    """A frame that takes no room, however long it is."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, places):
        return bytes(len(range(self.size)[places]))


class Copying:
    """What a dictionary can do at most."""

    def write(self, frame):
        self.kept = bytes(frame)

    def read(self, into):
        into[:] = self.kept


class DictContract(StoreContract):
    Make = DictStore

    @pytest.fixture
    def medium(self):
        return Shelf()

    @pytest.fixture
    def store(self, medium):
        store = self.Make(medium)
        yield store
        getattr(store, "closed", False) or store.close()

    @pytest.fixture
    def raw(self, medium):
        return RawDict(medium)


class PersistentContract(DictContract):
    """The medium outlives the store."""

    @pytest.fixture
    def reopen(self, store, medium):
        opened = [store]

        def reopen():
            opened[-1].close()
            opened.append(self.Make(medium))
            return opened[-1]

        yield reopen
        opened[-1].close()


class WholeContract(PersistentContract):
    """Gives every fixture that an author can give."""

    @pytest.fixture
    def service(self, medium):
        return DictService(medium)

    @pytest.fixture
    def sibling(self, medium):
        store = self.Make(medium.beside())
        yield store
        store.close()

    @pytest.fixture
    def foreign(self, medium):
        strangers = {"somebody": b"else's", "a longer name " * 4: bytes(5000)}
        medium.update({name.encode(): content for name, content in strangers.items()})
        return lambda: {name: medium[name.encode()] for name in strangers}

    @pytest.fixture
    def limit(self):
        return Copying()

    @pytest.fixture
    def huge(self, medium):
        def put(key, size):
            medium[key] = Zeros(size)

        return put

    @pytest.fixture
    def unreadable(self, medium):
        def spoil(key):
            medium[key] = BadSector(medium[key])

        return spoil

    @pytest.fixture
    def aside(self, store):
        return lambda: len(store.aside)
