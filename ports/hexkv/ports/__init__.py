"""The vocabulary and the contracts that the two sides of the hexagon share.

This package does no work: it has value objects, protocols and errors, on the standard library
alone. Fourteen modules, in this order, are the system:

1. ``layout``: the element type and shape of KV.
2. ``keys``: the namespace and the key of a chunk; the types of tokens.
3. ``chunk``: the description of a chunk, and its frame, the format outside of memory.
4. ``outcomes``: the outcome of an operation for one chunk, and the reasons of misses.
5. ``errors``: the tree of errors.
6. ``store``: five methods that keep frames under keys; all that most adapters have.
7. ``lease``: a hold on memory, so that no byte is copied twice or reused too early.
8. ``serde``: encodings that make chunks smaller.
9. ``policy``: the order of eviction.
10. ``device``: a serving engine's KV memory as one sequence of tokens.
11. ``results``: the results of a cache's calls.
12. ``hold``: chunks that arrived in memory and stay there until they are released.
13. ``chunk_cache``: the cache by key, over all tiers.
14. ``prefix_cache``: the cache by tokens, which serving engines call.

The folders have the rest: ``runtime`` (dtypes, time, threads, memory), ``abilities`` (optional, of
stores, serdes and windows), ``caches`` (further calls of the two caches), ``service`` (their lower
half), ``peers`` and ``operate`` (the operator's side). Import names from here: the list below is by
theme.
"""
# fmt: off
# ruff: noqa: I001 -- the imports are a table of contents, by theme

# Names: the layout of KV, the namespace, the key of a chunk.
from hexkv.ports.runtime.dtype import DType
from hexkv.ports.layout import KVLayout, LayerGroup, Plane
from hexkv.ports.keys import (
    DIGEST_BYTES, KEY_BYTES, NAMESPACE_BYTES, ChunkKey, Namespace, ParallelSlice, Tokens,
    namespace_of,
)

# A chunk and its frame; outcomes of an operation for one; errors.
from hexkv.ports.chunk import (
    FRAME_VERSION, IDENTITY_BYTES, KEY_AT, MAGIC, PAGE, RAW, ChunkSpec, FrameHeader,
    frame_bytes, names_key, raw_sizes,
)
from hexkv.ports.outcomes import (
    STORE_REASONS, Corrupt, Failed, Hit, Miss, Outcome, ReadOutcome, Reason, Stored, TimedOut,
    WriteOutcome,
)
from hexkv.ports.errors import (
    AdapterUnavailable, CollectiveBroken, ConfigError, CorruptFrame, EngineBusy, EngineClosed,
    HexKVError, InvalidRequest, InvalidTokens, LayoutMismatch, PoolExhausted, StoreBusy,
    StoreError, StoreFull, StoreUnreachable,
)

# Adapters of storage: a store of frames, leases on memory, encodings, order of eviction.
from hexkv.ports.store import PIECE, ChunkStore, Item, Sink
from hexkv.ports.lease import Lease, MeteredLease, SupportsOwnMemory, SupportsZeroCopy
from hexkv.ports.serde import Serde
from hexkv.ports.policy import Policy

# A serving engine's memory.
from hexkv.ports.device import DeviceKV, Finished, Span, Transfer

# The caches: by key, by tokens; their results.
from hexkv.ports.hold import Hold, Publishing
from hexkv.ports.chunk_cache import SHARED_OWNER, ChunkCache, ChunkLeases
from hexkv.ports.prefix_cache import PrefixCache
from hexkv.ports.results import Cleared, Lookup, Retrieved, StoreReport

# ... layer by layer, for hosts that name chunks, in another process.
from hexkv.ports.caches.layerwise import LayeredRead, LayeredWrite, LayerwiseCache
from hexkv.ports.caches.keyed import KeySpace, KeyedAccess
from hexkv.ports.service import (
    ChunkService, FarTiers, HoldTerms, ServiceHold, ServicePublishing, SupportsListing, WholeChunks,
)

