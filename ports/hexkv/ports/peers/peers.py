"""The peers of one process: it serves, fetches and pushes chunks, and exchanges queries.

Chunks are sent by key, as whole frames, from a process's own tiers to the tiers that take new
chunks. The process that fetches or receives a frame verifies it: peers are not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import (
    Corrupt,
    Failed,
    Miss,
    Stored,
    TimedOut,
)
from hexkv.ports.peers.directory import Directory, Member
from hexkv.ports.peers.transfer import Peer, TransferChannel
from hexkv.ports.runtime.clock import Deadline

KIND_BYTES = 4
"""Bytes of the kind at the start of a query."""

TransferOutcome = Stored | Miss | Corrupt | Failed | TimedOut
"""The outcome of the transfer of a chunk between processes. ``Stored(0)``: it was there already.
``Miss``: the sending process does not have it, or does not lend it now."""

Answer = Callable[[bytes, str, Deadline], bytes]
"""Answers a query, given its body, the name of the calling peer, and a deadline. An exception
means no answer. Called by threads of the channel; must not query the peer in turn."""


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """A process's access to its peers, for adapters that read from them."""

    member: Member
    """This process, as its peers know it."""

    channel: TransferChannel
    directory: Directory | None = None
    """The directory; ``None`` if none is configured, or while it is being opened itself."""


class Peers(Protocol):
    """The peers of one process. Safe from any thread; ends with the process's cache."""

    @property
    def member(self) -> Member:
        """This process; its address is the one at which it serves peers."""
        ...

    @property
    def directory(self) -> Directory | None:
        """The directory, if one is configured."""
        ...

    def pull(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> Sequence[TransferOutcome]:
        """Fetch chunks from *peer* and put them on the tiers that take new ones.

        A chunk that an own tier has is not fetched. No key may come twice. ``Failed(StoreBusy)``:
        *peer* has the chunk and is sending it to others; fetch it from them, or from it later.

        Raises:
            StoreError: this process has stopped serving peers.
        """
        ...

    def push(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> Sequence[TransferOutcome]:
        """Send *peer* chunks of own tiers, as far as it has room for them. They stay here, too.

        Raises:
            StoreError: as :meth:`pull`.
        """
        ...

    def ask(self, peer: Peer, kind: bytes, body: bytes, deadline: Deadline) -> bytes:
        """Return the answer of *peer* to a query of *kind*.

        Raises:
            InvalidRequest: the query is too long.
            StoreUnreachable: there is no answer in time, or the peer does not know the kind.
            StoreError: as :meth:`pull`.
        """
        ...

    def register(self, kind: bytes, answer: Answer) -> None:
        """Answer queries of *kind*, which has ``KIND_BYTES`` bytes, by *answer*.

        Raises:
            InvalidRequest: *kind* has another length, or is registered already.
        """
        ...
