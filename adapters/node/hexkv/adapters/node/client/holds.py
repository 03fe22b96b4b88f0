"""Holds and publishings of a client, which read the node's answers when they are queried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from struct import pack
from threading import Lock
from typing import TYPE_CHECKING

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.answer import Answer
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.client.leases import Block, LeaseLedger, NodeLease
from hexkv.adapters.node.client.link import NodeLink
from hexkv.adapters.node.groups import Brought, read_brought
from hexkv.adapters.node.wire import MAX_LAYERS, Reader, State, Verb, read_chunks
from hexkv.ports import (
    PAGE,
    ChunkSpec,
    Deadline,
    HoldTerms,
    Lease,
    Reason,
    ServiceHold,
    ServicePublishing,
    WholeChunks,
    frame_bytes,
    release_all,
)

_OF_HOSTS = HoldTerms()

GRACE = 0.025
"""Seconds after a deadline that the node's answer may take: the node keeps the deadline itself."""


def late(deadline: Deadline) -> Deadline:
    """Return the deadline for the node's answer, also if *deadline* has passed already."""
    clock = deadline.clock
    return Deadline(clock, max(deadline.at, clock.now()) + GRACE)


def taken(
    ledger: LeaseLedger,
    link: NodeLink,
    answer: Answer,
    specs: Sequence[ChunkSpec],
    owner: str,
    encoded: Collection[str] = (),
) -> tuple[list[NodeLease | None], list[Reason | None], list[str], bool]:
    """Return the leases, reasons and tiers of a node's last answer to a request.

    The last value is True if only the first group of layers is here. Chunks may be encoded by the
    serdes in *encoded*.

    Raises:
        BadMessage: the answer is impossible; none of it is used.
    """
    leases: list[NodeLease | None] = [None] * len(specs)
    reasons: list[Reason | None] = [_why(answer)] * len(specs)
    origins = [""] * len(specs)
    by_groups = False
    if answer.status is Status.DONE:
        chunks = read_chunks(answer.body, len(specs))
        by_groups = State.COMING in chunks.states
        most = len(link.memory)
        blocks: list[Block] = []
        here: list[ChunkSpec] = []
        for place, (state, offset, size, word, serde) in enumerate(zip(*chunks, strict=True)):
            if state == State.MISSING:
                reasons[place] = reason_of(word)
                continue
            spec = specs[place]
            frame = frame_bytes(spec.raw_bytes)
            if serde is not None:
                if serde not in encoded or not PAGE < size < frame:
                    raise BadMessage(f"a block of {size} bytes that is encoded by {serde}")
                spec, frame = spec._replace(serde=serde), size
            if frame > size or offset + size > most or offset % PAGE:
                raise BadMessage(f"a block of {size} bytes at {offset}")
            blocks.append(Block(link, answer.request, place, offset, size))
            here.append(spec)
        for lease in ledger.grant(link, blocks, owner, here) if blocks else ():
            place = lease.block.place
            leases[place], reasons[place], origins[place] = lease, None, chunks.words[place]
    if leases.count(None) == len(leases):
        link.use_none(answer.request)
    ledger.answered(owner, link, answer.request)
    return leases, reasons, origins, by_groups


def reason_of(word: str) -> Reason:
    """Return the reason that a node names; ``FAILED`` for one that is unknown here."""
    try:
        return Reason(word)
    except ValueError:
        return Reason.FAILED


def _why(answer: Answer) -> Reason:
    refused = {Status.BUSY: Reason.QUEUE_FULL, Status.DONE: Reason.REFUSED}
    return refused.get(answer.status, Reason.FAILED)