# Abilities of stores: checked once, when a tier is opened.
from hexkv.ports.abilities.stores import (
    Entry, ReadOnlyStore, SharedMedium, SupportsClear, SupportsLimit, SupportsQuarantine,
    SupportsRangeRead, SupportsScan,
)
from hexkv.ports.abilities.files import SupportsFiles

# ... of serdes, and of leases.
from hexkv.ports.abilities.serdes import ErrorBound, LayerSerde, LossySerde, ScaleGroup
from hexkv.ports.abilities.runs import SupportsRuns, release_all, share_all

# ... of devices' windows.
from hexkv.ports.abilities.background import SupportsBackground
from hexkv.ports.abilities.encoded import EncodedSpan, SupportsEncoded, SupportsEncodedLayers
from hexkv.ports.abilities.on_device import (
    DeviceRange, DeviceRoom, RoomSpan, SupportsDeviceRead, SupportsDeviceRoom,
)

# What a process gives its cache: time, threads, memory, hashes, cuts of prompts.
from hexkv.ports.runtime.clock import Clock, Deadline
from hexkv.ports.runtime.executor import Completion, Executor, Step
from hexkv.ports.runtime.region import (
    MemoryProvider, MemoryRegion, SupportsMapping, SupportsPrefault, SupportsRegistration,
)
from hexkv.ports.runtime.registration import REGISTRATIONS, Registrable, Registrar
from hexkv.ports.runtime.hashes import HashFunction
from hexkv.ports.runtime.chunker import Bounds, Chunker
from hexkv.ports.runtime.steps import TraceStep

# The version of all of this, for adapters.
from hexkv.ports.runtime.contract import CONTRACT

# Peers: the directory of chunks, channels, queries.
from hexkv.ports.peers.directory import (
    REPORT_KEYS, SILENT_HEARTBEATS, Directory, Member, Report, SupportsReplicas,
)
from hexkv.ports.peers.transfer import MAX_QUESTION, Offer, Part, Peer, PeerSource, TransferChannel
from hexkv.ports.peers.lease_sink import Destination, LeaseSink
from hexkv.ports.peers.peers import KIND_BYTES, Answer, PeerAccess, Peers, TransferOutcome

# ... announcements of chunks under computation, and ranks in lockstep.
from hexkv.ports.peers.announcing import MAX_ANNOUNCED, Announcing, SupportsPushing
from hexkv.ports.peers.collective import MAX_HEAD, MAX_MESSAGE, Collective

# ... and a process that takes over from another one.
from hexkv.ports.peers.hand_over import FrameFile, PlacedFrame, SupportsHandOver
from hexkv.ports.peers.suspension import SupportsSuspension
from hexkv.ports.peers.lives import SupportsLives, SupportsRenewal

# Operators: state, the life cycle, administration.
from hexkv.ports.operate.health import Health, TierHealth
from hexkv.ports.operate.lifecycle import CacheLifecycle
from hexkv.ports.operate.administration import Administration
from hexkv.ports.operate.admin_access import AdminAccess, ServedAdministration
from hexkv.ports.operate.maintenance import (
    NamespaceState, Progress, Selection, TierState, Watch, Why, WorkReport,
)
from hexkv.ports.operate.relocation import CLAIM_SECONDS, LISTED_KEYS, ClaimState, Relocation

# ... metrics, events, traces, records.
from hexkv.ports.operate.telemetry import (
    CacheEvent, Change, CounterName, EventSink, HistogramName, Telemetry,
)
from hexkv.ports.operate.observing import ContentFeed, NamedPrompt, Observed, Observer, PromptSink
from hexkv.ports.operate.spans import EndedCall, SpanSink, traced, traceparent
from hexkv.ports.operate.recording import (
    CallSink, RecordedCache, RecordedCall, RecordedKind, RecordedStep, SupportsRecording,
)

