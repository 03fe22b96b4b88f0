"""The values of one wire: names over a cache by key.

A cache by key never changes the chunk of a key, and needs a chunk's size to read it. So every
version of a value gets a key of its own, and each name maps to the current version and its size.
The wire is in the key and in the frame, so no wire reaches values of another.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import takewhile
from threading import Lock
from typing import NamedTuple

from hexkv.adapters.lmserver._sorted import SortedKeys
from hexkv.adapters.lmserver._transit import Transit
from hexkv.adapters.net.server.serving import ListedValue, Room, Unreadable, Values
from hexkv.ports import (
    DIGEST_BYTES,
    NAMESPACE_BYTES,
    ChunkCache,
    ChunkKey,
    ChunkSpec,
    Clock,
    Deadline,
    DType,
    FrameHeader,
    KVLayout,
    LayerGroup,
    Lease,
    Plane,
    Reason,
    frame_bytes,
)

BYTES = KVLayout(DType.UINT8, (LayerGroup(1, (Plane("bytes", 1, 1),)),))
"""The layout of a value: as many tokens as it has bytes."""

_PATIENCE = 30.0
"""Seconds for one call of the cache."""

_RUN = 4 << 20
"""The most bytes of values that are lent at once; a single value may have more."""

_MOST = 64
"""The most values that are lent at once."""

_OWNER = "hexkv serve"

_GONE = (Reason.ABSENT, Reason.EVICTED, Reason.EXPIRED, Reason.CORRUPT)


class _Version(NamedTuple):
    """The current version of a name."""

    key: ChunkKey
    size: int
    stored: float


class Arriving:
    """Memory that a value is received into: see :class:`hexkv.adapters.net.server.serving.Room`."""

    def __init__(self, name: bytes, lease: Lease) -> None:
        self.name = name
        self.lease = lease
        self.data = lease.payload


class WireValues:
    """See :class:`hexkv.adapters.net.server.serving.Values`.

    Args:
        scheme: of the wire.
        cache: keeps the values.
        tier: the cache's tier that decides: a value is kept if it is stored there.
        transit: memory for values being received.
        clock: for deadlines.
    """

    def __init__(
        self, scheme: str, cache: ChunkCache, tier: str, transit: Transit, clock: Clock
    ) -> None:
        self.prefix = sha256(f"values of the {scheme}:// wire".encode()).digest()[:NAMESPACE_BYTES]
        described = {"model": f"{scheme}://", "name": "%s"}
        self._described = json.dumps(described, separators=(",", ":"))
        self._cache = cache
        self._tier = tier
        self._transit = transit
        self._clock = clock
        self._lock = Lock()
        """Held while names change; never while the cache is called."""
        self._versions: dict[bytes, _Version] = {}
        self._names: dict[ChunkKey, bytes] = {}
        self._sorted = SortedKeys()

    @contextmanager
    def room(self, name: bytes, size: int, seconds: float) -> Iterator[Room | None]:
        key = ChunkKey(self.prefix + secrets.token_bytes(DIGEST_BYTES))
        until = Deadline.after(self._clock, seconds)
        with self._transit.of(frame_bytes(size), seconds) as granted:
            spec = self._spec(name, key, size)
            leases = self._cache.allocate([spec], _OWNER, until) if granted else ()
            if not leases:
                yield None
                return
            with leases[0] as lease:
                yield Arriving(name, lease)

    def keep(self, rooms: Sequence[Room]) -> list[bool]:
        arrived = [room for room in rooms if isinstance(room, Arriving)]
        if len(arrived) != len(rooms):
            raise TypeError("a room of this server is needed")
        if not arrived:
            return []
        deadline = self._deadline()
        publishing = self._cache.publish([room.lease for room in arrived], None, deadline)
        publishing.wait(deadline)
        kept = list(publishing.tiers[self._tier])
        stored = self._clock.wall()
        useless: list[ChunkKey] = []
        with self._lock:
            for room, is_kept in zip(arrived, kept, strict=True):
                if (spec := room.lease.spec) is None:
                    continue
                if is_kept:
                    useless += self._set(room.name, _Version(spec.key, spec.tokens, stored))
                else:
                    useless.append(spec.key)  # a faster tier may have it
        self._forget(useless)
        # A value evicted before its name was set was not reported to :meth:`gone`.
        self.gone(self._missing([key for room in arrived if (key := _key(room.lease))]))
        return kept

    @contextmanager
    def lent(self, name: bytes, seconds: float) -> Iterator[memoryview | None]:
        deadline = Deadline.after(self._clock, min(seconds, _PATIENCE))
        version = self._versions.get(name)
        while version is not None:
            spec = self._spec(name, version.key, version.size)
            with self._cache.hold([spec], _OWNER, deadline) as hold:
                hold.wait(deadline)
                lease, reason = hold.leases[0], hold.reasons[0] or Reason.TIMED_OUT
                if lease is not None:
                    yield lease.payload
                    return
            replaced = self._versions.get(name)
            if replaced == version:
                if reason not in _GONE:
                    raise Unreadable(f"a value cannot be read: {reason}")
                self.gone([version.key])
                break
            version = replaced
        yield None

    @contextmanager
    def lent_run(self, names: Sequence[bytes], seconds: float) -> Iterator[Sequence[memoryview]]:
        specs: list[ChunkSpec] = []
        left = _RUN
        for name in names[:_MOST]:
            version = self._versions.get(name)
            if version is None or (specs and version.size > left):
                break
            left -= version.size
            specs.append(self._spec(name, version.key, version.size))
        if not specs:
            yield ()
            return
        deadline = Deadline.after(self._clock, min(seconds, _PATIENCE))
        with self._cache.hold(specs, _OWNER, deadline) as hold:
            hold.wait(deadline)
            yield [lease.payload for lease in takewhile(_is_there, hold.leases) if lease]

    def contains(self, names: Sequence[bytes]) -> list[bool]:
        return [name in self._versions for name in names]

    def delete(self, names: Sequence[bytes]) -> list[bool]:
        with self._lock:
            gone = [self._drop(name) for name in names]
        self._forget([key for key in gone if key is not None])
        return [key is not None for key in gone]

    def list(self, after: bytes, most: int) -> list[ListedValue]:
        with self._lock:
            names = self._sorted.after(after, most)
            found = [(name, self._versions[name]) for name in names]
        return [ListedValue(name, version.size, version.stored) for name, version in found]

    def restore(self, headers: Sequence[FrameHeader]) -> None:
        """Restore the values of an earlier process; of each name the latest."""
        useless: list[ChunkKey] = []
        with self._lock:
            for header in sorted(headers, key=lambda header: header.created):
                if (name := self._name(header)) is not None:
                    version = _Version(header.key, header.payload_bytes, header.created)
                    useless += self._set(name, version)
        self._forget(useless)

    def gone(self, keys: Sequence[ChunkKey]) -> None:
        """Forget the names of values that have left the cache."""
        with self._lock:
            for key in keys:
                name = self._names.get(key)
                if name is not None:
                    self._drop(name)

    def _set(self, name: bytes, version: _Version) -> Sequence[ChunkKey]:
        """Map *name* to *version*; return the key of the version before, if there was one."""
        former = self._drop(name)
        self._versions[name] = version
        self._names[version.key] = name
        self._sorted.add(name)
        return () if former is None else (former,)

    def _drop(self, name: bytes) -> ChunkKey | None:
        version = self._versions.pop(name, None)
        if version is None:
            return None
        del self._names[version.key]
        self._sorted.discard(name)
        return version.key

    def _missing(self, keys: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
        found = self._cache.match(keys, self._deadline())
        return [key for key, tier in zip(keys, found, strict=True) if tier is None]

    def _forget(self, keys: Sequence[ChunkKey]) -> None:
        if keys:
            self._cache.forget(keys, self._deadline())

    def _spec(self, name: bytes, key: ChunkKey, size: int) -> ChunkSpec:
        return ChunkSpec(key, self._described % name.hex(), BYTES, size)

    def _name(self, header: FrameHeader) -> bytes | None:
        """The name of the value in a frame; ``None`` if this wire has not written it."""
        try:
            name = bytes.fromhex(json.loads(header.identity)["name"])
        except (ValueError, TypeError, KeyError):
            return None
        mine = self._spec(name, header.key, header.payload_bytes).identity == header.identity
        return name if mine else None

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clock, _PATIENCE)


def _is_there(lease: Lease | None) -> bool:
    return lease is not None


def _key(lease: Lease) -> ChunkKey | None:
    return None if lease.spec is None else lease.spec.key


def _keeps_the_protocol(values: WireValues) -> Values:
    return values  # mypy checks here that it keeps the protocol's promises
