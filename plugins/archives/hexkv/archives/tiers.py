"""The tiers of a configuration, opened to take frames out of them or put frames in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from hexkv.archives.carrier import Carrier, lasting, writable
from hexkv.core.tiers.batches import Pending
from hexkv.peers.serving.served import ServedChunks
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.tiers import OF_PEERS
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.places import suggestion
from hexkv.plugins.configuration.schema import (
    DirectorySettings,
    EngineSettings,
    PeersSettings,
    Pool,
)
from hexkv.plugins.discovery.registry import Registry
from hexkv.ports import (
    PAGE,
    ChunkKey,
    CounterName,
    Deadline,
    FrameHeader,
    InvalidRequest,
    Reason,
    StoreError,
    namespace_of,
)

_OWNER = "archive"
_PATIENCE = 600.0
"""Seconds that a tier may take to list its chunks."""

_TRIES = 16
"""Chunks of a namespace that are read to learn its identity."""


class Taken:
    """A frame on its way to the tiers."""

    def __init__(
        self,
        written: Mapping[str, Pending | Reason],
        deadline: Deadline,
        why: Callable[[str], str],
    ) -> None:
        self._written = written
        self._deadline = deadline
        self._why = why
        """Returns the reason of a tier that refused it."""

    def settle(self) -> Mapping[str, str | None]:
        """See :class:`~hexkv.archives.carrying.Taking`."""
        found: dict[str, str | None] = {}
        for tier, pending in self._written.items():
            if isinstance(pending, Reason):
                found[tier] = pending
            elif not pending.wait(self._deadline):
                found[tier] = Reason.TIMED_OUT
            else:
                found[tier] = None if all(pending.result) else self._why(tier)
        return found


class TieredPlace:
    """A :class:`~hexkv.archives.carrying.FrameHome`: tiers that outlive a process.

    A context manager: its end writes the queue and closes the tiers.
    """

    def __init__(
        self, loaded: Loaded, registry: Registry, names: Sequence[str], pool_bytes: int
    ) -> None:
        """Open the tiers of a configuration.

        Args:
            loaded: the configuration; its pool is not taken.
            registry: the installed plugins.
            names: of the chosen tiers; all of them, if it is empty.
            pool_bytes: of the memory that frames pass through.

        Raises:
            InvalidRequest: there is no such tier, or its content ends with this process.
            ConfigError, AdapterUnavailable, PoolExhausted, StoreError: it cannot be opened.
        """
        settings = _alone(loaded.settings)
        known = [tier.name for tier in settings.tiers]
        for name in names:
            if name not in known:
                hint = suggestion(name, known, noun="configured")
                raise InvalidRequest(f"--tier: there is no tier {name!r}{hint}")
        small = settings.model_copy(update={"pool": _pool(registry, pool_bytes), "observe": {}})
        self._clock = SystemClock()
        self._seconds = settings.deadlines.store
        with ExitStack() as opened:
            self._served = opened.enter_context(
                ServedChunks(replace(loaded, settings=small), registry, self._clock, encodes=True)
            )
            stack = self._served.stack
            chosen = stack.named(names or None)
            self._tiers = lasting(chosen)
            if len(self._tiers) < len(names) or not self._tiers:
                which = next((t.name for t in chosen if t not in self._tiers), "")
                raise InvalidRequest(f"--tier: {which or 'every tier'} is memory of a process")
            self._targets = self._tiers if names else writable(self._tiers)
            self._carrier = Carrier(stack, _OWNER, self._seconds)
            self._codec = stack.runtime.codec
            self._await_index()
            opened.pop_all()
        self._seen: set[bytes] = set()
        self._broken: set[ChunkKey] = set()

    @property
    def listed(self) -> bool:
        """True if the indexes know all chunks of the tiers."""
        return all(tier.index.decides for tier in self._tiers)

    @property
    def evicted(self) -> int:
        """The number of chunks evicted for others."""
        return int(self._served.telemetry.total(CounterName.EVICTED))

    @property
    def serdes(self) -> Collection[str]:
        """Names of the installed serdes."""
        return self._served.stack.runtime.serdes

    def namespaces(self) -> Mapping[bytes, str]:
        """Return the namespaces of all chunks: by prefix, the identity; empty if unreadable."""
        by_prefix: dict[bytes, list[ChunkKey]] = {}
        for key in self._carrier.keys(self._tiers):
            some = by_prefix.setdefault(namespace_of(key), [])
            if len(some) < _TRIES:
                some.append(key)
        return {prefix: self._identity(keys) for prefix, keys in by_prefix.items()}

    def keys(self, prefixes: Sequence[bytes]) -> list[ChunkKey]:
        """Return every chunk of some namespaces."""
        wanted = frozenset(prefixes)
        there = dict.fromkeys([*self._carrier.keys(self._tiers), *self._broken])
        return [key for key in there if namespace_of(key) in wanted]

    def frames(self, keys: Sequence[ChunkKey]) -> Iterator[tuple[ChunkKey, memoryview | Reason]]:
        """Yield each frame, verified, valid until the next one; or why there is none."""
        for key, frame in self._carrier.read(keys, self._tiers):
            # A chunk that another read found damaged has been removed since.
            yield key, Reason.READ_FAILED if key in self._broken else frame

    def take(
        self, header: FrameHeader, page: bytes, fill: Callable[[memoryview], bool]
    ) -> Taken | Reason | None:
        """Put a frame on the tiers that lack it; unless they were named, on those that are written.

        Args:
            header: from its page.
            page: the page.
            fill: reads the rest of the frame behind the page; False if the file ends before.

        Returns:
            The frame on its way, or the reason of its refusal; ``None``: all of them have it.
        """
        lacking = self._carrier.lacking(header.key, self._targets)
        if not lacking:
            return None
        try:
            lease = self._carrier.room(header.payload_bytes)
        except InvalidRequest:
            return Reason.REFUSED
        with lease:
            lease.frame[:PAGE] = page
            if not fill(lease.frame):
                return Reason.CORRUPT
            found = self._carrier.verify(lease, header.key)
            if isinstance(found, Reason):
                return found
            prefix = namespace_of(header.key)
            if prefix not in self._seen:
                self._seen.add(prefix)
                self._served.meet(header.identity, prefix)
            written = self._carrier.write(lease, lacking)

        def why(tier: str) -> str:
            note = self._served.stack.runtime.history.find(header.key, tier)
            return (note and note.detail) or Reason.WRITE_FAILED

        return Taken(written, Deadline.after(self._clock, self._seconds), why)

    def _identity(self, keys: Sequence[ChunkKey]) -> str:
        """Return the identity of the first of some chunks that can be read; empty if none can."""
        for wanted in keys:
            for key, frame in self._carrier.read([wanted], self._tiers):
                if not isinstance(frame, Reason):
                    return self._codec.peek(frame).identity
                if frame is Reason.READ_FAILED:
                    self._broken.add(key)
        return ""

    def _await_index(self) -> None:
        """Wait until the indexes know the chunks of the tiers.

        Raises:
            StoreError: one does not list them in time.
        """
        self._served.stack.flush(Deadline.after(self._clock, _PATIENCE))
        for tier in self._tiers:
            if tier.indexing:
                raise StoreError(f"tier {tier.name} cannot list its chunks")

    def close(self) -> None:
        """Write the queue and close the tiers."""
        self._served.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _alone(settings: EngineSettings) -> EngineSettings:
    """Return *settings* without peers.

    With the name of an engine that runs with them, its membership in the directory would end.
    """
    tiers = tuple(tier for tier in settings.tiers if tier.store != OF_PEERS)
    none = {"directory": DirectorySettings(), "peers": PeersSettings()}
    return settings.model_copy(update={"tiers": tiers, **none})


def _pool(registry: Registry, size: int) -> Pool:
    """Return plain memory if there is any: not memory that engines pin or share."""
    known = [name for kind, name in registry.adapters if kind == "memory"]
    return Pool(provider="mmap" if "mmap" in known else known[0], bytes=size)
