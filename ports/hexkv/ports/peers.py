"""The peers of one process: what it serves to them, what it fetches from them, and gives them.

Chunks go by key, as whole frames, out of the tiers that a process calls its own and into those
that take new chunks. Whoever fetches or receives a frame verifies it: peers are believed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hexkv.ports.clock import Deadline
from hexkv.ports.directory import Directory, Member
from hexkv.ports.keys import ChunkKey
from hexkv.ports.outcomes import Corrupt, Failed, Miss, Stored, TimedOut
from hexkv.ports.transfer import Peer, TransferChannel

KIND_BYTES = 4
"""Bytes that a question begins with: its kind."""

TransferOutcome = Stored | Miss | Corrupt | Failed | TimedOut
"""What became of a chunk that was to go from one process to another. ``Stored(0)``: it was there
already. ``Miss``: the process that was to give it does not have it, or does not lend it now."""

Answer = Callable[[bytes, str, Deadline], bytes]
"""Answers a question: its body, who asks, and until when. What it raises is no answer. Called by
threads of the channel, and must not ask the peer in turn."""


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """How a process reaches its peers: for adapters that read from them."""

    member: Member
    """This process, as its peers know it."""

    channel: TransferChannel
    directory: Directory | None = None
    """Says who holds what; ``None`` where none is configured, or it is being opened itself."""


class Peers(Protocol):
    """The peers of one process. Safe from any thread; ends with the process's cache."""

    @property
    def member(self) -> Member:
        """This process; its address is where peers are served."""
        ...

    @property
    def directory(self) -> Directory | None:
        """Says who holds what, if one is configured."""
        ...

    def pull(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> Sequence[TransferOutcome]:
        """Fetch chunks from *peer* and put them on the tiers that take new ones.

        A chunk that an own tier has is not fetched. No key may come twice. ``Failed(StoreBusy)``:
        *peer* has it, and others are being given it; it may be had from them, or from it later.

        Raises:
            StoreError: peers are not served any more.
        """
        ...

    def push(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> Sequence[TransferOutcome]:
        """Give *peer* chunks of own tiers, as far as it has room for them. They stay here, too.

        Raises:
            StoreError: as :meth:`pull`.
        """
        ...

    def ask(self, peer: Peer, kind: bytes, body: bytes, deadline: Deadline) -> bytes:
        """Return what *peer* answers to a question of *kind*.

        Raises:
            InvalidRequest: the question is too long.
            StoreUnreachable: there is no answer in time, or the peer knows no such question.
            StoreError: as :meth:`pull`.
        """
        ...

    def register(self, kind: bytes, answer: Answer) -> None:
        """Have *answer* answer questions of *kind*, which has ``KIND_BYTES`` bytes.

        Raises:
            InvalidRequest: it has not, or something answers them already.
        """
        ...