class NodeHold(WholeChunks):
    """See :class:`hexkv.ports.Hold`. Without a link, no chunk comes."""

    def __init__(
        self,
        ledger: LeaseLedger,
        link: NodeLink | None,
        answers: tuple[Answer | None, Answer | None],
        specs: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        terms: HoldTerms = _OF_HOSTS,
    ) -> None:
        """Hold *specs* by *terms*, by the *answers* of the node: the second is about groups."""
        self._ledger = ledger
        self._link = link
        self._answer, self._about = answers
        self._specs = specs
        self._owner = owner
        self._own = deadline
        self._deadline = late(deadline)
        self._leases: list[NodeLease | None] = [None] * len(specs)
        self._reasons: list[Reason | None] = [None] * len(specs)
        self._origins = [""] * len(specs)
        self._encoded = frozenset(terms.encoded)
        self._groups = len(terms.layered)
        self._brought = Brought(1, len(specs), "")
        """The groups that are here, and the chunks that have them."""

        self._by_groups = False
        """True if groups behind the first one came, or come, later."""

        self._awaited: Callable[[], None] | None = None
        """What to call once the next group is here."""

        self._limited = terms.seconds is not None
        """True if the node may take the leases back."""

        self._released = False
        self._ended = False
        self._owes = True
        """True until the leases of the request are taken or given back, also after an exception."""

        self._settling = Lock()
        """Held while the leases are taken or given back, which only one thread may do."""

        if link is None or self._answer is None:
            self._lose(Reason.TIER_OFF)

    @property
    def done(self) -> bool:
        behind = self._groups if self._by_groups else 0
        return self.wait(Deadline(self._deadline.clock, 0.0)) and self._brought.groups >= behind

    @property
    def begun(self) -> int:
        reasons = self._reasons
        return next((i for i, why in enumerate(reasons) if why is not None), len(reasons))

    @property
    def bytes(self) -> int:
        return sum([frame_bytes(spec.raw_bytes) for spec in self._specs])

    def wait(self, deadline: Deadline, first: int | None = None) -> bool:
        del first  # the node answers for all chunks
        link, answer = self._link, self._answer
        if self._ended or link is None or answer is None:
            return True
        final = deadline.at >= self._own.at
        there = link.wait(answer, self._deadline if final else deadline)
        over = not link.alive  # before a second look at the answer: it came before that
        if there or answer.final:
            self._take(link, answer)
        elif over:
            self._lose(Reason.TIER_OFF)
        elif self._deadline.expired:
            self._lose(Reason.TIMED_OUT)
        return self._ended

    def known(self, deadline: Deadline) -> bool:
        link, answer = self._link, self._answer
        if self._ended or link is None or answer is None:
            return True
        if not link.wait(answer, deadline, begun=True):
            return self.wait(Deadline(deadline.clock, 0.0))
        if answer.final:
            return self.wait(deadline)
        try:
            chunks = read_chunks(answer.body, len(self._specs))
        except BadMessage:
            link.abandon()
            return self.wait(deadline)
        for place, (state, word) in enumerate(zip(chunks.states, chunks.words, strict=True)):
            if state == State.MISSING:
                self._reasons[place] = reason_of(word)
        return True

    def bring(self, group: int, deadline: Deadline) -> int:
        if not group:
            self.wait(deadline)
        if not self._ended:
            return 0
        awaited, self._awaited = self._awaited, None
        here = self._leases.index(None) if None in self._leases else len(self._leases)
        if self._by_groups:
            here = min(here, self._reach(group, deadline))
        if behind := [lease for lease in self._leases[here:] if lease is not None]:
            release_all(behind)
        self._leases[here:] = [None] * (len(self._leases) - here)
        if awaited is not None:
            awaited()
        return here

    def once(self, group: int, then: Callable[[], None]) -> None:
        link = self._link
        # A look after its time would count against the node, whose last part may be on its way.
        looks = self._by_groups and not self._own.expired
        if looks and link is not None and self._brought.groups <= group:
            self._hear(link, Deadline(link.clock, 0.0))
        if self._ended and (not self._by_groups or self._brought.groups > group):
            then()
        else:
            self._awaited = then

    def _reach(self, group: int, deadline: Deadline) -> int:
        """Wait for a group of layers. Return how many of the first chunks have all up to it."""
        link, until = self._link, late(deadline)
        while self._brought.groups <= group:
            if link is None or not self._hear(link, until):
                lost = Reason.TIMED_OUT if link is not None and link.alive else Reason.TIER_OFF
                self._brought = Brought(group + 1, 0, lost)
        _, chunks, why = self._brought
        if why and chunks < len(self._reasons):
            self._reasons[chunks] = reason_of(why)
        return chunks

    def _hear(self, link: NodeLink, deadline: Deadline) -> bool:
        """Read the next part of the answer about groups. False if none comes."""
        about = self._about
        if about is None or not link.wait(about, deadline, begun=True):
            return False
        about.told = False  # before it is read: a part that comes now is read the next time
        over = about.final
        try:
            if about.status not in (Status.DONE, Status.BEGUN):
                self._brought = Brought(MAX_LAYERS, 0, _why(about))
            else:
                self._brought = read_brought(about.body)
        except BadMessage:
            link.abandon()
            self._brought = Brought(MAX_LAYERS, 0, Reason.FAILED)
        if over and self._brought.groups < self._groups:  # it ends before the last group
            self._brought = Brought(MAX_LAYERS, 0, self._brought.why or Reason.FAILED)
        return True

    def keep(self, deadline: Deadline, encoded: Collection[str] = ()) -> bool:
        link, answer = self._link, self._answer
        if not self._limited or link is None or answer is None:
            return True
        kept = None
        if self._encoded.issubset(encoded):  # another device has them read anew
            kept = link.ask(Verb.KEEP, pack("<Q", answer.request), deadline)
        if kept is not None and link.wait(kept, late(deadline)):
            self._limited = kept.status is not Status.DONE or not any(kept.body)
        if self._limited:
            self.release()
        return not self._limited

    @property
    def leases(self) -> Sequence[Lease | None]:
        return [] if self._released else list(self._leases)

    @property
    def reasons(self) -> Sequence[Reason | None]:
        return list(self._reasons)

    @property
    def origins(self) -> Sequence[str]:
        return list(self._origins)

    def release(self) -> None:
        self._released = True
        with self._settling:
            if not self._ended:
                self._give_back()
        if leases := [lease for lease in self._leases if lease is not None]:
            release_all(leases)

    def __del__(self) -> None:
        if getattr(self, "_owes", False):
            self._give_back()

    def _take(self, link: NodeLink, answer: Answer) -> None:
        """Take the leases of the answer, once: a second set would give back the first."""
        try:
            with self._settling:
                if self._ended:  # another thread was sooner
                    return
                got = taken(self._ledger, link, answer, self._specs, self._owner, self._encoded)
                self._check(by_groups=got[3])
                self._owes = False  # from now on each lease reports its own loss
                self._leases, self._reasons, self._origins, self._by_groups = got
                self._ended = True
        except BadMessage:
            link.abandon()
            self._lose(Reason.FAILED)
        except BaseException:
            self._lose(Reason.FAILED)  # leases that were made on the way have given blocks back
            raise
        if self._released:
            self.release()

    def _check(self, *, by_groups: bool) -> None:
        """Raise ``BadMessage`` if groups of layers come that were not requested."""
        if by_groups and self._about is None:
            raise BadMessage("groups of layers that were not requested")

    def _lose(self, why: Reason) -> None:
        """End the hold without chunks, for reason *why*, unless another thread has ended it."""
        with self._settling:
            if self._ended:
                return
            self._leases = [None] * len(self._specs)
            self._reasons = [why] * len(self._specs)
            self._ended = True
            self._give_back()

    def _give_back(self) -> None:
        if self._link is not None and self._answer is not None:
            self._link.give_back(self._answer.request)
            self._ledger.answered(self._owner, self._link, self._answer.request)
        self._owes = False


