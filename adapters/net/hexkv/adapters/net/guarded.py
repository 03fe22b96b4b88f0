"""A peer source with its answers checked, so that every chunk has an answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from hexkv.ports import (
    MAX_QUESTION,
    PAGE,
    ChunkKey,
    Deadline,
    Lease,
    Offer,
    PeerSource,
    Reason,
    names_key,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


class GuardedSource:
    """Calls *source* for one peer, and checks its answers.

    Args:
        source: the source that is served.
        who: the peer.
        largest: bytes of a frame at most.
    """

    def __init__(self, source: PeerSource, who: str, largest: int) -> None:
        self._source = source
        self._who = who
        self._largest = largest

    def lend(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[Lease | None]:
        """Return a lease on a frame that names its key, for each of *keys*; ``None`` for a miss.

        The caller releases them.
        """
        lent = self._ask(len(keys), lambda: self._source.lend(keys, self._who, deadline), None)
        for place, (key, lease) in enumerate(zip(keys, lent, strict=True)):
            if lease is None:
                continue
            frame = lease.frame
            if not (self.takes(len(frame)) and names_key(frame, key)):
                log.warning("a source lends %d bytes, no frame of %s", len(frame), key.hex())
                lease.release()
                lent[place] = None
        return lent

    def room(
        self, wanted: Sequence[tuple[ChunkKey, int]], deadline: Deadline
    ) -> list[Lease | Reason]:
        """Return memory for frames that a peer offers, or a reason. The caller releases it."""
        none: Lease | Reason = Reason.NO_ROOM
        given = self._ask(len(wanted), lambda: self._source.room(wanted, self._who, deadline), none)
        for place, ((_, size), lease) in enumerate(zip(wanted, given, strict=True)):
            if not isinstance(lease, Reason) and len(lease.frame) < size:
                log.warning("a source gives %d bytes for %d", len(lease.frame), size)
                lease.release()
                given[place] = Reason.NO_ROOM
        return given

    def keep(self, arrived: Sequence[Offer], deadline: Deadline) -> list[bool]:
        """Return True for each frame that is kept."""
        if not arrived:
            return []
        return self._ask(
            len(arrived), lambda: self._source.keep(arrived, self._who, deadline), False
        )

    def answer(self, question: bytes, deadline: Deadline) -> bytes | None:
        """Return the answer; ``None`` if there is none, or if it is too long."""
        (said,) = self._ask(1, lambda: [self._source.answer(question, self._who, deadline)], None)
        if said is not None and len(said) > MAX_QUESTION:
            log.warning("an answer of %d bytes is longer than it may be", len(said))
            return None
        return said

    def takes(self, size: int) -> bool:
        """True if a frame may have *size* bytes."""
        return PAGE <= size <= self._largest and not size % PAGE

    def _ask(self, count: int, call: Callable[[], Sequence[T]], other: T) -> list[T]:
        """Return the answers of *call* if there is one for each; otherwise *other* for all."""
        try:
            given = list(call())
        except Exception:  # foreign code; its error ends no connection
            log.exception("a source fails")
            return [other] * count
        if len(given) == count:
            return given
        log.warning("a source gives %d answers to %d questions", len(given), count)
        for lease in given:
            if hasattr(lease, "release"):
                lease.release()
        return [other] * count
