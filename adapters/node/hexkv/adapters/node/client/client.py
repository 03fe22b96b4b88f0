"""The client: the chunks of a node, as a keyed cache of this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from struct import pack
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.answer import Answer
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.client.announcing import Announces
from hexkv.adapters.node.client.holds import NodeHold, NodePublishing, late
from hexkv.adapters.node.client.keeper import Keeper
from hexkv.adapters.node.client.leases import LeaseLedger, NodeLease
from hexkv.adapters.node.client.link import NodeLink
from hexkv.adapters.node.client.rates import ServesSooner
from hexkv.adapters.node.client.telling import PromptTeller, Spaces
from hexkv.adapters.node.listing import pack_after, read_listing
from hexkv.adapters.node.wire import (
    MINOR,
    Reader,
    Verb,
    Wanted,
    pack_keys,
    pack_wanted,
    text,
)
from hexkv.ports import (
    Announcing,
    ChunkKey,
    ChunkService,
    ChunkSpec,
    Cleared,
    Clock,
    Deadline,
    EngineClosed,
    Health,
    HoldTerms,
    InvalidRequest,
    Lease,
    NamedPrompt,
    PromptSink,
    Reason,
    SupportsListing,
    SupportsPushing,
    TierHealth,
    frame_bytes,
    release_all,
)

T = TypeVar("T")

_MOST = 1 << 15
"""Chunks in one request at most."""

_OF_HOSTS = HoldTerms()

_PINNING = 1.0
"""Seconds that a call without a deadline waits."""


class NodeClient(Announces, ServesSooner):
    """See :class:`hexkv.ports.ChunkService`.

    A node that has ended, or does not answer, costs the call that finds out its deadline; from then
    on calls miss at once, until the keeper has heard from the node again.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Create a client of the node at *path*, which may start to listen later."""
        super().__init__(clock)
        self._clock = clock
        self._ledger = LeaseLedger()
        self._spaces = Spaces()
        self._naming = Lock()
        self._teller = PromptTeller(clock)
        self._closed = False
        self._pid = os.getpid()
        self._pool_bytes = 0
        me = ref(self)

        def broken() -> None:
            client = me()
            if client is not None:
                client._wake()

        self._keeper: Keeper | None = None
        self._keeper = Keeper(str(path), lambda: NodeLink(path, clock, broken), clock)
        os.register_at_fork(after_in_child=lambda: _forked(me))

    @property
    def pool_bytes(self) -> int:
        if (link := self._keeper.link if self._keeper is not None else None) is not None:
            self._pool_bytes = link.pool_bytes
        return self._pool_bytes

    @property
    def connected(self) -> bool:
        """True if the node answered when it was last needed."""
        return self._link() is not None

    def fits(self, payload_bytes: int) -> bool:
        size = self.pool_bytes
        return not size or frame_bytes(payload_bytes) <= size

    def hold(
        self,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        terms: HoldTerms = _OF_HOSTS,
    ) -> NodeHold:
        if self.compute_rate is not None and wanted:
            terms = self._rated(wanted[-1].key, terms)
        return self._lease(Verb.HOLD, wanted, owner, deadline, terms)

    def allocate(
        self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
    ) -> Sequence[Lease]:
        hold = self._lease(Verb.ALLOCATE, wanted, owner, deadline)
        hold.wait(deadline)
        return [lease for lease in hold.leases if lease is not None]

    def reserve(self, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline) -> NodeHold:
        return self._lease(Verb.ALLOCATE, wanted, owner, deadline, waits=False)

    def publish(
        self,
        leases: Sequence[Lease],
        after: ChunkKey | None,
        deadline: Deadline,
        *,
        transfer: bool = False,
        keep: str | None = None,
        wait: bool = True,
    ) -> NodePublishing:
        del keep, wait  # the node decides
        self._check()
        mine: list[NodeLease] = []
        for lease in leases:
            spec = lease.spec
            if spec is None or len(lease.payload) != spec.raw_bytes:
                raise InvalidRequest("a lease without a spec")
            if not isinstance(lease, NodeLease):
                raise InvalidRequest("a node publishes what it has leased")
            mine.append(lease)
        link = self._link()
        # Blocks of an earlier life of the node are not in its memory now.
        if not mine or link is None or any(lease.block.link is not link for lease in mine):
            return NodePublishing(None, None, len(mine), deadline)
        head = pack("<B", after is not None) + (after or b"")
        body = b"".join(
            (
                head,
                pack("<I", len(mine)),
                pack(f"<{len(mine)}Q", *(lease.block.request for lease in mine)),
                pack(f"<{len(mine)}I", *(lease.block.place for lease in mine)),
            )
        )
        # The node takes its shares before it reads on, so the leases may end at once.
        answer = link.ask(Verb.PUBLISH, body, deadline)
        if transfer:
            release_all(mine)
        return NodePublishing(link, answer, len(mine), deadline)

    def named(self, prompt: NamedPrompt) -> None:
        link = self._link()
        if link is not None and prompt.keys:
            self._teller.named(prompt, link)

    def forget(self, keys: Sequence[ChunkKey], deadline: Deadline) -> int:
        self._check()
        distinct = list(dict.fromkeys(keys))
        parts = [distinct[i : i + _MOST] for i in range(0, len(distinct), _MOST)]
        return sum(self._count(Verb.FORGET, pack_keys(part), deadline) for part in parts)

    def pin(self, owner: str, keys: Sequence[ChunkKey], seconds: float | None = None) -> int:
        self._check()
        if not keys:
            return 0
        # Zero means the node's default time, so a pin of no time is sent as a millisecond.
        lasting = 0.0 if seconds is None else max(seconds, 1e-3)
        deadline = Deadline.after(self._clock, _PINNING)
        return self._count(Verb.PIN, pack_keys(keys, pack("<d", lasting) + text(owner)), deadline)

    def unpin(self, owner: str) -> int:
        self._check()
        return self._count(Verb.UNPIN, text(owner), Deadline.after(self._clock, _PINNING))

    def flush(self, deadline: Deadline) -> bool:
        self._check()
        return bool(self._count(Verb.FLUSH, b"", deadline))

    def clear(
        self,
        prefixes: Collection[bytes] | None,
        tiers: Sequence[str] | None,
        deadline: Deadline,
        tails: Sequence[tuple[ChunkKey, int]] = (),
    ) -> Cleared:
        self._check()
        named = None if prefixes is None else [key.hex() for key in (*prefixes, *dict(tails))]
        body = {"prefixes": named, "tiers": None if tiers is None else list(tiers)}

        def read(reader: Reader) -> Cleared:
            described = reader.json()
            if not isinstance(described, dict):
                raise BadMessage("no report")
            return Cleared(**described)

        cleared = self._ask(Verb.CLEAR, json.dumps(body).encode(), deadline, read)
        return cleared or Cleared(0, {}, {"node": Reason.NO_ANSWER.value})

    def health(self, deadline: Deadline) -> Health | None:
        def read(reader: Reader) -> Health:
            described = reader.json()
            if not isinstance(described, dict):
                raise BadMessage("no report")
            tiers = tuple(TierHealth(**_known(TierHealth, it)) for it in described.pop("tiers"))
            return Health(tiers=tiers, **_known(Health, described))

        return self._ask(Verb.HEALTH, b"", deadline, read)

    def in_memory(self, after: ChunkKey | None, deadline: Deadline) -> Sequence[ChunkSpec] | None:
        self._check()
        return self._ask(Verb.LIST, pack_after(after), deadline, read_listing)

    def sweep(self, owner: str) -> int:
        return self._ledger.sweep(owner)

    def ledger(self) -> Mapping[str, int]:
        return self._ledger.count()

    def close(self, deadline: Deadline | None = None) -> None:
        del deadline  # the node finishes writes, also after this process's end
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._ledger.end()
            keeper.close()

    def left(self) -> None:
        """Drop everything in a forked child: it belongs to the parent."""
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.left()

    def _wake(self) -> None:
        if self._keeper is not None:
            self._keeper.wake()

    def _check(self) -> None:
        if self._closed:
            raise EngineClosed("the client of the node was closed, or is a parent process's")

    def _link(self) -> NodeLink | None:
        """Return the connection if it is alive and not suspect, otherwise ``None``."""
        keeper = self._keeper
        link = None if keeper is None else keeper.link
        return link if link is not None and link.alive and not link.doubts.suspect else None

    def _lease(
        self,
        verb: Verb,
        wanted: Sequence[ChunkSpec],
        owner: str,
        deadline: Deadline,
        terms: HoldTerms = _OF_HOSTS,
        *,
        waits: bool = True,
    ) -> NodeHold:
        """Request leases. Noted before it is sent, so that it is given back in every case."""
        self._check()
        self._ledger.mend()
        if not self.fits(max((spec.raw_bytes for spec in wanted), default=0)):
            raise InvalidRequest("a chunk is larger than the node's pool")
        link = self._link()
        if link is None or not wanted:
            return NodeHold(self._ledger, None, (None, None), wanted, owner, deadline)
        named = wanted[:_MOST]
        request = link.number()
        try:
            self._ledger.ask(owner, link, request)
            with self._naming:
                body = pack_wanted(
                    Wanted(
                        owner,
                        [spec.key for spec in named],
                        self._spaces.numbers(link, named, deadline),
                        [spec.tokens for spec in named],
                        [-1 if spec.position is None else spec.position for spec in named],
                    )
                )
                answers = link.lease(verb, body, deadline, request, waits=waits, terms=terms)
            hold = NodeHold(self._ledger, link, answers, wanted, owner, deadline, terms)
        except BaseException:
            self._disown(owner, link, request)
            raise
        if answers[0] is None:
            self._disown(owner, link, request)
        return hold

    def _disown(self, owner: str, link: NodeLink, request: int) -> None:
        """Give back the leases of a request that has no hold."""
        link.give_back(request)
        self._ledger.answered(owner, link, request)

    def _ask(
        self, verb: Verb, body: bytes, deadline: Deadline, read: Callable[[Reader], T]
    ) -> T | None:
        """Return the node's answer; ``None`` if there is none, or if it is malformed.

        Raises:
            InvalidRequest: the node rejects the request as invalid.
        """
        link = self._link()
        answer = None if link is None else link.ask(verb, body, deadline)
        if link is None or answer is None:
            return None
        goes_on = link.doubts.slow and verb in MINOR
        if not link.wait(answer, Deadline(self._clock, 0.0) if goes_on else late(deadline)):
            return None
        _refuse(answer)
        if answer.status is not Status.DONE:
            return None
        try:
            return read(Reader(answer.body))
        except (BadMessage, TypeError, LookupError, AttributeError):
            link.abandon()
            return None

    def _count(self, verb: Verb, body: bytes, deadline: Deadline) -> int:
        return self._ask(verb, body, deadline, lambda reader: reader.number("Q")) or 0


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of *values* that *kind* has fields for: a later node sends more."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _refuse(answer: Answer) -> None:
    if answer.final and answer.status is Status.INVALID:
        raise InvalidRequest(answer.body.decode(errors="replace"))


def _forked(client: ref[NodeClient]) -> None:
    if (found := client()) is not None:
        found.left()


if TYPE_CHECKING:

    def _is_a_service(client: NodeClient) -> tuple[ChunkService, SupportsListing, Announcing]:
        return client, client, client

    def _reaches_peers(client: NodeClient) -> SupportsPushing:
        return client

    def _is_a_sink(client: NodeClient) -> PromptSink:
        return client