class NodePublishing:
    """See :class:`hexkv.ports.Publishing`. Without a link, nothing was published."""

    def __init__(
        self, link: NodeLink | None, answer: Answer | None, count: int, deadline: Deadline
    ) -> None:
        self._link = link
        self._answer = answer
        self._count = count
        self._deadline = late(deadline)

    @property
    def done(self) -> bool:
        link, answer = self._link, self._answer
        if link is None or answer is None:
            return True
        return link.wait(answer, Deadline(link.clock, 0.0)) or not link.alive

    targets: Collection[str] = ()

    def wait(self, deadline: Deadline, tier: str | None = None) -> bool:
        del tier
        link, answer = self._link, self._answer
        if link is None or answer is None:
            return True
        return link.wait(answer, late(deadline)) or not link.alive

    @property
    def tiers(self) -> Mapping[str, Sequence[bool]]:
        link, answer = self._link, self._answer
        if link is not None and answer is not None:
            link.wait(answer, self._deadline, begun=True)
            _ = self.done  # reads what has come since
        if answer is None or answer.status not in (Status.DONE, Status.BEGUN) or not answer.told:
            return {}
        try:
            reader = Reader(answer.body)
            return {
                reader.text(): [bool(here) for here in reader.data(self._count)]
                for _ in range(reader.number("B"))
            }
        except BadMessage:
            return {}


if TYPE_CHECKING:

    def _are_as_ports_say(
        hold: NodeHold, publishing: NodePublishing
    ) -> tuple[ServiceHold, ServicePublishing]:
        return hold, publishing
