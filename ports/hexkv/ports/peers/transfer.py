"""The channel between peers: copies chunks from leases of one process into those of another.

Frames are sent by key. No message names an address, a block or an index: a frame names its chunk,
so any mix-up between two processes is a miss.

**Memory that a transfer may touch is leased until the transfer is over.** A channel takes a share
of each lease that it reads from or writes to, and releases it when no byte can be copied. A
deadline ends the waiting, never the lease: a share may outlive the call, an error, and the channel,
for as long as a suspended peer could still write to it, or read and trust its bytes.

Errors, as of stores: an outcome per chunk where chunks can differ; an exception of the
``StoreError`` branch if the whole call failed, or after :meth:`TransferChannel.close`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.lease import Lease
from hexkv.ports.outcomes import ReadOutcome, Reason, WriteOutcome
from hexkv.ports.peers.lease_sink import LeaseSink
from hexkv.ports.runtime.clock import Deadline

MAX_QUESTION = 64 << 10
"""The most bytes of a query or of its answer."""


class Peer(NamedTuple):
    """Another process that serves chunks."""

    address: str
    """The address that its :meth:`TransferChannel.serve` returned."""

    generation: int = 0
    """Generation of its life, as it may have been restarted; 0 stands for any."""


class Part(NamedTuple):
    """A requested part of one chunk: its frame, or some of the frame's bytes."""

    key: ChunkKey
    start: int = 0
    size: int | None = None
    """Bytes from *start* on, at least one; ``None``: the whole frame."""


class Offer(NamedTuple):
    """A chunk offered to a peer."""

    key: ChunkKey
    lease: Lease
    """A lease on the sealed frame."""


class PeerSource(Protocol):
    """The chunks and answers that a process serves. Called by the channel's threads; never raises.

    *who* is the name that the calling peer claims; only its right to connect is verified.
    """

    def lend(
        self, keys: Sequence[ChunkKey], who: str, deadline: Deadline
    ) -> Sequence[Lease | None]:
        """Return a lease on each sealed frame, which the channel releases; ``None`` for none.

        This decides which chunks *who* may read, and how many bytes are lent at a time: a chunk
        that is not lent beside others is requested again after their release.
        """
        ...

    def room(
        self, wanted: Sequence[tuple[ChunkKey, int]], who: str, deadline: Deadline
    ) -> Sequence[Lease | Reason]:
        """Return an empty lease for each offered key and its frame's bytes, or why there is none.

        ``PRESENT`` if the chunk is here already. The channel releases the leases.
        """
        ...

    def keep(self, arrived: Sequence[Offer], who: str, deadline: Deadline) -> Sequence[bool]:
        """Verify frames that arrived whole, and publish them. Return True for each one kept."""
        ...

    def answer(self, question: bytes, who: str, deadline: Deadline) -> bytes:
        """Answer a query; both have at most :data:`MAX_QUESTION` bytes."""
        ...


@runtime_checkable
class TransferChannel(Protocol):
    """The connections between one process and its peers. Safe from any thread."""

    def serve(self, source: PeerSource, generation: int) -> Peer:
        """Begin to serve *source* to peers, once, and return this process as they address it.

        Args:
            source: the chunks and answers to serve.
            generation: of this life, from 1 to 2**63 - 1, different from that of any earlier one.

        Raises:
            ConfigError: it cannot listen there, or others could connect and nothing prevents it.
        """
        ...

    def read(
        self, peer: Peer, wanted: Sequence[Part], sink: LeaseSink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        """Read each part into memory of *sink*.

        ``Hit(size)`` means that all *size* bytes were written, and that a whole frame names the
        key. After any other outcome the memory's content is undefined. A part beyond the end of
        its frame is ``Miss(ABSENT)``.
        """
        ...

    def offer(
        self, peer: Peer, offers: Sequence[Offer], deadline: Deadline
    ) -> Sequence[WriteOutcome]:
        """Send chunks to a peer that has room for them. ``Stored(0)``: it had the chunk."""
        ...

    def ask(self, peer: Peer, question: bytes, deadline: Deadline) -> bytes:
        """Return the answer of the peer's source.

        Raises:
            InvalidRequest: the query is longer than :data:`MAX_QUESTION`.
            StoreUnreachable: no answer came in time.
        """
        ...

    def close(self) -> None:
        """Stop serving and end running transfers, in less than a second. Twice is allowed."""
        ...
