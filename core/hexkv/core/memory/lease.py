"""A lease: a hold on one block of the pool, and what the block holds."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.core.memory.slots import Block
from hexkv.ports import PAGE, ChunkSpec, InvalidRequest, Lease, frame_bytes

if TYPE_CHECKING:
    from hexkv.core.memory.pool import BlockPool


class BlockLease:
    """A hold on a block; see :class:`hexkv.ports.Lease`."""

    __slots__ = ("_block", "_pool", "owner", "token")

    def __init__(self, pool: BlockPool, block: Block, owner: str, token: int) -> None:
        self._pool = pool
        self.owner = owner
        self.token = token
        """Under which the pool's ledger lists it."""

        self._block: Block | None = block

    @property
    def frame(self) -> memoryview:
        block = self._held()
        end = block.offset + frame_bytes(block.payload_bytes)
        return self._pool.memory[block.offset : end]

    @property
    def payload(self) -> memoryview:
        block = self._held()
        start = block.offset + PAGE
        return self._pool.memory[start : start + block.payload_bytes]

    @property
    def offset(self) -> int:
        """Where in the pool the block begins."""
        return self._held().offset

    @property
    def size(self) -> int:
        """Bytes of the pool that the block takes, which may be more than its frame has."""
        return self._held().size

    @property
    def shared(self) -> bool:
        """True if another lease holds the block, too."""
        return self._held().holds > 1

    @property
    def spec(self) -> ChunkSpec | None:
        """What the block holds; ``None`` while it is being filled."""
        return self._held().spec

    @spec.setter
    def spec(self, spec: ChunkSpec) -> None:
        self._held().spec = spec

    def shrink(self, payload_bytes: int) -> None:
        """Say how long the payload really is, once a frame's header has told.

        Raises:
            InvalidRequest: the block is shorter than that.
        """
        block = self._held()
        if frame_bytes(payload_bytes) > block.size:
            raise InvalidRequest(f"a payload of {payload_bytes} bytes does not fit its block")
        block.payload_bytes = payload_bytes

    def share(self, owner: str) -> BlockLease:
        return self._pool.hold(self, self._held(), owner)

    def release(self) -> None:
        if self._block is not None:
            self._pool.release(self.owner, self.token)
            self._block = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_block", None) is not None:
            self._pool.lost.append((self.owner, self.token))

    def _held(self) -> Block:
        if self._block is None:
            raise InvalidRequest("the lease was released")
        return self._block


def _is_a_lease(lease: BlockLease) -> Lease:
    return lease  # mypy checks here that BlockLease keeps the port's promises
