"""The vocabulary and the contracts that the two sides of the hexagon share.

This package does no work: it has value objects, protocols and errors, on the standard library
alone. Read the modules in this order: ``layout``, ``keys``, ``frame``, ``memory``, ``outcomes``,
``store``; then ``chunker``, ``policy``, ``serde``, ``device``, ``encoded``, ``transfer``,
``peers``, ``telemetry``, ``spans``, ``clock``, ``errors`` as needed. The side of an engine begins
with ``prefix_cache`` and ``results``; that of an operator with ``administration``.
"""

from hexkv.ports.admin_access import AdminAccess, ServedAdministration
from hexkv.ports.administration import Administration
from hexkv.ports.announcing import MAX_ANNOUNCED, Announcing, SupportsPushing
from hexkv.ports.blend_report import BLEND_KINDS, BlendOutcome, BlendReport
from hexkv.ports.blending import PromptParts, RetrievedParts, SegmentRun
from hexkv.ports.chunk import RAW, ChunkSpec, KeySpace
from hexkv.ports.chunk_cache import SHARED_OWNER, ChunkCache, ChunkLeases
from hexkv.ports.chunker import Bounds, Chunker
from hexkv.ports.clock import Clock, Deadline
from hexkv.ports.collective import MAX_HEAD, MAX_MESSAGE, Collective
from hexkv.ports.contract import CONTRACT, OLDEST
from hexkv.ports.device import DeviceKV, Finished, Span, SupportsBackground, Transfer
from hexkv.ports.directory import (
    REPORT_KEYS,
    SILENT_HEARTBEATS,
    Directory,
    Member,
    Report,
    SupportsReplicas,
)
from hexkv.ports.dtype import DType
from hexkv.ports.encoded import EncodedSpan, SupportsEncoded, SupportsEncodedLayers
from hexkv.ports.errors import (
    AdapterUnavailable,
    CollectiveBroken,
    ConfigError,
    CorruptFrame,
    EngineBusy,
    EngineClosed,
    HexKVError,
    InvalidRequest,
    InvalidTokens,
    LayoutMismatch,
    PoolExhausted,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from hexkv.ports.executor import Completion, Executor, Step
from hexkv.ports.files import SupportsFiles
from hexkv.ports.frame import (
    FRAME_VERSION,
    IDENTITY_BYTES,
    KEY_AT,
    MAGIC,
    PAGE,
    FrameHeader,
    frame_bytes,
    names_key,
)
from hexkv.ports.hand_over import FrameFile, PlacedFrame, SupportsHandOver
from hexkv.ports.hashes import HashFunction
from hexkv.ports.health import Health, TierHealth
from hexkv.ports.hold import Hold, Publishing
from hexkv.ports.keyed import KeyedAccess
from hexkv.ports.keys import (
    DIGEST_BYTES,
    KEY_BYTES,
    NAMESPACE_BYTES,
    ChunkKey,
    Namespace,
    ParallelSlice,
    namespace_of,
)
from hexkv.ports.layerwise import LayeredRead, LayeredWrite, LayerwiseCache
from hexkv.ports.layout import KVLayout, LayerGroup, Plane
from hexkv.ports.lifecycle import CacheLifecycle
from hexkv.ports.lives import SupportsLives, SupportsRenewal
from hexkv.ports.maintenance import (
    NamespaceState,
    Progress,
    Selection,
    TierState,
    Watch,
    Why,
    WorkReport,
)
from hexkv.ports.memory import Lease, MeteredLease, SupportsOwnMemory, SupportsZeroCopy
from hexkv.ports.observing import ContentFeed, NamedPrompt, Observed, Observer, PromptSink
from hexkv.ports.on_device import (
    DeviceRange,
    DeviceRoom,
    RoomSpan,
    SupportsDeviceRead,
    SupportsDeviceRoom,
)
from hexkv.ports.outcomes import (
    STORE_REASONS,
    Corrupt,
    Failed,
    Hit,
    Miss,
    Outcome,
    ReadOutcome,
    Stored,
    TimedOut,
    WriteOutcome,
)
from hexkv.ports.peers import (
    KIND_BYTES,
    Answer,
    PeerAccess,
    Peers,
    TransferOutcome,
)
from hexkv.ports.policy import Policy
from hexkv.ports.prefix_cache import PrefixCache
from hexkv.ports.reasons import Reason
from hexkv.ports.recording import (
    CallSink,
    RecordedCache,
    RecordedCall,
    RecordedKind,
    RecordedStep,
    SupportsRecording,
)
from hexkv.ports.region import (
    MemoryProvider,
    MemoryRegion,
    SupportsMapping,
    SupportsPrefault,
    SupportsRegistration,
)
from hexkv.ports.relocation import CLAIM_SECONDS, LISTED_KEYS, ClaimState, Relocation
from hexkv.ports.results import Cleared, Lookup, Retrieved, StoreReport
from hexkv.ports.runs import SupportsRuns, release_all, share_all
from hexkv.ports.segment_finder import Piece, SegmentFinder
from hexkv.ports.segments import LayeredSegments, SegmentAccess, SegmentCache
from hexkv.ports.serde import LayerSerde, Serde
from hexkv.ports.service import ChunkService, ServiceHold, SupportsListing
from hexkv.ports.sink import PIECE, Destination, LeaseSink, Sink
from hexkv.ports.spans import EndedCall, SpanSink, traced, traceparent
from hexkv.ports.steps import SupportsSteps, TraceStep
from hexkv.ports.store import (
    ChunkStore,
    Entry,
    Item,
    ReadOnlyStore,
    SharedMedium,
    SupportsClear,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
)
from hexkv.ports.suspension import SupportsSuspension
from hexkv.ports.telemetry import (
    CacheEvent,
    Change,
    CounterName,
    EventSink,
    HistogramName,
    Telemetry,
)
from hexkv.ports.tokens import Tokens
from hexkv.ports.transfer import (
    MAX_QUESTION,
    Offer,
    Part,
    Peer,
    PeerSource,
    TransferChannel,
)

__all__ = [
    "BLEND_KINDS",
    "CLAIM_SECONDS",
    "CONTRACT",
    "DIGEST_BYTES",
    "FRAME_VERSION",
    "IDENTITY_BYTES",
    "KEY_AT",
    "KEY_BYTES",
    "KIND_BYTES",
    "LISTED_KEYS",
    "MAGIC",
    "MAX_ANNOUNCED",
    "MAX_HEAD",
    "MAX_MESSAGE",
    "MAX_QUESTION",
    "NAMESPACE_BYTES",
    "OLDEST",
    "PAGE",
    "PIECE",
    "RAW",
    "REPORT_KEYS",
    "SHARED_OWNER",
    "SILENT_HEARTBEATS",
    "STORE_REASONS",
    "AdapterUnavailable",
    "AdminAccess",
    "Administration",
    "Announcing",
    "Answer",
    "BlendOutcome",
    "BlendReport",
    "Bounds",
    "CacheEvent",
    "CacheLifecycle",
    "CallSink",
    "Change",
    "ChunkCache",
    "ChunkKey",
    "ChunkLeases",
    "ChunkService",
    "ChunkSpec",
    "ChunkStore",
    "Chunker",
    "ClaimState",
    "Cleared",
    "Clock",
    "Collective",
    "CollectiveBroken",
    "Completion",
    "ConfigError",
    "ContentFeed",
    "Corrupt",
    "CorruptFrame",
    "CounterName",
    "DType",
    "Deadline",
    "Destination",
    "DeviceKV",
    "DeviceRange",
    "DeviceRoom",
    "Directory",
    "EncodedSpan",
    "EndedCall",
    "EngineBusy",
    "EngineClosed",
    "Entry",
    "EventSink",
    "Executor",
    "Failed",
    "Finished",
    "FrameFile",
    "FrameHeader",
    "HashFunction",
    "Health",
    "HexKVError",
    "HistogramName",
    "Hit",
    "Hold",
    "InvalidRequest",
    "InvalidTokens",
    "Item",
    "KVLayout",
    "KeySpace",
    "KeyedAccess",
    "LayerGroup",
    "LayerSerde",
    "LayeredRead",
    "LayeredSegments",
    "LayeredWrite",
    "LayerwiseCache",
    "LayoutMismatch",
    "Lease",
    "LeaseSink",
    "Lookup",
    "Member",
    "MemoryProvider",
    "MemoryRegion",
    "MeteredLease",
    "Miss",
    "NamedPrompt",
    "Namespace",
    "NamespaceState",
    "Observed",
    "Observer",
    "Offer",
    "Outcome",
    "ParallelSlice",
    "Part",
    "Peer",
    "PeerAccess",
    "PeerSource",
    "Peers",
    "Piece",
    "PlacedFrame",
    "Plane",
    "Policy",
    "PoolExhausted",
    "PrefixCache",
    "Progress",
    "PromptParts",
    "PromptSink",
    "Publishing",
    "ReadOnlyStore",
    "ReadOutcome",
    "Reason",
    "RecordedCache",
    "RecordedCall",
    "RecordedKind",
    "RecordedStep",
    "Relocation",
    "Report",
    "Retrieved",
    "RetrievedParts",
    "RoomSpan",
    "SegmentAccess",
    "SegmentCache",
    "SegmentFinder",
    "SegmentRun",
    "Selection",
    "Serde",
    "ServedAdministration",
    "ServiceHold",
    "SharedMedium",
    "Sink",
    "Span",
    "SpanSink",
    "Step",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreReport",
    "StoreUnreachable",
    "Stored",
    "SupportsBackground",
    "SupportsClear",
    "SupportsDeviceRead",
    "SupportsDeviceRoom",
    "SupportsEncoded",
    "SupportsEncodedLayers",
    "SupportsFiles",
    "SupportsHandOver",
    "SupportsListing",
    "SupportsLives",
    "SupportsMapping",
    "SupportsOwnMemory",
    "SupportsPrefault",
    "SupportsPushing",
    "SupportsQuarantine",
    "SupportsRangeRead",
    "SupportsRecording",
    "SupportsRegistration",
    "SupportsRenewal",
    "SupportsReplicas",
    "SupportsRuns",
    "SupportsScan",
    "SupportsSteps",
    "SupportsSuspension",
    "SupportsZeroCopy",
    "Telemetry",
    "TierHealth",
    "TierState",
    "TimedOut",
    "Tokens",
    "TraceStep",
    "Transfer",
    "TransferChannel",
    "TransferOutcome",
    "Watch",
    "Why",
    "WorkReport",
    "WriteOutcome",
    "frame_bytes",
    "names_key",
    "namespace_of",
    "release_all",
    "share_all",
    "traced",
    "traceparent",
]
