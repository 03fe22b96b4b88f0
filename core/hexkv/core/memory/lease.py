"""A lease: a hold on one block of the pool, and what the block holds."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from hexkv.core.memory.slots import Block
from hexkv.ports import PAGE, ChunkSpec, InvalidRequest, Lease, frame_bytes

if TYPE_CHECKING:
    from hexkv.core.memory.pool import BlockPool


class BlockLease:
    """A hold on a block; see :class:`hexkv.ports.Lease`.

    Its views and what it holds are plain attributes, read many times for each chunk. They are
    gone once it is released: whoever asks for one then is told so.
    """

    __slots__ = ("_block", "_pool", "frame", "offset", "owner", "payload", "size", "spec", "token")

    frame: memoryview
    payload: memoryview

    def __init__(
        self,
        pool: BlockPool,
        block: Block,
        owner: str,
        token: int,
        both: tuple[memoryview, memoryview],
        spec: ChunkSpec | None,
    ) -> None:
        self._pool = pool
        self.owner = owner
        self.token = token
        """Under which the pool's ledger lists it."""

        self.frame, self.payload = both
        self.offset = block.offset
        """Where in the pool the block begins."""

        self.size = block.size
        """Bytes of the pool that the block takes, which may be more than its frame has."""

        self.spec = spec
        """What the block holds; ``None`` while it is being filled. Shares begin with it."""

        self._block: Block | None = block

    @property
    def shared(self) -> bool:
        """True if another lease holds the block, too."""
        return self._held().holds > 1

    def shrink(self, payload_bytes: int) -> None:
        """Say how long the payload really is, once a frame's header has told.

        Raises:
            InvalidRequest: the block is shorter than that.
        """
        block = self._held()
        if frame_bytes(payload_bytes) > block.size:
            raise InvalidRequest(f"a payload of {payload_bytes} bytes does not fit its block")
        self.frame, self.payload = views(self._pool.memory, block.offset, payload_bytes)

    def share(self, owner: str) -> BlockLease:
        return self._pool.hold(self, self._held(), owner)

    def release(self) -> None:
        if self._block is not None:
            self._pool.release(self.owner, self.token)
            self._block = None
            del self.frame, self.payload, self.size, self.spec, self.offset

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

    def __getattr__(self, name: str) -> NoReturn:
        if name in BlockLease.__slots__ and name != "_block":
            raise InvalidRequest("the lease was released")
        raise AttributeError(name)

    def _held(self) -> Block:
        if self._block is None:
            raise InvalidRequest("the lease was released")
        return self._block


def views(memory: memoryview, offset: int, payload_bytes: int) -> tuple[memoryview, memoryview]:
    """The frame at *offset*, and the payload in it."""
    end = offset + frame_bytes(payload_bytes)
    return memory[offset:end], memory[offset + PAGE : offset + PAGE + payload_bytes]


def _is_a_lease(lease: BlockLease) -> Lease:
    return lease  # mypy checks here that BlockLease keeps the port's promises
