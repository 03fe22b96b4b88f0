"""Leases of a node's blocks in this process, and the ledger that says who has which.

Shares are counted here: the node knows one lease for each block of a request, and is told when the
last share of it is gone. What says so may come twice, so an exception out of nowhere between two
lines costs nothing: whoever comes next says it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.adapters.node.link import Link
from hexkv.ports import PAGE, ChunkSpec, InvalidRequest, Lease, frame_bytes


class Block:
    """A block that a request leased, and the shares of it."""

    __slots__ = ("link", "offset", "place", "request", "shares", "size")

    def __init__(self, link: Link, request: int, place: int, offset: int, size: int) -> None:
        self.link = link
        self.request = request
        self.place = place
        self.offset = offset
        self.size = size
        self.shares: set[int] = set()


class NodeLease:
    """A share of a block; see :class:`hexkv.ports.Lease`."""

    __slots__ = ("_frame", "_ledger", "block", "owner", "spec", "token")

    def __init__(
        self, ledger: Ledger, block: Block, owner: str, token: int, spec: ChunkSpec | None
    ) -> None:
        start = block.offset
        size = block.size if spec is None else frame_bytes(spec.raw_bytes)
        self._ledger = ledger
        self.block = block
        self.owner = owner
        self.token = token
        self.spec = spec
        # Last, for it says that there is something to release. Writable, as in one process:
        # torch copies what is read-only before it reads it.
        self._frame: memoryview | None = block.link.memory[start : start + size]

    @property
    def frame(self) -> memoryview:
        return self._held()

    @property
    def payload(self) -> memoryview:
        frame, spec = self._held(), self.spec
        return frame[PAGE:] if spec is None else frame[PAGE : PAGE + spec.raw_bytes]

    @property
    def size(self) -> int:
        self._held()
        return self.block.size

    def share(self, owner: str) -> NodeLease:
        # Of the frame as it is: the link may have let go of the mapping, which this one keeps.
        frame = self._held()
        return self._ledger.share(self, frame, owner)

    def release(self) -> None:
        if self._frame is not None:
            self._ledger.release([(self.owner, self.token, self.block)])
            self._frame = None

    @staticmethod
    def share_run(leases: Sequence[NodeLease], owner: str) -> Iterable[NodeLease]:
        """See :class:`hexkv.ports.SupportsRuns`."""
        return [lease.share(owner) for lease in leases]

    @staticmethod
    def release_run(leases: Sequence[NodeLease]) -> None:
        """See :class:`hexkv.ports.SupportsRuns`."""
        held = [lease for lease in leases if lease._frame is not None]
        while held:
            ledger = held[0]._ledger
            mine = [lease for lease in held if lease._ledger is ledger]
            ledger.release([(lease.owner, lease.token, lease.block) for lease in mine])
            for lease in mine:
                lease._frame = None
            held = [lease for lease in held if lease._frame is not None]

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
        if getattr(self, "_frame", None) is not None:
            self._ledger.lose(self.owner, self.token, self.block)

    def _held(self) -> memoryview:
        if self._frame is None:
            raise InvalidRequest("the lease was released")
        return self._frame


class Ledger:
    """Which lease of which owner holds which block, over all lives of the node. For any thread."""

    def __init__(self) -> None:
        self.lost: deque[tuple[str, int, Block]] = deque()
        """Leases that nobody has any more. A finalizer may append to it, so it takes no lock."""

        self._held: dict[str, dict[int, Block]] = {}
        self._asked: dict[str, dict[tuple[int, int], Link]] = {}
        """Requests that lease and have not been taken apart, by owner."""

        self._ended = False
        self._tokens = count(1)
        self._lock = RLock()

    def ask(self, owner: str, link: Link, request: int) -> None:
        """A request that leases is about to be sent."""
        with self._lock:
            self._asked.setdefault(owner, {})[id(link), request] = link

    def answered(self, owner: str, link: Link, request: int) -> None:
        """What a request leased was taken, or given back."""
        with self._lock:
            asked = self._asked.get(owner)
            if asked is not None:
                asked.pop((id(link), request), None)
                if not asked:
                    del self._asked[owner]

    def grant(
        self, link: Link, blocks: Sequence[Block], owner: str, specs: Sequence[ChunkSpec]
    ) -> list[NodeLease]:
        """Leases of the blocks of one request; none if the node has taken them back since."""
        if not blocks or not link.use(blocks[0].request, [block.place for block in blocks]):
            return []
        rows = zip(blocks, specs, self._tokens, strict=False)
        leases = [NodeLease(self, block, owner, token, spec) for block, spec, token in rows]
        self._enter(leases)
        return leases

    def share(self, lease: NodeLease, frame: memoryview, owner: str) -> NodeLease:
        """Another lease of the same block.

        Raises:
            InvalidRequest: another thread has released *lease*: the node may lend the block again.
        """
        mine = NodeLease.__new__(NodeLease)
        mine._ledger = self
        mine.block, mine.spec = lease.block, lease.spec
        mine.owner, mine.token = owner, next(self._tokens)
        with self._lock:
            if lease.token not in lease.block.shares:
                raise InvalidRequest("the lease was released")
            mine._frame = frame
            self._enter([mine])
            return mine

    def release(self, ended: Sequence[tuple[str, int, Block]]) -> None:
        """End leases, each of an owner, a token and a block; nothing where it has ended.

        The node is told with the last share of each block.
        """
        last: dict[tuple[Link, int], list[Block]] = {}
        with self._lock:
            for _, token, block in ended:
                block.shares.discard(token)
                if not block.shares:
                    last.setdefault((block.link, block.request), []).append(block)
        for (link, request), blocks in last.items():
            size = sum([block.size for block in blocks])
            link.give_back(request, [block.place for block in blocks], size)
        with self._lock:
            for owner, token, _ in ended:
                held = self._held.get(owner)
                if held is not None:
                    held.pop(token, None)
                    if not held:
                        del self._held[owner]

    def sweep(self, owner: str) -> int:
        """Take back all that *owner* still holds or has asked for. How many leases."""
        self.mend()
        for (_, request), link in list(self._asked.get(owner, {}).items()):
            link.give_back(request)
            self.answered(owner, link, request)
        with self._lock:
            if not self._asked.get(owner):
                self._asked.pop(owner, None)
        left = list(self._held.get(owner, {}).items())
        self.release([(owner, token, block) for token, block in left])
        return len(left)

    def lose(self, owner: str, token: int, block: Block) -> None:
        """Nobody has a lease any more, as a finalizer says, in the middle of anything."""
        self.lost.append((owner, token, block))
        if self._ended:
            self.mend()

    def mend(self) -> None:
        """Take back what was lost."""
        while self.lost:
            try:
                lost = self.lost.popleft()
            except IndexError:  # another thread was sooner
                return
            self.release([lost])

    def end(self) -> None:
        """Nobody mends any more: what is lost from now on is given back by its finalizer."""
        self._ended = True
        self.mend()

    def count(self) -> Mapping[str, int]:
        """How many leases each owner holds."""
        self.mend()
        return {owner: len(held) for owner, held in list(self._held.items()) if held}

    def _enter(self, leases: Sequence[NodeLease]) -> None:
        with self._lock:
            for lease in leases:
                lease.block.shares.add(lease.token)
                self._held.setdefault(lease.owner, {})[lease.token] = lease.block


if TYPE_CHECKING:

    def _is_a_lease(lease: NodeLease) -> Lease:
        return lease
