"""A sink of frames in blocks of the pool, and the spec of a chunk by its frame."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.read.encoding import scratch
from hexkv.core.tiers.runtime import RAW
from hexkv.ports import (
    PAGE,
    ChunkSpec,
    FrameHeader,
    InvalidRequest,
    KVLayout,
    PoolExhausted,
    Reason,
    release_all,
)


class BlockSink:
    """Gives a store memory for frames, without waiting for any.

    A frame as long as a raw chunk goes straight into the block that was leased for the chunk. A
    shorter one is encoded: it goes into scratch memory, and the block is for the output of the
    serde; or, where frames may stay encoded, into a block of its own, if there is one. A frame of
    unknown size goes into a block of its own, or is refused.
    """

    def __init__(
        self,
        blocks: Sequence[BlockLease | None],
        lease: Callable[[int], BlockLease] | None = None,
    ) -> None:
        """Take frames into *blocks*, of raw chunks; ``None`` for a frame of unknown size.

        *lease* returns a block of its own for a frame, by the bytes of the payload.
        """
        self.own: dict[int, BlockLease] = {}
        """Blocks of frames that may stay as they are."""

        self.short: dict[int, int] = {}
        """Payload bytes of the frames that were refused because no block was free."""

        self.wrong: set[int] = set()
        self.frames: list[memoryview | None] = [None] * len(blocks)
        self._blocks = blocks
        self._lease = lease

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`. Sizes that no valid frame has are refused."""
        block = self._blocks[index]
        self.wrong.discard(index)
        if block is not None and size == len(block.frame):
            self.frames[index] = block.frame
        elif size % PAGE or size < PAGE or (block is not None and size > len(block.frame)):
            self.wrong.add(index)
            return None
        else:
            frame = self._apart(index, size)
            self.frames[index] = scratch(size) if frame is None and block is not None else frame
        return self.frames[index]

    def _apart(self, index: int, size: int) -> memoryview | None:
        """Return the memory of a block for this frame alone; ``None`` if there is none."""
        if self._lease is None or size == PAGE:
            return None
        if former := self.own.pop(index, None):
            former.release()
        self.short.pop(index, None)
        try:
            self.own[index] = block = self._lease(size - PAGE)
        except PoolExhausted:
            if self._blocks[index] is None:
                self.short[index] = size - PAGE
            return None
        except InvalidRequest:  # larger than any block, so it is no valid frame
            return None
        return block.frame

    def release(self) -> None:
        """Release the blocks of frames that were not taken."""
        release_all(list(self.own.values()))
        self.own.clear()


def label(lease: BlockLease | None, header: FrameHeader) -> Reason | None:
    """Label the block of a verified frame with its spec. Return the reason if it is unusable."""
    if lease is None:
        return Reason.REFUSED
    spec = spec_of(header)
    if spec is None:
        return Reason.CORRUPT
    lease.shrink(header.payload_bytes)
    lease.spec = spec
    return None


def spec_of(header: FrameHeader) -> ChunkSpec | None:
    """Return the chunk of a frame; None if its sizes are not those of the layout it names."""
    try:
        layout = KVLayout.parse(json.loads(header.identity)["layout"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    spec = ChunkSpec(
        header.key, header.identity, layout, header.tokens, header.serde, header.position
    )
    raw = header.serde != RAW or header.payload_bytes == header.raw_bytes
    return spec if raw and 0 < spec.raw_bytes == header.raw_bytes else None