__all__ = [
    "CLAIM_SECONDS", "CONTRACT", "DIGEST_BYTES", "FRAME_VERSION",
    "IDENTITY_BYTES", "KEY_AT", "KEY_BYTES", "KIND_BYTES", "LISTED_KEYS", "MAGIC",
    "MAX_ANNOUNCED", "MAX_HEAD", "MAX_MESSAGE", "MAX_QUESTION", "NAMESPACE_BYTES", "PAGE",
    "PIECE", "RAW", "REGISTRATIONS", "REPORT_KEYS", "SHARED_OWNER", "SILENT_HEARTBEATS",
    "STORE_REASONS",
    "AdapterUnavailable", "AdminAccess", "Administration", "Announcing", "Answer",
    "Bounds", "CacheEvent", "CacheLifecycle", "CallSink",
    "Change", "ChunkCache", "ChunkKey", "ChunkLeases", "ChunkService", "ChunkSpec",
    "ChunkStore", "Chunker", "ClaimState", "Cleared", "Clock", "Collective", "CollectiveBroken",
    "Completion", "ConfigError", "ContentFeed", "Corrupt", "CorruptFrame", "CounterName",
    "DType", "Deadline", "Destination", "DeviceKV", "DeviceRange", "DeviceRoom", "Directory",
    "EncodedSpan", "EndedCall", "EngineBusy", "EngineClosed", "Entry", "ErrorBound",
    "EventSink", "Executor", "Failed", "FarTiers", "Finished", "FrameFile", "FrameHeader",
    "HashFunction", "Health", "HexKVError", "HistogramName", "Hit", "Hold", "HoldTerms",
    "InvalidRequest", "InvalidTokens", "Item", "KVLayout", "KeySpace", "KeyedAccess",
    "LayerGroup", "LayerSerde", "LayeredRead", "LayeredWrite",
    "LayerwiseCache", "LayoutMismatch", "Lease", "LeaseSink", "Lookup", "LossySerde", "Member",
    "MemoryProvider", "MemoryRegion", "MeteredLease", "Miss", "NamedPrompt", "Namespace",
    "NamespaceState", "Observed", "Observer", "Offer", "Outcome", "ParallelSlice", "Part",
    "Peer", "PeerAccess", "PeerSource", "Peers", "PlacedFrame", "Plane", "Policy",
    "PoolExhausted", "PrefixCache", "Progress", "PromptSink", "Publishing",
    "ReadOnlyStore", "ReadOutcome", "Reason", "RecordedCache", "RecordedCall", "RecordedKind",
    "RecordedStep", "Registrable", "Registrar", "Relocation", "Report", "Retrieved", "RoomSpan",
    "ScaleGroup", "Selection", "Serde",
    "ServedAdministration", "ServiceHold", "ServicePublishing", "SharedMedium", "Sink", "Span",
    "SpanSink", "Step", "StoreBusy", "StoreError", "StoreFull", "StoreReport",
    "StoreUnreachable", "Stored", "SupportsBackground", "SupportsClear", "SupportsDeviceRead",
    "SupportsDeviceRoom", "SupportsEncoded", "SupportsEncodedLayers", "SupportsFiles",
    "SupportsHandOver", "SupportsLimit", "SupportsListing", "SupportsLives", "SupportsMapping",
    "SupportsOwnMemory", "SupportsPrefault", "SupportsPushing", "SupportsQuarantine",
    "SupportsRangeRead", "SupportsRecording", "SupportsRegistration", "SupportsRenewal",
    "SupportsReplicas", "SupportsRuns", "SupportsScan", "SupportsSuspension",
    "SupportsZeroCopy", "Telemetry", "TierHealth", "TierState", "TimedOut", "Tokens",
    "TraceStep", "Transfer", "TransferChannel", "TransferOutcome", "Watch", "WholeChunks",
    "Why", "WorkReport", "WriteOutcome", "frame_bytes", "names_key", "namespace_of",
    "raw_sizes", "release_all", "share_all", "traced", "traceparent",
]
