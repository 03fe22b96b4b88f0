"""A client's side of a connection to a peer whose memory it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from hexkv.adapters.net.errors import BadMessage, ConnectionBroken
from hexkv.adapters.net.messages import HEAD_BYTES, verify
from hexkv.adapters.net.peers.direct import FarMemory, Move, OwnMemory
from hexkv.adapters.net.peers.line import OWNER, Line, Terms
from hexkv.adapters.net.peers.wire import (
    ABSENT,
    ELSEWHERE,
    FRAMING,
    PARTS,
    REFS,
    Kind,
)
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    Corrupt,
    Deadline,
    Hit,
    LeaseSink,
    Miss,
    Offer,
    Part,
    ReadOutcome,
    Reason,
    names_key,
)

_ASKED = 256
"""Parts that are asked for at a time; the peer leases as many of the first ones as it likes."""


class DirectLine(Line):
    """Copies out of the peer's memory what the peer has leased for that."""

    def __init__(self, stream: Stream, terms: Terms, own: OwnMemory, far: FarMemory) -> None:
        super().__init__(stream, terms)
        self._own = own
        self._far = far

    def read(
        self,
        parts: Sequence[Part],
        first: int,
        sink: LeaseSink,
        outcomes: list[ReadOutcome | None],
        deadline: Deadline,
    ) -> None:
        if not (self._far.size and self._far.ready):
            super().read(parts, first, sink, outcomes, deadline)
            return
        elsewhere: list[int] = []
        copied: dict[int, ReadOutcome] = {}
        done = 0
        while done < len(parts):
            asked = parts[done : done + _ASKED]
            rows = b"".join(PARTS.pack(part.key, part.start, part.size or 0) for part in asked)
            self._ask(Kind.LEND, len(asked), rows, deadline)
            refs = self._refs(asked, deadline)
            # The peer answers, so it had leased until now what was copied before.
            self._settle(copied, outcomes)
            moves: list[Move] = []
            for index, (size, start) in enumerate(refs, start=first + done):
                if size == ABSENT:
                    outcomes[index] = Miss()
                elif start == ELSEWHERE:
                    elsewhere.append(index)
                elif (there := sink.room(index, size)) is None:
                    outcomes[index] = Miss(Reason.REFUSED)
                elif not self._far.takes(there.into):
                    elsewhere.append(index)
                else:
                    moves.append(Move(index, there.lease, there.into, start))
            copied = self._copy(moves, parts, first, sink, deadline)
            done += len(refs)
        self._give_back(deadline)
        self._settle(copied, outcomes)
        for index in elsewhere:
            super().read([parts[index - first]], index, sink, outcomes, deadline)

    def _refs(self, asked: Sequence[Part], deadline: Deadline) -> list[tuple[int, int]]:
        """Sizes and places of the first parts, one at least."""
        found = FRAMING.head(self.stream.take(HEAD_BYTES, deadline))
        count = found.entries
        if found.kind != Kind.LEND or not 0 < count <= len(asked):
            raise BadMessage("an answer to another question")
        if found.length != count * REFS.size:
            raise BadMessage("not one place for each part")
        body = self.stream.take(found.length, deadline)
        verify(found, body)
        refs = []
        for part, (key, size, start) in zip(asked, REFS.iter_unpack(body), strict=False):
            if key != part.key:
                raise BadMessage(f"an answer about {key.hex()} instead of {part.key.hex()}")
            if size != ABSENT:
                self._check(part, size)
                if start != ELSEWHERE and start + size > self._far.size:
                    raise BadMessage("a chunk beyond the peer's memory")
            refs.append((size, start))
        return refs

    def _copy(
        self,
        moves: Sequence[Move],
        parts: Sequence[Part],
        first: int,
        sink: LeaseSink,
        deadline: Deadline,
    ) -> dict[int, ReadOutcome]:
        """The outcomes of copying *moves*, if the peer had leased them all the time."""
        copied: dict[int, ReadOutcome] = {}
        with ExitStack() as leased:
            moves = [
                move._replace(lease=leased.enter_context(move.lease.share(OWNER))) for move in moves
            ]
            if moves:
                self._far.pull(moves, sink.filled, deadline)
            for move in moves:
                part = parts[move.place - first]
                right = part.size is not None or names_key(move.into, part.key)
                copied[move.place] = (
                    Hit(len(move.into)) if right else Corrupt("the frame is of another chunk")
                )
        return copied

    def _settle(self, copied: dict[int, ReadOutcome], outcomes: list[ReadOutcome | None]) -> None:
        for index, outcome in copied.items():
            outcomes[index] = outcome

    def _give_back(self, deadline: Deadline) -> None:
        """Give back what is leased here, and see that it was leased until now.

        Raises:
            OutOfTime, StoreUnreachable: nobody knows.
        """
        if not self._own.instant:
            self._ask(Kind.RETURN, 1, b"", deadline)
            self._answer(Kind.RETURN, 1, 0, deadline)
            return
        if not self.stream.quiet:
            raise ConnectionBroken("the peer has ended the connection")
        self._ask(Kind.RETURN, 0, b"", deadline)

    def _push(self, offers: Sequence[Offer], deadline: Deadline) -> None:
        starts = [self._own.find(offer.lease.frame) for offer in offers]
        rows = b"".join(
            REFS.pack(offer.key, len(offer.lease.frame), ELSEWHERE if start is None else start)
            for offer, start in zip(offers, starts, strict=True)
        )
        frames = [it.lease.frame for it, start in zip(offers, starts, strict=True) if start is None]
        with self._own.lending():
            self.stream.send([FRAMING.message(Kind.PUSH, len(offers), rows), *frames], deadline)
            if not self._own.instant:
                self._answer(Kind.PULLED, len(offers), 0, deadline)
                self.stream.send([FRAMING.message(Kind.HELD, len(offers), b"")], deadline)
