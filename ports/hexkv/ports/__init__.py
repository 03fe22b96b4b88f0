"""The vocabulary and the contracts the two sides of the hexagon agree on.

Nothing in here does work: value objects, protocols, errors, on the standard library alone. Read
the modules in this order: ``layout``, ``keys``, ``frame``, ``memory``, ``outcomes``, ``store``;
then ``chunker``, ``policy``, ``serde``, ``device``, ``transfer``, ``telemetry``, ``clock``,
``errors`` as needed. An engine's side begins with ``prefix_cache``, and with ``results``; an
operator's with ``administration``.
"""

from hexkv.ports.admin_access import AdminAccess, ServedAdministration
from hexkv.ports.administration import Administration
from hexkv.ports.chunk import RAW, ChunkSpec, KeySpace
from hexkv.ports.chunk_cache import ChunkCache, ChunkLeases
from hexkv.ports.chunker import Bounds, Chunker
from hexkv.ports.clock import Clock, Deadline
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
from hexkv.ports.errors import (
    AdapterUnavailable,
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
from hexkv.ports.hashes import HashFunction
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
from hexkv.ports.maintenance import (
    NamespaceState,
    Progress,
    Selection,
    TierState,
    Watch,
    Why,
    WorkReport,
)
from hexkv.ports.memory import Lease, SupportsOwnMemory, SupportsZeroCopy
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
from hexkv.ports.policy import Policy
from hexkv.ports.prefix_cache import PrefixCache
from hexkv.ports.reasons import Reason
from hexkv.ports.region import (
    MemoryProvider,
    MemoryRegion,
    SupportsPrefault,
    SupportsRegistration,
)
from hexkv.ports.results import Cleared, Health, Lookup, Retrieved, StoreReport, TierHealth
from hexkv.ports.runs import SupportsRuns, release_all, share_all
from hexkv.ports.serde import LayerSerde, Serde
from hexkv.ports.service import ChunkService, ServiceHold, SupportsListing
from hexkv.ports.sink import PIECE, Destination, LeaseSink, Sink
from hexkv.ports.store import (
    ChunkStore,
    Entry,
    Item,
    SharedMedium,
    SupportsClear,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
)
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
    "DIGEST_BYTES",
    "FRAME_VERSION",
    "IDENTITY_BYTES",
    "KEY_AT",
    "KEY_BYTES",
    "MAGIC",
    "MAX_QUESTION",
    "NAMESPACE_BYTES",
    "PAGE",
    "PIECE",
    "RAW",
    "REPORT_KEYS",
    "SILENT_HEARTBEATS",
    "STORE_REASONS",
    "AdapterUnavailable",
    "AdminAccess",
    "Administration",
    "Bounds",
    "CacheEvent",
    "CacheLifecycle",
    "Change",
    "ChunkCache",
    "ChunkKey",
    "ChunkLeases",
    "ChunkService",
    "ChunkSpec",
    "ChunkStore",
    "Chunker",
    "Cleared",
    "Clock",
    "Completion",
    "ConfigError",
    "Corrupt",
    "CorruptFrame",
    "CounterName",
    "DType",
    "Deadline",
    "Destination",
    "DeviceKV",
    "Directory",
    "EngineBusy",
    "EngineClosed",
    "Entry",
    "EventSink",
    "Executor",
    "Failed",
    "Finished",
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
    "LayeredWrite",
    "LayerwiseCache",
    "LayoutMismatch",
    "Lease",
    "LeaseSink",
    "Lookup",
    "Member",
    "MemoryProvider",
    "MemoryRegion",
    "Miss",
    "Namespace",
    "NamespaceState",
    "Offer",
    "Outcome",
    "ParallelSlice",
    "Part",
    "Peer",
    "PeerSource",
    "Plane",
    "Policy",
    "PoolExhausted",
    "PrefixCache",
    "Progress",
    "Publishing",
    "ReadOutcome",
    "Reason",
    "Report",
    "Retrieved",
    "Selection",
    "Serde",
    "ServedAdministration",
    "ServiceHold",
    "SharedMedium",
    "Sink",
    "Span",
    "Step",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreReport",
    "StoreUnreachable",
    "Stored",
    "SupportsBackground",
    "SupportsClear",
    "SupportsListing",
    "SupportsOwnMemory",
    "SupportsPrefault",
    "SupportsQuarantine",
    "SupportsRangeRead",
    "SupportsRegistration",
    "SupportsReplicas",
    "SupportsRuns",
    "SupportsScan",
    "SupportsZeroCopy",
    "Telemetry",
    "TierHealth",
    "TierState",
    "TimedOut",
    "Tokens",
    "Transfer",
    "TransferChannel",
    "Watch",
    "Why",
    "WorkReport",
    "WriteOutcome",
    "frame_bytes",
    "names_key",
    "namespace_of",
    "release_all",
    "share_all",
]
