"""Leases of a node's blocks in this process, and the ledger of their owners.

Shares are counted here: the node knows one lease for each block of a request, and gets it back with
the last share. Giving back twice is allowed, so an asynchronous exception between two lines loses
nothing: the next call repeats it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Self

from hexkv.adapters.node.client.link import NodeLink
from hexkv.ports import PAGE, ChunkSpec, InvalidRequest, Lease, frame_bytes


class Block:
    """A block that a request leased, and its shares."""

    __slots__ = ("link", "offset", "place", "request", "shares", "size")

    def __init__(self, link: NodeLink, request: int, place: int, offset: int, size: int) -> None:
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
        self, ledger: LeaseLedger, block: Block, owner: str, token: int, spec: ChunkSpec | None
    ) -> None:
        start = block.offset
        # A payload that is encoded ends with its block.
        most = block.size - PAGE
        size = block.size if spec is None else frame_bytes(min(spec.raw_bytes, most))
        self._ledger = ledger
        self.block = block
        self.owner = owner
        self.token = token
        self.spec = spec
        # Last, because it marks that there is something to release. Writable, as in one process:
        # torch copies read-only memory before it reads it.
        self._frame: memoryview | None = block.link.memory[start : start + size]

    @property
    def frame(self) -> memoryview:
        return self._held()

    @property
    def payload(self) -> memoryview:
        frame, spec = self._held(), self.spec
        end = self.block.size
        return frame[PAGE : end if spec is None else min(end, PAGE + spec.raw_bytes)]

    @property
    def size(self) -> int:
        return max(self.block.size, len(self._held()))

    def share(self, owner: str) -> NodeLease:
        # Of the frame itself: the link may have dropped the mapping, which this lease keeps.
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

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_frame", None) is not None:
            self._ledger.lose(self.owner, self.token, self.block)

    def _held(self) -> memoryview:
        if self._frame is None:
            raise InvalidRequest("the lease was released")
        return self._frame


class LeaseLedger:
    """The blocks that the leases of each owner hold, over all lives of the node. For any thread."""

    def __init__(self) -> None:
        self.lost: deque[tuple[str, int, Block]] = deque()
        """Leases that were dropped without a release. Finalizers append to it, so it takes no lock.
        """

        self._held: dict[str, dict[int, Block]] = {}
        self._asked: dict[str, dict[tuple[int, int], NodeLink]] = {}
        """Requests that lease and whose answers have not been read, by owner."""

        self._ended = False
        self._tokens = count(1)
        self._lock = RLock()

    def ask(self, owner: str, link: NodeLink, request: int) -> None:
        """Note a request that leases, before it is sent."""
        with self._lock:
            self._asked.setdefault(owner, {})[id(link), request] = link

    def answered(self, owner: str, link: NodeLink, request: int) -> None:
        """Drop the note of a request whose leases were taken, or given back."""
        with self._lock:
            asked = self._asked.get(owner)
            if asked is not None:
                asked.pop((id(link), request), None)
                if not asked:
                    del self._asked[owner]

    def grant(
        self, link: NodeLink, blocks: Sequence[Block], owner: str, specs: Sequence[ChunkSpec]
    ) -> list[NodeLease]:
        """Return leases of one request's blocks, one at least; none if the node took them back."""
        if not link.use(blocks[0].request, [block.place for block in blocks]):
            return []
        rows = zip(blocks, specs, self._tokens, strict=False)
        leases = [NodeLease(self, block, owner, token, spec) for block, spec, token in rows]
        self._enter(leases)
        return leases

    def share(self, lease: NodeLease, frame: memoryview, owner: str) -> NodeLease:
        """Return another lease of the same block.

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
        """End leases, each of an owner, a token and a block; skip those that have ended.

        The last share of a block gives it back to the node.
        """
        last: dict[tuple[NodeLink, int], list[Block]] = {}
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
        """Take back all that *owner* holds or has requested. Return the number of leases."""
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
        """Note that a lease was dropped. A finalizer calls this, at any point of other code."""
        self.lost.append((owner, token, block))
        if self._ended:
            self.mend()

    def mend(self) -> None:
        """Take back the leases that were dropped."""
        while self.lost:
            try:
                lost = self.lost.popleft()
            except IndexError:  # another thread was sooner
                return
            self.release([lost])

    def end(self) -> None:
        """Note that no call of :meth:`mend` follows: finalizers give leases back from now on."""
        self._ended = True
        self.mend()

    def count(self) -> Mapping[str, int]:
        """Return the number of leases that each owner holds."""
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
