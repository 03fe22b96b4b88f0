"""The peers of a process, from the composition root: serving them and reading from them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

from hexkv.core.tiers.cache import TierStack
from hexkv.peers.lending.exchange import Exchange
from hexkv.peers.lending.lending import Lending, LendingRules
from hexkv.peers.lives import Life, new_generation
from hexkv.peers.questions import BUSY, HAVE, SELF, ask_of_each, keys_in, pack_member
from hexkv.plugins.composition.tiers import naming
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    KIND_BYTES,
    Answer,
    ChunkKey,
    Clock,
    Deadline,
    Directory,
    Failed,
    FrameHeader,
    InvalidRequest,
    Lease,
    Member,
    MemoryRegion,
    Miss,
    Offer,
    Peer,
    PeerAccess,
    Peers,
    PeerSource,
    Reason,
    StoreBusy,
    StoreError,
    StoreUnreachable,
    SupportsRegistration,
    SupportsRenewal,
    TransferChannel,
    TransferOutcome,
    namespace_of,
)

if TYPE_CHECKING:
    from hexkv.plugins.configuration.schema import PeersSettings

log = logging.getLogger(__name__)

_PARTING = 1.0
"""Seconds that peers have to release their leases when the process ends."""


def own_name(given: str) -> str:
    """Return the name of a process for its peers and directory; *given*, or host and process."""
    return given or f"{socket.gethostname()[:200]}/{os.getpid()}"


class PeerService:
    """Serves a process's chunks to its peers, and reads theirs. Safe from any thread.

    It serves nothing before :meth:`begin`, which needs tiers: a tier that reads from peers has to
    know the channel that is served here. Refers to no engine, which it may outlive.

    Args:
        channel: to peers; closed by :meth:`close`.
        name: of this process.
        address: at which peers reach it; empty for the channel's own.
        admin: address of its administration; empty for none.
        clock: of the process.
    """

    def __init__(
        self, channel: TransferChannel, name: str, address: str, admin: str, clock: Clock
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._lock = Lock()
        self._lending: Lending | None = None
        self._paused: Lending | None = None
        self._exchange: Exchange | None = None
        self._directory: Directory | None = None
        self._answers: dict[bytes, Answer] = {
            HAVE: self._have,
            BUSY: self._busy,
            SELF: self._self,
        }
        self._strangers = count()
        self.arrived: Callable[[Sequence[ChunkKey]], None] | None = None
        """Receives chunks that peers pushed, and that are kept."""

        renews = isinstance(channel, SupportsRenewal)
        # A channel that cannot renew its life has to guess which is the later one.
        generation = new_generation() if renews else int(clock.wall() * 1e9)
        # Before the first question of a peer: server and client are the same life.
        self.life = Life(Member(name, generation, address, admin), self._renew)
        served = channel.serve(self, generation)
        if not address:
            self.life = Life(Member(name, generation, served.address, admin), self._renew)

    @property
    def member(self) -> Member:
        return self.life.member

    def _renew(self, generation: int) -> bool:
        """Announce this process to peers as life *generation*. False if the channel cannot."""
        if isinstance(self._channel, SupportsRenewal):
            self._channel.renew(generation)
            return True
        return False

    @property
    def directory(self) -> Directory | None:
        return self._directory

    def access(self, directory: Directory | None) -> PeerAccess:
        """Return the access for an adapter that reads from peers, or queries them."""
        return PeerAccess(self.member, self._channel, directory)

    def begin(
        self,
        stack: TierStack,
        own: Collection[str],
        rules: LendingRules,
        directory: Directory | None,
        meet: Callable[[str, bytes], None] | None,
        *,
        paused: bool = False,
    ) -> None:
        """Serve chunks from now on.

        Args:
            stack: of the process.
            own: the tiers that are lent from.
            rules: limits of lending.
            directory: that the process reports to.
            meet: see :class:`~hexkv.plugins.composition.peers.OpenedPeers`.
            paused: whether to wait for :meth:`resume`.
        """

        def may_keep(header: FrameHeader) -> bool:
            prefix = namespace_of(header.key)
            known = prefix in stack.tenants
            if not known and meet is not None:
                meet(header.identity, prefix)
            return known or meet is not None

        lending = Lending(stack, own, rules, may_keep)
        self._directory = directory
        self._exchange = Exchange(lending, self._channel)
        if paused:
            self._paused = lending
        else:
            self._lending = lending

    def lend(
        self, keys: Sequence[ChunkKey], who: str, deadline: Deadline
    ) -> Sequence[Lease | None]:
        lending = self._lending
        # A peer without a name counts as a new one each time.
        who = who or f"stranger {next(self._strangers)}"
        return [None] * len(keys) if lending is None else lending.lend(keys, who, deadline)

    def room(
        self, wanted: Sequence[tuple[ChunkKey, int]], who: str, deadline: Deadline
    ) -> Sequence[Lease | Reason]:
        del who
        lending = self._lending
        none: list[Lease | Reason] = [Reason.NO_ROOM] * len(wanted)
        return none if lending is None else lending.room(wanted, deadline)

    def keep(self, arrived: Sequence[Offer], who: str, deadline: Deadline) -> Sequence[bool]:
        del who
        lending, report = self._lending, self.arrived
        kept = [False] * len(arrived) if lending is None else lending.keep(arrived, deadline)
        if report is not None:
            report([offer.key for offer, is_kept in zip(arrived, kept, strict=True) if is_kept])
        return kept

    def have(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Return True for each chunk that an own tier's index has."""
        lending = self._lending
        return [False] * len(keys) if lending is None else lending.have(keys)

    def answer(self, question: bytes, who: str, deadline: Deadline) -> bytes:
        kind, body = question[:KIND_BYTES], question[KIND_BYTES:]
        answer = self._answers.get(kind)
        if answer is None:
            raise StoreUnreachable(f"no handler here for a peer's question: {kind!r}")
        return answer(body, who, deadline)

    def pull(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> Sequence[TransferOutcome]:
        outcomes = self._open().pull(peer, keys, deadline)
        missed = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, Miss)]
        if missed and not deadline.expired:
            for i, busy in zip(missed, self._are_busy(peer, keys, missed, deadline), strict=True):
                if busy:
                    outcomes[i] = Failed(StoreBusy("others are being given it"))
        return outcomes

    def push(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> Sequence[TransferOutcome]:
        return self._open().push(peer, keys, deadline)

    def ask(self, peer: Peer, kind: bytes, body: bytes, deadline: Deadline) -> bytes:
        _check_kind(kind)
        return self._channel.ask(peer, kind + body, deadline)

    def register(self, kind: bytes, answer: Answer) -> None:
        _check_kind(kind)
        with self._lock:
            if kind in self._answers:
                raise InvalidRequest(f"questions of kind {kind!r} are answered already")
            self._answers[kind] = answer

    def pause(self, deadline: Deadline) -> None:
        """Lend and keep nothing before :meth:`resume`; wait up to *deadline* for lent chunks."""
        with self._lock:
            self._paused, self._lending = self._lending or self._paused, None
            lending = self._paused
        if lending is not None:
            lending.drain(deadline)

    def resume(self) -> None:
        """Continue as before :meth:`pause`."""
        with self._lock:
            self._lending, self._paused = self._paused or self._lending, None

    def limit_rate(self, rate: int | None) -> None:
        """Send at most *rate* bytes per second from now on; ``None``: any number."""
        with self._lock:
            lending = self._lending or self._paused
        if lending is not None:
            lending.limit_rate(rate)

    def close(self) -> None:
        """Stop serving, end calls under way, and wait a moment until nothing is lent."""
        with self._lock:
            lending = self._lending or self._paused
            self._lending = self._paused = self._exchange = None
        if lending is not None:
            lending.close()
        self._channel.close()
        if lending is not None and not lending.drain(Deadline.after(self._clock, _PARTING)):
            log.warning("peers still have %d bytes that were lent to them", lending.lent_bytes)

    def _are_busy(
        self, peer: Peer, keys: Sequence[ChunkKey], which: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        """Return True for each chunk that *peer* has, but is lending to others at its limit."""

        def ask(kind: bytes, body: bytes) -> bytes:
            return self._channel.ask(peer, kind + body, deadline)

        try:
            return ask_of_each(ask, [keys[i] for i in which], BUSY)
        except StoreError:
            return [False] * len(which)

    def _open(self) -> Exchange:
        exchange = self._exchange
        if exchange is None:
            raise StoreError("peers are no longer served")
        return exchange

    def _have(self, body: bytes, who: str, deadline: Deadline) -> bytes:
        del who, deadline
        return bytes(self.have(keys_in(body)))

    def _busy(self, body: bytes, who: str, deadline: Deadline) -> bytes:
        del who, deadline
        keys, lending = keys_in(body), self._lending
        return bytes([False] * len(keys) if lending is None else lending.busy(keys))

    def _self(self, body: bytes, who: str, deadline: Deadline) -> bytes:
        del body, who, deadline
        return pack_member(self.member)


def _check_kind(kind: bytes) -> None:
    if len(kind) != KIND_BYTES:
        raise InvalidRequest(f"{kind!r} is no kind of question: it has {KIND_BYTES} bytes")


def serve_peers(
    loaded: Loaded, registry: Registry, clock: Clock, admin: str, region: MemoryRegion
) -> PeerService | None:
    """Open and serve the channel of a checked configuration; ``None`` if it has none.

    Args:
        loaded: the configuration.
        registry: the installed plugins.
        clock: of the process.
        admin: address of the process's administration; empty: none.
        region: the pool's memory, for channels that read and write it in place.

    Raises:
        ConfigError, AdapterUnavailable, StoreError: it cannot be opened, or not served there.
    """
    settings = loaded.settings
    if not settings.peers.channel:
        return None
    name = own_name(settings.directory.name)
    context = OpenContext(clock, name)
    with naming(loaded, ("peers", "settings")), ExitStack() as opened:
        channel: TransferChannel = registry.open(
            "channel", settings.peers.channel, settings.peers.settings, context
        )
        opened.callback(channel.close)
        if isinstance(channel, SupportsRegistration):
            channel.register(region)
        service = PeerService(channel, name, settings.directory.address, admin, clock)
        opened.pop_all()
    return service


def takes_offers(settings: PeersSettings, registry: Registry) -> bool:
    """Return True if chunks that peers offer are kept, by a configuration that has a channel."""
    if settings.serve.accept is not None:
        return settings.serve.accept
    channel = registry.parse("channel", settings.channel, settings.settings)
    known: bool = getattr(channel, "knows_peers", False)
    if not known:
        logging.getLogger("hexkv.listening").info(
            "chunks that peers offer are refused: that takes a secret, or peers.serve.accept"
        )
    return known


if TYPE_CHECKING:

    def _is_a_source(service: PeerService) -> PeerSource:
        return service

    def _are_peers(service: PeerService) -> Peers:
        return service
