"""Another node of a list, queried over the channel that serves its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hexkv.peers.questions import SELF, ask_of_each, unpack_member
from hexkv.ports import (
    ChunkKey,
    Deadline,
    Member,
    Peer,
    StoreUnreachable,
    TransferChannel,
)


class ChannelPeer:
    """A node that answers for itself; see :class:`hexkv.adapters.directory.static.Asked`.

    Args:
        channel: to all peers; not closed here.
        address: at which the node serves its chunks.
    """

    def __init__(self, channel: TransferChannel, address: str) -> None:
        self._channel = channel
        self._address = address
        self._life: Member | None = None
        """The node's life that answered last."""

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        life = self._life
        if life is not None:
            try:
                return self._locate(life, keys, deadline)
            except StoreUnreachable:
                self._life = None
                if deadline.expired:
                    raise
        return self._locate(self._meet(deadline), keys, deadline)

    def members(self, deadline: Deadline) -> Sequence[Member]:
        return [self._meet(deadline)]

    def close(self) -> None:
        """See :class:`hexkv.adapters.directory.static.Asked`."""

    def _locate(
        self, life: Member, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> list[Sequence[Member]]:
        peer = Peer(self._address, life.generation)

        def ask(kind: bytes, body: bytes) -> bytes:
            return self._channel.ask(peer, kind + body, deadline)

        return [(life,) if has else () for has in ask_of_each(ask, keys)]

    def _meet(self, deadline: Deadline) -> Member:
        """Return the present life of the node.

        Raises:
            StoreUnreachable: it does not answer.
        """
        said = self._channel.ask(Peer(self._address), SELF, deadline)
        # Use the address at which it was found, whatever address it reports.
        self._life = life = replace(unpack_member(said), address=self._address)
        return life
