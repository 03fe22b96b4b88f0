"""Nodes and clients of nodes that mix chunks up, lose them, or let go of what is still read."""

from __future__ import annotations

import pytest

from hexkv.adapters.node import client, holds, verbs
from hexkv.adapters.node.granted import Granted
from hexkv.adapters.node.leases import Ledger
from hexkv.adapters.node.wire import Verb
from hexkv.ports import PAGE
from nodes import Node, OverANode


class NodeContract(OverANode):
    """A node in a thread, with one thing changed in it or in its client."""

    def change(self, monkeypatch):
        """Nothing."""

    @pytest.fixture
    def engine(self, tmp_path, monkeypatch):
        self.change(monkeypatch)
        with Node(tmp_path) as node, node.engine() as engine:
            yield engine


class TestTiersOfOtherChunks(NodeContract):
    """The client takes what a match says of one chunk for the next one's."""

    breaks = "chunks.1"

    def change(self, monkeypatch):
        right = client.read_words

        def turned(reader, count):
            words = right(reader, count)
            return [*words[-1:], *words[:-1]]

        monkeypatch.setattr(client, "read_words", turned)


class TestForgetsOnlyTheFirst(NodeContract):
    """The node deletes the first chunk of those that it is to delete."""

    breaks = "chunks.5"

    def change(self, monkeypatch):
        right = client.NodeClient.forget
        monkeypatch.setattr(
            client.NodeClient, "forget", lambda self, keys, until: right(self, keys[:1], until)
        )


class TestBlocksAPageOff(NodeContract):
    """The node says of each block that it begins a page later."""

    breaks = "holds.1"

    def change(self, monkeypatch):
        right = verbs._here

        def later(session, lease, origin):
            chunk = right(session, lease, origin)
            return chunk._replace(offset=chunk.offset + (PAGE if origin else 0))

        monkeypatch.setattr(verbs, "_here", later)


class TestReleasesWhatItHasAnswered(NodeContract):
    """The node gives back what a client holds as soon as it has said where it is."""

    breaks = "holds.3"

    def change(self, monkeypatch):
        right = verbs.VERBS[Verb.HOLD]

        def brief(session, asked):
            right(session, asked)
            session.granted.release(asked.head.request)

        monkeypatch.setitem(verbs.VERBS, Verb.HOLD, brief)


class TestHoldsThatStayListed(NodeContract):
    """The client does not release the leases of a hold."""

    breaks = "holds.4"

    def change(self, monkeypatch):
        monkeypatch.setattr(
            holds.NodeHold, "release", lambda self: setattr(self, "_released", True)
        )


class TestSharesAreNotCounted(NodeContract):
    """The client tells the node with the first share of a block that it is done with it."""

    breaks = "holds.5"

    def change(self, monkeypatch):
        right = Ledger.release

        def first(self, owner, token, block):
            block.shares.clear()
            right(self, owner, token, block)

        monkeypatch.setattr(Ledger, "release", first)


class TestNamesEqualDigestsAlike(NodeContract):
    """The client asks for all chunks as of one namespace."""

    breaks = "chunks.2"

    def change(self, monkeypatch):
        right = client.pack_keys

        def alike(keys, before=b""):
            return right([bytes(16) + key[16:] for key in keys], before)

        lease = client.pack_wanted

        def leased(wanted):
            return lease(wanted._replace(keys=[bytes(16) + key[16:] for key in wanted.keys]))

        monkeypatch.setattr(client, "pack_keys", alike)
        monkeypatch.setattr(client, "pack_wanted", leased)


class TestLosesTheLastTier(NodeContract):
    """The node publishes what a client fills, and says that no tier has it."""

    breaks = "chunks.3"

    def change(self, monkeypatch):
        monkeypatch.setattr(verbs, "_tiers", lambda publishing, count: b"\0")


class TestKeepsWhatIsGivenBack(NodeContract):
    """The node does not end what a client gives back, so that its memory runs out."""

    breaks = "chunks.9"

    def change(self, monkeypatch):
        monkeypatch.setattr(Granted, "release", lambda self, request, place=0: None)
