"""A source for tests of channels: the frames that a process serves, in a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.contracts.channel.blocks import Blocks, frame_of
from hexkv.contracts.doubles import chunk_key
from hexkv.ports import ChunkKey, Deadline, Lease, Offer, PeerSource, Reason


class HeldFrames:
    """Frames by key, in *blocks*. Safe from any thread.

    The owner of its own leases is ``source``, of those that it lends ``lent``, and of those for
    incoming frames ``room``.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._lock = Lock()
        self._held: dict[ChunkKey, Lease] = {}
        self.asked: list[str] = []
        """The name of the peer, for each call."""

    def put(self, name: str, size: int | None = None, *, frame: bytes | None = None) -> ChunkKey:
        """Hold *frame* under the key of the chunk *name*; by default the right frame."""
        key = chunk_key(name)
        data = frame_of(name, size or self._blocks.size) if frame is None else frame
        lease = self._blocks.lease("source", len(data))
        assert lease is not None, "the test has too few blocks"
        lease.frame[:] = data
        self._hold(key, lease)
        return key

    def frame(self, key: ChunkKey) -> bytes | None:
        """The frame that is held under *key*; ``None`` if there is none."""
        with self._lock:
            lease = self._held.get(key)
            return None if lease is None else bytes(lease.frame)

    def clear(self) -> None:
        """Release all frames."""
        with self._lock:
            leases, self._held = list(self._held.values()), {}
        for lease in leases:
            lease.release()

    def lend(
        self, keys: Sequence[ChunkKey], who: str, deadline: Deadline
    ) -> Sequence[Lease | None]:
        del deadline
        self.asked.append(who)
        with self._lock:
            found = [self._held.get(key) for key in keys]
            return [None if lease is None else lease.share("lent") for lease in found]

    def room(
        self, wanted: Sequence[tuple[ChunkKey, int]], who: str, deadline: Deadline
    ) -> Sequence[Lease | Reason]:
        del deadline
        self.asked.append(who)
        given: list[Lease | Reason] = []
        for key, size in wanted:
            if key in self._held:
                given.append(Reason.PRESENT)
                continue
            given.append(self._blocks.lease("room", size) or Reason.NO_ROOM)
        return given

    def keep(self, arrived: Sequence[Offer], who: str, deadline: Deadline) -> Sequence[bool]:
        del who, deadline
        # Keep it unchecked: the channel must refuse frames that may not be kept.
        for offer in arrived:
            self._hold(offer.key, offer.lease.share("source"))
        return [True] * len(arrived)

    def answer(self, question: bytes, who: str, deadline: Deadline) -> bytes:
        del deadline
        self.asked.append(who)
        return question[::-1]

    def _hold(self, key: ChunkKey, lease: Lease) -> None:
        with self._lock:
            old = self._held.pop(key, None)
            self._held[key] = lease
        if old is not None:
            old.release()


def _is_a_source(source: HeldFrames) -> PeerSource:
    return source  # a type checker checks here that it has the port's methods
