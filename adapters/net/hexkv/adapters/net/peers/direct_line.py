"""A client's side of a connection to a peer whose memory it can read."""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.adapters.net.errors import BadMessage, ConnectionBroken
from hexkv.adapters.net.messages import HEAD_BYTES, verify
from hexkv.adapters.net.peers.direct import FarMemory, Move, OwnMemory
from hexkv.adapters.net.peers.line import OWNER, Line, Terms
from hexkv.adapters.net.peers.wire import (
    ABSENT,
    AHEAD,
    ELSEWHERE,
    FRAMING,
    PARTS,
    REFS,
    Kind,
    Status,
)
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    Corrupt,
    Deadline,
    Destination,
    Hit,
    Lease,
    LeaseSink,
    Miss,
    Offer,
    Part,
    ReadOutcome,
    Reason,
    names_key,
    release_all,
    share_all,
)

_ASKED = 256
"""Parts requested at a time; the peer leases as many of the first ones as it likes."""


class _Pulling:
    """Copies the parts of a call into memory that *sink* gives, as far as *far* can.

    A copy becomes an outcome only once it is certain that the peer leased the bytes until then.
    """

    def __init__(
        self,
        far: FarMemory,
        sink: LeaseSink,
        outcomes: list[ReadOutcome | None],
        deadline: Deadline,
    ) -> None:
        self._far = far
        self._sink = sink
        self._outcomes = outcomes
        self._deadline = deadline
        self._copied: dict[int, ReadOutcome] = {}
        self.elsewhere: list[int] = []
        """Parts that cannot be copied, and have to be sent."""

    def take(self, first: int, parts: Sequence[Part], refs: Sequence[tuple[int, int]]) -> None:
        """Copy the first of *parts*, from index *first* of a batch, from the places in *refs*."""
        found: list[tuple[int, Part, Destination, int]] = []
        for index, (part, (size, start)) in enumerate(zip(parts, refs, strict=False), first):
            if size == ABSENT:
                self._outcomes[index] = Miss()
            elif start == ELSEWHERE:
                self.elsewhere.append(index)
            elif (there := self._sink.room(index, size)) is None:
                self._outcomes[index] = Miss(Reason.REFUSED)
            elif not self._far.takes(there.into):
                self.elsewhere.append(index)
            else:
                found.append((index, part, there, start))
        if not found:
            return
        shares: list[Lease] = []
        try:
            for share in share_all([there.lease for _, _, there, _ in found], OWNER):
                shares.append(share)  # noqa: PERF402 - an error leaves the others
            moves = [
                Move(index, share, there.into, start)
                for (index, _, there, start), share in zip(found, shares, strict=True)
            ]
            self._far.pull(moves, self._sink.filled, self._deadline)
            for index, part, there, _ in found:
                right = part.size is not None or names_key(there.into, part.key)
                self._copied[index] = (
                    Hit(len(there.into)) if right else Corrupt("the frame is of another chunk")
                )
        finally:
            release_all(shares)

    def settle(self) -> None:
        """Accept the copies as outcomes."""
        for index, outcome in self._copied.items():
            self._outcomes[index] = outcome
        self._copied.clear()


class DirectLine(Line):
    """Copies the bytes that the peer has leased out of the peer's memory."""

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
        pulling = _Pulling(self._far, sink, outcomes, deadline)
        done = 0
        while done < len(parts):
            asked = parts[done : done + _ASKED]
            rows = b"".join([PARTS.pack(part.key, part.start, part.size or 0) for part in asked])
            self._ask(Kind.LEND, len(asked), rows, deadline)
            answered, more = 0, True
            while more:
                refs, more = self._refs(asked[answered:], deadline)
                while more and self.stream.ahead:  # makes fewer and larger copies
                    further, more = self._refs(asked[answered + len(refs) :], deadline)
                    refs += further
                if not answered:
                    # The peer answers, so it had leased the earlier copies until now.
                    pulling.settle()
                pulling.take(first + done + answered, asked[answered:], refs)
                answered += len(refs)
            if not answered:
                raise BadMessage("no place for any part")
            done += answered
        self._give_back(deadline)
        pulling.settle()
        for index in pulling.elsewhere:
            super().read([parts[index - first]], index, sink, outcomes, deadline)

    def _refs(
        self, asked: Sequence[Part], deadline: Deadline
    ) -> tuple[list[tuple[int, int]], bool]:
        """Return sizes and places of the first parts, and True if further ones follow."""
        found = FRAMING.head(self.stream.take(HEAD_BYTES, deadline, ahead=AHEAD))
        count, more = found.entries, found.status == Status.MORE
        # An answer with MORE has at least one part, and leaves at least one.
        if found.kind != Kind.LEND or not more <= count <= len(asked) - more:
            raise BadMessage("an answer to another question")
        if found.length != count * REFS.size:
            raise BadMessage("not one place for each part")
        body = self.stream.take(found.length, deadline)
        verify(found, body)
        refs = []
        end = self._far.size
        for part, (key, size, start) in zip(asked, REFS.iter_unpack(body), strict=False):
            if key != part.key:
                raise BadMessage(f"an answer about {key.hex()} instead of {part.key.hex()}")
            if size != ABSENT:
                self._check(part, size)
                if start != ELSEWHERE and start + size > end:
                    raise BadMessage("a chunk beyond the peer's memory")
            refs.append((size, start))
        return refs, more

    def _give_back(self, deadline: Deadline) -> None:
        """Give back the leases of this line, and check that they lasted until now.

        Raises:
            OutOfTime, StoreUnreachable: that is unknown.
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
