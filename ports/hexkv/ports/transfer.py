"""The channel between peers: chunks that one process has leased, read by another into its leases.

Frames move by key. No message names an address, a block or an index: a frame names its chunk, so
whatever two processes mix up is a miss.

**What a transfer may touch is leased until the transfer is over.** A channel takes a share of each
lease that it reads from or writes to, and releases it when no byte can move any more. A deadline
ends the waiting, never the lease: a share may outlive the call, an error, and the channel, for as
long as a peer that was stopped could still write, or read what it would believe.

Errors, as of stores: an outcome per chunk where chunks can differ; an exception of the
``StoreError`` branch where the whole call failed, or after :meth:`TransferChannel.close`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.clock import Deadline
from hexkv.ports.keys import ChunkKey
from hexkv.ports.memory import Lease
from hexkv.ports.outcomes import ReadOutcome, WriteOutcome
from hexkv.ports.reasons import Reason
from hexkv.ports.sink import LeaseSink

MAX_QUESTION = 64 << 10
"""Bytes of a question or of its answer."""


class Peer(NamedTuple):
    """Another process that serves chunks."""

    address: str
    """What its :meth:`TransferChannel.serve` said."""

    generation: int = 0
    """Of the life of it that is meant, for it may have been started anew; 0 stands for any."""


class Part(NamedTuple):
    """What is wanted of one chunk: its frame, or some of the frame's bytes."""

    key: ChunkKey
    start: int = 0
    size: int | None = None
    """Bytes from *start* on, at least one; ``None``: the whole frame."""


class Offer(NamedTuple):
    """A chunk that a peer may take."""

    key: ChunkKey
    lease: Lease
    """On the sealed frame."""


class PeerSource(Protocol):
    """What a process serves to its peers. Called by the channel's threads; raises nothing.

    *who* is the name that the asking peer gave of itself, proven no further than that it may ask.
    """

    def lend(
        self, keys: Sequence[ChunkKey], who: str, deadline: Deadline
    ) -> Sequence[Lease | None]:
        """A lease on each sealed frame, which the channel releases; ``None`` where there is none.

        Which chunks *who* may read, and how many bytes may be lent at a time, is decided here: a
        chunk that is not lent beside others is asked for again once these were released.
        """
        ...

    def room(
        self, wanted: Sequence[tuple[ChunkKey, int]], who: str, deadline: Deadline
    ) -> Sequence[Lease | Reason]:
        """An empty lease for each offered frame of so many bytes, or why there is none.

        ``PRESENT`` where the chunk is here already. The channel releases the leases.
        """
        ...

    def keep(self, arrived: Sequence[Offer], who: str, deadline: Deadline) -> Sequence[bool]:
        """Verify frames that arrived whole, and publish them. True for each that is kept."""
        ...

    def answer(self, question: bytes, who: str, deadline: Deadline) -> bytes:
        """Answer a question of at most :data:`MAX_QUESTION` bytes, in as many."""
        ...


@runtime_checkable
class TransferChannel(Protocol):
    """One process's way to its peers, and theirs to it. Safe from any thread."""

    def serve(self, source: PeerSource, generation: int) -> Peer:
        """Begin to answer peers from *source*, once, and return what they know this process by.

        Args:
            source: what is served.
            generation: of this life, from 1 to 2**63 - 1, another one than of any before.

        Raises:
            ConfigError: it cannot listen there, or others could and nothing keeps them out.
        """
        ...

    def read(
        self, peer: Peer, wanted: Sequence[Part], sink: LeaseSink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        """Read each part into the memory that *sink* gives for it.

        ``Hit(size)`` says that all *size* bytes were written, and that a whole frame names the
        key. After any other outcome the memory's content means nothing. A part beyond the end of
        its frame is ``Miss(ABSENT)``.
        """
        ...

    def offer(
        self, peer: Peer, offers: Sequence[Offer], deadline: Deadline
    ) -> Sequence[WriteOutcome]:
        """Give chunks to a peer that has room for them. ``Stored(0)``: it had the chunk."""
        ...

    def ask(self, peer: Peer, question: bytes, deadline: Deadline) -> bytes:
        """Return what the peer's source answers.

        Raises:
            InvalidRequest: the question is longer than :data:`MAX_QUESTION`.
            StoreUnreachable: no answer came in time.
        """
        ...

    def close(self) -> None:
        """Serve no more and end what is under way, in less than a second. Twice is allowed."""
        ...
