"""A cache by key alone, for adapters that serve others: no model, no tokens, chunks of any size."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Self
from weakref import ref

from hexkv.core.engine.calls import Calls, Deadlines
from hexkv.core.engine.keyed import KeyedCache
from hexkv.core.keys.hashing import hashed_salt
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.holds.hold import LocalHold
from hexkv.core.tiers.holds.layered_hold import LayeredHold
from hexkv.core.tiers.holds.recording import counting
from hexkv.core.tiers.local import LocalChunks
from hexkv.core.tiers.tier import Tier
from hexkv.operate.opening import administer
from hexkv.peers.opening import ProcessPeers
from hexkv.peers.pushing.announced import Announced
from hexkv.peers.pushing.pushing import Pushing
from hexkv.peers.serving.addresses import Addresses
from hexkv.peers.serving.inheritance import Inheritance
from hexkv.peers.serving.listing import in_memory
from hexkv.peers.serving.prompts import CheckedPrompts
from hexkv.plugins.composition.administering import serve_admin
from hexkv.plugins.composition.checking import check
from hexkv.plugins.composition.compose import BuildContext, open_serdes, open_stack
from hexkv.plugins.composition.observing import open_observation
from hexkv.plugins.composition.starting import begin_log, report_start
from hexkv.plugins.composition.tiers import TierOpener, tenants_of
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.discovery.algorithms import hash_algorithm
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.observing.telemetry import EngineInfo, Role, Totals
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    NAMESPACE_BYTES,
    PAGE,
    CacheEvent,
    Change,
    ChunkCache,
    ChunkKey,
    ChunkSpec,
    Cleared,
    Clock,
    ConfigError,
    CorruptFrame,
    Deadline,
    FrameFile,
    FrameHeader,
    Health,
    HexKVError,
    Hit,
    HoldTerms,
    Lease,
    MemoryRegion,
    Peers,
    ServiceHold,
    StoreError,
)

log = logging.getLogger(__name__)

_PATIENCE = 60.0
"""Seconds that opening waits for a tier's index, and closing for calls under way."""

_LOOK = 5.0
"""Seconds that a query of an operator may take."""

_PIN = 600.0
"""Seconds that an operator's pin lasts by default."""


