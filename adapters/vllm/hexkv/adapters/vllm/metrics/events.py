"""The content of the tiers in vLLM's terms, for routers that send requests to their KV.

The engine speaks of chunks by its own keys, a router knows vLLM's block hashes. The worker
that stores a chunk knows both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from hexkv.ports import CacheEvent, Change, ChunkKey

_CHUNKS = 1 << 16
"""Chunks whose hashes are remembered. The removal of others is not reported."""

_WAITING = 1 << 14
"""Events that may wait to be fetched; older ones are lost."""


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A chunk as vLLM sees it."""

    hashes: tuple[bytes, ...]
    """The hashes of its blocks."""

    parent: bytes | None
    """Hash of the block before."""

    tokens: tuple[int, ...]
    block: int
    """Tokens in a block."""

    lora: str


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A chunk that appeared on a tier, or left it."""

    stored: bool
    medium: str
    chunk: BlockInfo


class EventBuffer:
    """An event sink of the engine that keeps events for vLLM to fetch. Safe from any thread.

    Args:
        media: vLLM's name for the medium of each tier.
    """

    def __init__(self, media: Mapping[str, str]) -> None:
        self._media = media
        self._known: OrderedDict[ChunkKey, BlockInfo] = OrderedDict()
        self._waiting: deque[BlockEvent] = deque(maxlen=_WAITING)
        self._lock = Lock()

    def expect(self, keys: Sequence[ChunkKey], chunks: Sequence[BlockInfo]) -> None:
        """Note that these chunks are about to be stored."""
        with self._lock:
            for key, chunk in zip(keys, chunks, strict=True):
                self._known[key] = chunk
                self._known.move_to_end(key)
            while len(self._known) > _CHUNKS:
                self._known.popitem(last=False)

    def emit(self, event: CacheEvent) -> None:
        medium = self._media.get(event.tier, "STORAGE")
        with self._lock:
            for key in event.keys:
                chunk = self._known.get(key)
                if chunk is not None:
                    self._waiting.append(BlockEvent(event.change == Change.STORED, medium, chunk))

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call."""
        if not self._waiting:
            return []
        with self._lock:
            events = list(self._waiting)
            self._waiting.clear()
        return events
