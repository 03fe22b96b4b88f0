"""What peers get takes blocks of the pool: a call waits for them only while it holds none."""

from dict_store import ScanningStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.peers.lending.exchange import Exchange
from hexkv.peers.lending.lending import Lending, LendingRules
from hexkv.ports import Deadline, Peer, Stored, release_all
from rigging import CHUNK, FRAME, LAYOUT, tier

PROMPT = list(range(10 * CHUNK))
BLOCKS = 4


def lender(rig):
    """A cache with more chunks on a disk than its pool has blocks; their keys, and the disk lent.

    No call may wait for a block.
    """
    r = rig([tier("disk", ScanningStore({}))], slots=BLOCKS)
    r.engine.store(PROMPT, HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT))
    lending = Lending(r.engine.admin.stack, ["disk"], LendingRules(1 << 30))
    return r, r.engine.chunk_keys(PROMPT), lending


def forbid_waits(r):
    def wait(*_):
        raise AssertionError("a call that holds blocks waits for another one")

    r.pool._wait = wait


def test_a_peer_is_lent_as_many_chunks_as_there_are_blocks_for(rig):
    r, keys, lending = lender(rig)
    forbid_waits(r)
    lent = lending.lend(keys, "peer", Deadline.after(r.clock, 30))
    assert [lease is not None for lease in lent] == [True] * BLOCKS + [False] * 6
    release_all(lent[:BLOCKS])
    assert r.pool.ledger() == {}


def test_chunks_are_given_to_a_peer_in_pieces_where_there_are_few_blocks(rig):
    r, keys, lending = lender(rig)
    forbid_waits(r)

    class Channel:
        """A peer that takes whatever is offered."""

        most = 0

        def offer(self, peer, offers, deadline):
            self.most = max(self.most, len(offers))
            return [Stored(len(offer.lease.frame)) for offer in offers]

    channel = Channel()
    given = Exchange(lending, channel).push(Peer("peer:1"), keys, Deadline.after(r.clock, 30))
    assert given == [Stored(FRAME)] * len(keys)
    assert channel.most == BLOCKS
    assert r.pool.ledger() == {}
