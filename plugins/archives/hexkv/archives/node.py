"""A node's cache, to take frames out of its memory or put frames in.

A node holds chunks raw, whatever form they have on its tiers: so they are exported raw, and encoded
frames are decoded on their way in. Chunks on a node's other tiers are exported with the node's own
configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Self

from hexkv.core.frames.codec import layer_parts
from hexkv.core.tiers.read.block_sink import spec_of
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import open_serdes
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.discovery.algorithms import frame_codec
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    PAGE,
    RAW,
    ChunkKey,
    ChunkSpec,
    CorruptFrame,
    Deadline,
    FrameHeader,
    InvalidRequest,
    Lease,
    Publishing,
    Reason,
    StoreError,
    StoreUnreachable,
    SupportsListing,
    frame_bytes,
    namespace_of,
)

_OWNER = "archive"
_STEP = 8
"""Chunks that are held at a time."""


class Published:
    """A chunk on its way to the node's tiers."""

    def __init__(self, publishing: Publishing, deadline: Deadline) -> None:
        self._publishing = publishing
        self._deadline = deadline

    def settle(self) -> Mapping[str, str | None]:
        """See :class:`~hexkv.archives.carrying.Taking`."""
        if not self._publishing.wait(self._deadline):
            return {"node": Reason.TIMED_OUT}
        tiers = self._publishing.tiers
        if any(all(row) for row in tiers.values()):
            return {}  # it is there; the node passes it on to slower tiers
        return dict.fromkeys(tiers, Reason.WRITE_FAILED) or {"node": Reason.NO_ANSWER}


class NodePlace:
    """A :class:`~hexkv.archives.carrying.FrameHome` over a node. A context manager."""

    listed = True
    evicted = 0
    """A node does not report its evictions."""

    def __init__(self, loaded: Loaded, registry: Registry) -> None:
        """Connect to the node of a configuration.

        Raises:
            StoreUnreachable: it does not answer.
            ConfigError, AdapterUnavailable: there is no adapter for it.
        """
        settings = loaded.settings
        self._clock = SystemClock()
        self._seconds = settings.deadlines.store
        context = OpenContext(self._clock)
        self._codec = frame_codec(registry, settings.checksum)
        self._serdes = open_serdes(loaded, registry, context)
        self._specs: dict[ChunkKey, ChunkSpec] = {}
        with ExitStack() as opened:
            self._service = registry.open("node", "unix", {"socket": settings.node}, context)
            opened.callback(self._service.close)
            if self._service.health(self._deadline()) is None:
                raise StoreUnreachable(f"the node at {settings.node} does not answer")
            opened.pop_all()

    @property
    def serdes(self) -> Collection[str]:
        """Names of the installed serdes."""
        return self._serdes

    def namespaces(self) -> Mapping[bytes, str]:
        """Return the namespaces of the chunks in the node's memory: by prefix, the identity.

        Raises:
            InvalidRequest: this process is not allowed to know.
            StoreUnreachable: the node has stopped answering.
        """
        service = self._service
        if not isinstance(service, SupportsListing):
            raise InvalidRequest("the node cannot list its chunks")
        after: ChunkKey | None = None
        while True:
            some = service.in_memory(after, self._deadline())
            if some is None:
                raise StoreUnreachable("the node did not list its chunks")
            if not some:
                break
            self._specs.update((spec.key, spec) for spec in some)
            after = some[-1].key
        return {namespace_of(key): spec.identity for key, spec in self._specs.items()}

    def keys(self, prefixes: Sequence[bytes]) -> list[ChunkKey]:
        """Return every chunk of some namespaces."""
        wanted = frozenset(prefixes)
        return [key for key in self._specs if namespace_of(key) in wanted]

    def frames(self, keys: Sequence[ChunkKey]) -> Iterator[tuple[ChunkKey, memoryview | Reason]]:
        """Yield each frame, sealed here, valid until the next one; or why there is none."""
        known = [key for key in keys if key in self._specs]
        yield from ((key, Reason.ABSENT) for key in keys if key not in self._specs)
        for start in range(0, len(known), _STEP):
            specs = [self._specs[key] for key in known[start : start + _STEP]]
            with self._service.hold(specs, _OWNER, self._deadline()) as hold:
                hold.wait(self._deadline())
                for spec, lease, why in zip(specs, hold.leases, hold.reasons, strict=True):
                    if lease is None:
                        yield spec.key, why or Reason.TIMED_OUT
                    else:
                        yield spec.key, self._sealed(spec, lease)

    def take(
        self, header: FrameHeader, page: bytes, fill: Callable[[memoryview], bool]
    ) -> Published | Reason | None:
        """Publish the chunk of a frame; see :class:`~hexkv.archives.carrying.FrameHome`."""
        if self._service.match([header.key], self._deadline())[0] is not None:
            return None
        encoded = spec_of(header)
        if encoded is None:
            return Reason.CORRUPT
        spec = encoded._replace(serde=RAW)
        # Before memory is taken: neither is larger than the node has room for.
        if not self._service.fits(max(spec.raw_bytes, header.payload_bytes)):
            return Reason.REFUSED
        frame = memoryview(bytearray(frame_bytes(header.payload_bytes)))
        frame[:PAGE] = page
        try:
            if not fill(frame) or self._codec.open(frame, header.key) != header:
                return Reason.CORRUPT
        except (CorruptFrame, StoreError):
            return Reason.CORRUPT
        leases = self._service.allocate([spec], _OWNER, self._deadline())
        if not leases:
            return Reason.REFUSED
        with leases[0] as lease:
            why = self._fill(lease, spec, header, frame[PAGE : PAGE + header.payload_bytes])
            if why is not None:
                return why
            deadline = self._deadline()
            return Published(self._service.publish([lease], None, deadline), deadline)

    def close(self) -> None:
        """End the connection."""
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sealed(self, spec: ChunkSpec, lease: Lease) -> memoryview:
        """Return a frame of a held chunk, in memory of its own."""
        frame = memoryview(bytearray(frame_bytes(spec.raw_bytes)))
        frame[PAGE : PAGE + spec.raw_bytes] = lease.payload
        header = FrameHeader(
            key=spec.key,
            identity=spec.identity,
            tokens=spec.tokens,
            serde=RAW,
            raw_bytes=spec.raw_bytes,
            payload_bytes=spec.raw_bytes,
            created=self._clock.wall(),
            position=spec.position,
            parts=layer_parts(spec.layout, spec.tokens),
        )
        self._codec.seal(frame, header)
        return frame

    def _fill(
        self, lease: Lease, spec: ChunkSpec, header: FrameHeader, payload: memoryview
    ) -> Reason | None:
        """Copy or decode a verified frame's payload into a lease. Return why it failed."""
        if header.serde == RAW:
            lease.payload[:] = payload
            return None
        serde = self._serdes.get(header.serde)
        if serde is None:
            return Reason.UNKNOWN_SERDE
        try:
            serde.decode(payload, spec.layout, spec.tokens, lease.payload)
        except Exception:  # noqa: BLE001 - whatever a serde raises is a frame that is not used
            return Reason.CORRUPT
        return None

    def _deadline(self) -> Deadline:
        return Deadline.after(self._clock, self._seconds)
