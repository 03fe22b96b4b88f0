"""Services of chunks that lose what a request has of them, or keep what it gave back."""

import pytest

from hexkv.contracts.chunk_cache.double import HeapHold, HeapService
from hexkv.contracts.chunk_cache.service import ChunkServiceContract
from hexkv.ports import HoldTerms, Reason

PLAIN = HoldTerms()


class HeapServiceContract(ChunkServiceContract):
    Make = HeapService

    @pytest.fixture
    def service(self):
        return self.Make(16)


class TestTurnsPassingHolds(HeapServiceContract):
    """A passing hold brings its chunks in the opposite order."""

    breaks = "service.1"

    class Make(HeapService):
        def hold(self, wanted, owner, deadline, terms=PLAIN):
            turned = wanted[::-1] if terms.passing else wanted
            return super().hold(turned, owner, deadline, terms)


class TestForgetsWhatIsAhead(HeapServiceContract):
    """A hold that is taken has lost its chunks."""

    breaks = "service.2"

    class Make(HeapService):
        def hold(self, wanted, owner, deadline, terms=PLAIN):
            hold = super().hold(wanted, owner, deadline, terms)
            if not terms.ahead:
                return hold
            hold.release()
            return HeapHold([None] * len(wanted), [Reason.ABSENT] * len(wanted))


class TestBringsNoMoreThanTheFirstGroup(HeapServiceContract):
    """Of a layered hold the second group does not come."""

    breaks = "service.3"

    class Make(HeapService):
        class Hold(HeapHold):
            def bring(self, group, deadline):
                return 0 if group else super().bring(group, deadline)

        def hold(self, wanted, owner, deadline, terms=PLAIN):
            found = [self._read(spec, owner) for spec in wanted]
            return self.Hold([lease for lease, _ in found], [why for _, why in found])


class TestKeepsLeasesThatWentOver(HeapServiceContract):
    """Leases that were published for good stay their owner's."""

    breaks = "service.4"

    class Make(HeapService):
        def publish(self, leases, after, deadline, *, transfer=False, keep=None, wait=True):
            return super().publish(leases, after, deadline, keep=keep, wait=wait)


class TestStoresAgainWithoutAQuery(HeapServiceContract):
    """Without a query nothing counts as stored."""

    breaks = "service.5"

    class Make(HeapService):
        def stored(self, keys, after, owner, deadline, *, below=0, asks=True):
            here = super().stored(keys, after, owner, deadline, below=below, asks=asks)
            return [there and asks for there in here]


class TestSweepsNothing(HeapServiceContract):
    """Who is gone keeps its memory."""

    breaks = "service.6"

    class Make(HeapService):
        def sweep(self, owner):
            return self.ledger().get(owner, 0)
