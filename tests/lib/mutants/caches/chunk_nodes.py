"""Nodes and clients of nodes that mix chunks up, lose them, or let go of what is still read."""

from __future__ import annotations

import pytest

from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.client import client, holds, rates
from hexkv.adapters.node.client.leases import LeaseLedger
from hexkv.adapters.node.server import holding, verbs
from hexkv.adapters.node.server.granted import Granted
from hexkv.adapters.node.wire import Verb
from hexkv.contracts.chunk_cache._base import TOKENS
from hexkv.ports import PAGE, Reason
from mutants.rows import Wrong, broken
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


def tiers_of_other_chunks(self, monkeypatch):
    right = rates.read_words

    def turned(reader, count):
        words = right(reader, count)
        return [*words[-1:], *words[:-1]]

    monkeypatch.setattr(rates, "read_words", turned)


def forgets_only_the_first(self, monkeypatch):
    right = client.NodeClient.forget
    monkeypatch.setattr(
        client.NodeClient, "forget", lambda self, keys, until: right(self, keys[:1], until)
    )


def blocks_a_page_off(self, monkeypatch):
    right = holding.pack_leases

    def later(*columns):
        chunks = right(*columns)
        rows = zip(chunks.offsets, chunks.words, strict=True)
        return chunks._replace(offsets=[at + PAGE if tier else at for at, tier in rows])

    monkeypatch.setattr(holding, "pack_leases", later)


def releases_what_it_has_answered(self, monkeypatch):
    right = verbs.VERBS[Verb.HOLD]

    def brief(session, asked):
        right(session, asked)
        session.granted.release(asked.head.request)

    monkeypatch.setitem(verbs.VERBS, Verb.HOLD, brief)


def holds_that_stay_listed(self, monkeypatch):
    monkeypatch.setattr(holds.NodeHold, "release", lambda self: setattr(self, "_released", True))


def shares_are_not_counted(self, monkeypatch):
    right = LeaseLedger.release

    def first(self, ended):
        for _, _, block in ended:
            block.shares.clear()
        right(self, ended)

    monkeypatch.setattr(LeaseLedger, "release", first)


def names_equal_digests_alike(self, monkeypatch):
    right = client.pack_keys

    def alike(keys, before=b""):
        return right([bytes(16) + key[16:] for key in keys], before)

    lease = client.pack_wanted

    def leased(wanted):
        return lease(wanted._replace(keys=[bytes(16) + key[16:] for key in wanted.keys]))

    for module in (client, rates):
        monkeypatch.setattr(module, "pack_keys", alike)
    monkeypatch.setattr(client, "pack_wanted", leased)


def loses_the_last_tier(self, monkeypatch):
    monkeypatch.setattr(verbs, "_tiers", lambda publishing, count: b"\0")


def keeps_what_is_given_back(self, monkeypatch):
    monkeypatch.setattr(Granted, "release", lambda self, request, place=0: None)


def drops_what_is_behind_a_gap(self, monkeypatch):
    right = holds.taken

    def up_to_a_gap(*arguments):
        leases, reasons, *rest = right(*arguments)
        end = leases.index(None) if None in leases else len(leases)
        for place in range(end, len(leases)):
            if leases[place] is not None:
                leases[place].release()
                leases[place], reasons[place] = None, Reason.REFUSED
        return leases, reasons, *rest

    monkeypatch.setattr(holds, "taken", up_to_a_gap)


def lends_a_block_once(self, monkeypatch):
    right = LeaseLedger.grant

    def once(self, link, blocks, owner, specs):
        known = {other.offset for held in self._held.values() for other in held.values()}
        if any(block.offset in known for block in blocks):
            link.give_back(blocks[0].request)
            return []
        return right(self, link, blocks, owner, specs)

    monkeypatch.setattr(LeaseLedger, "grant", once)


def lengths_are_all_one(self, monkeypatch):
    right = holding.wanted

    def stretched(session, asked):
        leasing = right(session, asked)
        return leasing._replace(specs=[s._replace(tokens=TOKENS) for s in leasing.specs])

    monkeypatch.setattr(holding, "wanted", stretched)


def says_the_first_of_all(self, monkeypatch):
    right = client.NodeClient.allocate

    def first(self, wanted, owner, until):
        leases = right(self, wanted, owner, until)
        for lease in leases:
            lease.spec = wanted[0]
        return leases

    monkeypatch.setattr(client.NodeClient, "allocate", first)


def pins_last(self, monkeypatch):
    def nothing(session, asked):
        session.send(asked.head, Status.DONE, bytes(8))

    monkeypatch.setitem(verbs.VERBS, Verb.UNPIN, nothing)


def takes_what_fits_nowhere(self, monkeypatch):
    monkeypatch.setattr(client.NodeClient, "fits", lambda self, size: True)
    monkeypatch.setattr(client, "_refuse", lambda answer: None)


ROWS = {
    "chunks.1 tiers of other chunks": Wrong(
        "The client takes what a match says of one chunk for the next one's.",
        change=tiers_of_other_chunks,
    ),
    "chunks.5 forgets only the first": Wrong(
        "The node deletes the first chunk of those that it is to delete.",
        change=forgets_only_the_first,
    ),
    "holds.1 blocks a page off": Wrong(
        "The node says of each block that it begins a page later.", change=blocks_a_page_off
    ),
    "holds.3 releases what it has answered": Wrong(
        "The node gives back what a client holds as soon as it has said where it is.",
        change=releases_what_it_has_answered,
    ),
    "holds.4 holds that stay listed": Wrong(
        "The client does not release the leases of a hold.", change=holds_that_stay_listed
    ),
    "holds.5 shares are not counted": Wrong(
        "The client tells the node with the first share of a block that it is done with it.",
        change=shares_are_not_counted,
    ),
    "chunks.2 names equal digests alike": Wrong(
        "The client asks for all chunks as of one namespace.", change=names_equal_digests_alike
    ),
    "chunks.3 loses the last tier": Wrong(
        "The node publishes what a client fills, and says that no tier has it.",
        change=loses_the_last_tier,
    ),
    "chunks.9 keeps what is given back": Wrong(
        "The node does not end what a client gives back, so that its memory runs out.",
        change=keeps_what_is_given_back,
    ),
    "holds.2 drops what is behind a gap": Wrong(
        "The client takes nothing of a hold behind a chunk that is missing.",
        change=drops_what_is_behind_a_gap,
    ),
    "holds.7 lends a block once": Wrong(
        "The client takes no lease of a block that it has leased by another request.",
        change=lends_a_block_once,
    ),
    "holds.8 lengths are all one": Wrong(
        "The node takes every chunk for one as long as most are.", change=lengths_are_all_one
    ),
    "chunks.4 says the first of all": Wrong(
        "The client says of each block that it allocates that it is for the first chunk.",
        change=says_the_first_of_all,
    ),
    "chunks.6 pins last": Wrong(
        "The node ends no pin before its connection does.", change=pins_last
    ),
    "chunks.7 takes what fits nowhere": Wrong(
        "The client asks for any chunk, and takes the node's no for an answer like others.",
        change=takes_what_fits_nowhere,
    ),
}
globals().update(broken(__name__, NodeContract, None, ROWS))
