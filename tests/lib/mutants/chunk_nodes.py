"""Nodes and clients of nodes that mix chunks up, lose them, or let go of what is still read."""

from __future__ import annotations

import pytest

from hexkv.adapters.node.client import client, holds
from hexkv.adapters.node.client.leases import Ledger
from hexkv.adapters.node.server import verbs
from hexkv.adapters.node.server.granted import Granted
from hexkv.adapters.node.wire import Status, Verb
from hexkv.contracts.chunk_cache._base import TOKENS
from hexkv.ports import PAGE, Reason
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
        right = verbs._chunks

        def later(*columns):
            chunks = right(*columns)
            rows = zip(chunks.offsets, chunks.words, strict=True)
            return chunks._replace(offsets=[at + PAGE if tier else at for at, tier in rows])

        monkeypatch.setattr(verbs, "_chunks", later)


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

        def first(self, ended):
            for _, _, block in ended:
                block.shares.clear()
            right(self, ended)

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


class TestDropsWhatIsBehindAGap(NodeContract):
    """The client takes nothing of a hold behind a chunk that is missing."""

    breaks = "holds.2"

    def change(self, monkeypatch):
        right = holds.taken

        def up_to_a_gap(*arguments):
            leases, reasons, origins = right(*arguments)
            end = leases.index(None) if None in leases else len(leases)
            for place in range(end, len(leases)):
                if leases[place] is not None:
                    leases[place].release()
                    leases[place], reasons[place] = None, Reason.REFUSED
            return leases, reasons, origins

        monkeypatch.setattr(holds, "taken", up_to_a_gap)


class TestLendsABlockOnce(NodeContract):
    """The client takes no lease of a block that it has leased by another request."""

    breaks = "holds.7"

    def change(self, monkeypatch):
        right = Ledger.grant

        def once(self, link, blocks, owner, specs):
            known = {other.offset for held in self._held.values() for other in held.values()}
            if any(block.offset in known for block in blocks):
                link.give_back(blocks[0].request)
                return []
            return right(self, link, blocks, owner, specs)

        monkeypatch.setattr(Ledger, "grant", once)


class TestLengthsAreAllOne(NodeContract):
    """The node takes every chunk for one as long as most are."""

    breaks = "holds.8"

    def change(self, monkeypatch):
        right = verbs._wanted

        def stretched(session, asked):
            leasing = right(session, asked)
            return leasing._replace(specs=[s._replace(tokens=TOKENS) for s in leasing.specs])

        monkeypatch.setattr(verbs, "_wanted", stretched)


class TestSaysTheFirstOfAll(NodeContract):
    """The client says of each block that it allocates that it is for the first chunk."""

    breaks = "chunks.4"

    def change(self, monkeypatch):
        right = client.NodeClient.allocate

        def first(self, wanted, owner, until):
            leases = right(self, wanted, owner, until)
            for lease in leases:
                lease.spec = wanted[0]
            return leases

        monkeypatch.setattr(client.NodeClient, "allocate", first)


class TestPinsLast(NodeContract):
    """The node ends no pin before its connection does."""

    breaks = "chunks.6"

    def change(self, monkeypatch):
        def nothing(session, asked):
            session.send(asked.head, Status.DONE, bytes(8))

        monkeypatch.setitem(verbs.VERBS, Verb.UNPIN, nothing)


class TestTakesWhatFitsNowhere(NodeContract):
    """The client asks for any chunk, and takes the node's no for an answer like others."""

    breaks = "chunks.7"

    def change(self, monkeypatch):
        monkeypatch.setattr(client.NodeClient, "fits", lambda self, size: True)
        monkeypatch.setattr(client, "_refuse", lambda answer: None)