class ServedChunks:
    """A :class:`~hexkv.ports.ChunkCache` over configured tiers, and the chunks it found there.

    A context manager: closing it ends every tier and frees the pool.
    """

    def __init__(
        self,
        loaded: Loaded,
        registry: Registry,
        clock: Clock,
        gone: Callable[[Sequence[ChunkKey]], None] | None = None,
        *,
        encodes: bool = False,
        region: MemoryRegion | None = None,
        stores: Mapping[str, FrameFile] | None = None,
    ) -> None:
        """Open the pool and the tiers.

        Args:
            loaded: the configuration: its pool, its tiers, and the services beside them.
            registry: the installed plugins.
            clock: for deadlines.
            gone: takes chunks that no tier has now, for whatever reason, after they went. From any
                thread; must not block or raise. ``None``: they are not reported.
            encodes: whether tiers may name serdes.
            region: the pool's memory, if it exists already; closed with this.
            stores: by tier name, the memory of stores in the process that has *region*; its
                descriptors stay the caller's.

        Raises:
            ConfigError, AdapterUnavailable, PoolExhausted, StoreError: as for an engine.
        """
        begin_log(loaded, registry)
        check(loaded, registry)
        leaving = None if gone is None else _Leaving(gone)
        serdes = open_serdes(loaded, registry, OpenContext(clock)) if encodes else {}
        tenants = tenants_of(loaded)
        self.deadlines = loaded.settings.deadlines
        """The times that calls usually take at most: clients that wait for less blame no tier."""

        self._tenants = {hashed_salt(tenant.salt): tenant.name for tenant in tenants}
        self._clock = clock
        self.telemetry = Totals()
        self.telemetry.info = EngineInfo(role=Role.NODE)
        with ExitStack() as opened:
            self._observation = open_observation(loaded, registry, clock)
            opened.callback(self._observation.close)
            if loaded.settings.observe.get("record"):
                where = loaded.locate(("observe", "record"))
                raise ConfigError(f"{where}: is for engines, which know prompts: a node does not")
            events = [] if leaving is None else [leaving]
            context = BuildContext(
                opened, loaded, registry, clock, self.telemetry, self._observation, events
            )
            meet = _Meeting(self)
            stack, peers = open_stack(context, serdes, None, region, meet=meet, stores=stores)
            opened.pop_all()
        self._stack = stack
        if leaving is not None:
            leaving.stack = self._stack
        self.announced = Announced(clock, self._stack.runtime.executor)
        """Announcements of clients to each other."""

        service = peers.service if isinstance(peers, ProcessPeers) else None
        access = None if peers is None else peers.access
        addresses = Addresses()
        if access is not None:
            addresses.add(access.channel)
        if isinstance(peers, ProcessPeers):
            addresses.add(peers.directory)
        self._chunks = LocalChunks(self._stack)
        runtime = self._stack.runtime
        requests = Pipeline(self._chunks, runtime, PrefetchRules(share=0.0))
        self._calls = Calls(requests, _PATIENCE)
        self.inheritance = Inheritance(self._stack, self._calls, self.place, service, addresses)
        self.chunks: ChunkCache = KeyedCache(requests, self._calls, _PATIENCE)
        opener = TierOpener(loaded, registry, clock, self._stack.pool, None, access)
        limits = Deadlines(lookup=_LOOK, store=_PATIENCE, pin=_PIN)
        self.admin = administer(opener, self._stack, limits, tenants, self._calls)
        """Administration, which the configuration may have served to others."""

        self.peers: Peers | None = service
        """Other processes that are served and queried, if the configuration defines how."""

        self.pushing: Pushing | None = None
        """Chunks that are pushed to peers that wait for them, and those from peers."""

        self.at_close(addresses.close)
        if service is not None:
            executor = self._stack.runtime.executor
            self.pushing = Pushing(self.announced, self.chunks, service, clock, executor)
            self.at_close(self.pushing.close)
            self.at_close(service.close)
        self._opening = loaded, registry, clock
        self._calls.at_close(self._observation.close)
        sink = self._observation.prompts
        self.prompts = None if sink is None else CheckedPrompts(sink)
        """Takes the tokens of prompts, if the content of the tiers is published."""

        report_start(loaded, self._chunks)

    def at_close(self, work: Callable[[], None]) -> None:
        """Do *work*, which never raises or refers to the cache, before its tiers close."""
        self._calls.at_close(work)

    def serve_admin(self) -> None:
        """Serve administration at the configured address, if any, until :meth:`close`.

        Raises:
            ConfigError: it cannot be served there.
        """
        serve_admin(self, *self._opening)

    def observe(self) -> None:
        """Serve numbers and state at the configured address, if any, until :meth:`close`.

        Raises:
            ConfigError: they cannot be served there.
        """
        self._observation.serve(self)

    def take_back(self, expire: Callable[[], bool], first_end: Callable[[], float]) -> None:
        """Let the pool first reclaim leases whose holders exceeded their time.

        Args:
            expire: reclaims those that exceeded it; True if there were any.
            first_end: when the first of the rest will be, by the clock; infinity for never.
        """
        pool = self._stack.pool
        otherwise = pool.reclaim
        pool.reclaim = lambda size: expire() or (otherwise is not None and otherwise(size))
        pool.first_end = first_end

    def headers(self) -> Iterator[FrameHeader]:
        """Yield the headers of chunks on tiers that outlive a process. Called at start-up.

        Raises:
            StoreError: a tier does not list its chunks in time.
        """
        until = Deadline.after(self._clock, _PATIENCE)
        self._stack.flush(until)
        for tier in self._stack.tiers:
            if tier.indexing:
                raise StoreError(f"tier {tier.name} cannot list its chunks")
            if tier.calls.ranges is not None:
                yield from self._headers(tier, tier.index.keys(), until)

    def published(self, keys: Sequence[ChunkKey]) -> None:
        """Release calls that wait for chunks that a client has published, here and at peers."""
        self.announced.published(keys)
        if self.pushing is not None:
            self.pushing.published(keys)

    @property
    def stack(self) -> TierStack:
        """The tiers, for work on whole frames."""
        return self._stack

    @property
    def frozen(self) -> bool:
        """True while nothing is to be stored."""
        return self._calls.frozen

    @property
    def region(self) -> MemoryRegion:
        """The pool's memory."""
        return self._stack.pool.region

    def fits(self, payload_bytes: int) -> bool:
        """True if a chunk of *payload_bytes* could ever be leased."""
        return self._stack.pool.fits(payload_bytes)

    def place(self, lease: Lease) -> int | None:
        """Return a block's offset in the pool's memory; ``None`` in a store's own memory."""
        return self.places([lease])[0]

    def places(self, leases: Sequence[Lease | None]) -> list[int | None]:
        """Return the :meth:`place` of each of *leases*; ``None`` for each that has none."""
        own = self._stack.pool.own
        return [None if block is None else block.offset for block in map(own, leases)]

    def hold(
        self,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        groups: Sequence[range] = (),
        encoded: Collection[str] = (),
        rate: float | None = None,
    ) -> ServiceHold:
        """Hold chunks as ``chunks.hold`` does, if they fit the pool; by *groups* of layers, if any.

        Payloads of the serdes in *encoded* may stay encoded. Tiers that bring fewer tokens per
        second than *rate*, at which the host computes, are left out.

        For threads in which no signal handler or finalizer calls this cache again: the steps of the
        returned hold are not counted as calls.
        """
        with self._calls.call():
            if not (groups or encoded or rate) or not wanted:
                return self._chunks.hold(wanted, owner, deadline)
            ended = counting(self._stack.runtime, wanted)
            terms = HoldTerms(encoded=encoded, layered=groups, rate=rate)
            kind = LayeredHold if groups else LocalHold
            return kind(self._stack, wanted, owner, deadline, terms, ended)

    def meet(self, identity: str, prefix: bytes) -> None:
        """Assign the chunks of a namespace to its tenant on the tiers.

        A namespace whose keys do not follow the rules of this core belongs to no tenant.
        """
        if not self._tenants:
            return
        try:
            described = json.loads(identity)
            digest = hash_algorithm(described["algorithm"].removesuffix("-256")).digest
            named = digest(identity.encode())[:NAMESPACE_BYTES] == prefix
            tenant = self._tenants.get(described["salt"], "") if named else ""
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, HexKVError):
            tenant = ""
        self._stack.assign(prefix, tenant)

    def in_memory(self, after: ChunkKey | None, most: int) -> list[ChunkSpec]:
        """Return some chunks of tiers in memory behind *after*, in the order of their keys.

        At most *most*, of a layout each; none only after the last.
        """
        with self._calls.call():
            return in_memory(self._stack, after, most)

    def clear(
        self, prefixes: Collection[bytes] | None, tiers: Sequence[str] | None, deadline: Deadline
    ) -> Cleared:
        """Delete every chunk whose key begins with one of *prefixes*, or every one for ``None``.

        Raises:
            InvalidRequest: there is no such tier.
        """
        with self._calls.call():
            return self._chunks.clear(prefixes, tiers, deadline)

    def health(self) -> Health:
        """Return the state of the cache and of its tiers."""
        return self._calls.health(0.0)

    def close(self) -> None:
        """Write the queue and end every tier. Later calls raise ``EngineClosed``.

        Memory that another process has inherited is not touched.
        """
        if self.inheritance.given:
            self._calls.abandon()
        else:
            self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _headers(
        self, tier: Tier, keys: Sequence[ChunkKey], until: Deadline
    ) -> Iterator[FrameHeader]:
        page = memoryview(bytearray(PAGE))
        codec = self._stack.runtime.codec
        damaged = 0
        for key in keys:
            if not isinstance(tier.calls.read_range(key, 0, page, until), Hit):
                damaged += 1
                continue
            try:
                header = codec.peek(page)
            except (CorruptFrame, StoreError):
                damaged += 1
                continue
            if header.key == key:
                yield header
        if damaged:
            log.warning("tier %s: %d of %d chunks cannot be read", tier.name, damaged, len(keys))


class _Meeting:
    """Receives the namespaces of a peer source. It does not keep the cache from being dropped."""

    def __init__(self, served: ServedChunks) -> None:
        self._served = ref(served)

    def __call__(self, identity: str, prefix: bytes) -> None:
        served = self._served()
        if served is not None:
            served.meet(identity, prefix)


class _Leaving:
    """An event sink. Holds no reference to the cache, which the tiers may outlive."""

    def __init__(self, gone: Callable[[Sequence[ChunkKey]], None]) -> None:
        self._gone = gone
        self.stack: TierStack | None = None

    def emit(self, event: CacheEvent) -> None:
        """See :class:`hexkv.ports.EventSink`. A chunk is gone when no tier's index has it."""
        if event.change is Change.REMOVED and self.stack is not None:
            tiers = self.stack.tiers
            there = [any(tier.known([key])[0] for tier in tiers) for key in event.keys]
            left = [key for key, is_there in zip(event.keys, there, strict=True) if not is_there]
            if left:
                self._gone(left)
