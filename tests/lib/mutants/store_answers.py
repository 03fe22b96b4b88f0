"""Stores that do what they are asked, and answer in other words than the port's."""

from __future__ import annotations

from dict_store import CapableStore, DictContract, DictStore
from hexkv.ports import PAGE, Failed, Hit, Miss, Stored


class TestMissesAreNone(DictContract):
    """A miss is what ``dict.get`` gives."""

    breaks = "L1.28"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            return outcome if isinstance(outcome, Hit) else None


class TestReadsAreBytes(DictContract):
    """A read answers with what was read."""

    breaks = "L1.28"

    class Make(DictStore):
        def read(self, keys, sink, deadline):
            super().read(keys, sink, deadline)
            return [self.fetch(key) or Miss() for key in keys]


class TestReadsLazily(DictContract):
    """A batch is read while its answer is."""

    breaks = "L1.28"

    class Make(DictStore):
        def read(self, keys, sink, deadline):
            return (self.read_one(i, key, sink, deadline) for i, key in enumerate(keys))


class TestAnswersWithTheClass(DictContract):
    """Nobody called it."""

    breaks = "L1.28"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            return outcome if isinstance(outcome, Hit) else Miss


class TestHitsHaveTheirSizeAsText(DictContract):
    """A size comes as the protocol gives it."""

    breaks = "L1.28"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            return Hit(str(outcome.size)) if isinstance(outcome, Hit) else outcome


class TestMissesForAReasonOfItsOwn(DictContract):
    """A reason is any text."""

    breaks = "L1.28"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            return outcome if isinstance(outcome, Hit) else Miss("not here")


class TestSubclassesOutcomes(DictContract):
    """An outcome that knows more than the port's."""

    breaks = "L1.28"

    class Make(DictStore):
        class Found(Hit):
            """With a place for notes."""

        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            return self.Found(outcome.size) if isinstance(outcome, Hit) else outcome


class TestFailsInWords(DictContract):
    """An error is a text."""

    breaks = "L1.28"

    class Make(DictStore):
        def read_one(self, index, key, sink, deadline):
            outcome = super().read_one(index, key, sink, deadline)
            return outcome if isinstance(outcome, Hit) else Failed("not found")


class TestWritesAnswerTrue(DictContract):
    """What was written is ``True``."""

    breaks = "L1.28"

    class Make(DictStore):
        def write_one(self, item):
            return isinstance(super().write_one(item), Stored)


class TestWritesAnswerNothing(DictContract):
    """That there was no exception says enough."""

    breaks = "L1.28"

    class Make(DictStore):
        def write(self, items, deadline):
            super().write(items, deadline)


class TestCountsInsteadOfSaying(DictContract):
    """Whether a chunk is there is how often it is, as ``EXISTS`` answers."""

    breaks = "L1.28"

    class Make(DictStore):
        def has(self, key):
            return int(super().has(key))

        def read_one(self, index, key, sink, deadline):
            return super().read_one(index, key, sink, deadline)


class TestContainsIsADictionary(DictContract):
    """Whether each key is there, by the key."""

    breaks = "L1.28"

    class Make(DictStore):
        def contains(self, keys, deadline):
            return dict(zip(keys, super().contains(keys, deadline), strict=True))


class TestDeletesWithoutAWord(DictContract):
    """Nobody learns what was there."""

    breaks = "L1.28"

    class Make(DictStore):
        def delete(self, keys, deadline):
            super().delete(keys, deadline)


class TestSortsTheBatchItWasGiven(DictContract):
    """A batch is sorted in place, for the sake of the disk."""

    breaks = "L1.28"

    class Make(DictStore):
        def read(self, keys, sink, deadline):
            if isinstance(keys, list):
                keys.sort()
            return super().read(keys, sink, deadline)


class TestAsksForSizesThatAreNoNumbers(DictContract):
    """A sink is asked for as many bytes as a text says."""

    breaks = "L1.28"

    class Make(DictStore):
        def size(self, frame):
            return float(len(frame))


class TestClosesWithAnAnswer(DictContract):
    """Closing says whether it went well."""

    breaks = "L1.28"

    class Make(DictStore):
        def close(self):
            super().close()
            return True


class TestListsTuples(DictContract):
    """A scan lists what comes of the database."""

    breaks = "L1.28"

    class Make(CapableStore):
        def scan(self):
            return (tuple(entry) for entry in super().scan())


class TestListsSizesAsText(DictContract):
    """So does this one, with names for the columns."""

    breaks = "L1.28"

    class Make(CapableStore):
        def scan(self):
            for entry in super().scan():
                yield entry._replace(size=str(entry.size))


class TestQuarantineSaysHowMany(DictContract):
    """As ``delete`` would."""

    breaks = "L1.28"

    class Make(CapableStore):
        def quarantine(self, keys, deadline):
            super().quarantine(keys, deadline)
            return [True] * len(keys)


class TestRangesAreCounted(DictContract):
    """A range answers with how many bytes it read, as ``readinto`` does."""

    breaks = "L1.28"

    class Make(CapableStore):
        def read_range(self, key, start, into, deadline):
            outcome = super().read_range(key, start, into, deadline)
            return outcome.size if isinstance(outcome, Hit) else 0


class TestKeepsAndSaysSo(DictContract):
    """Keeping a lease answers whether it is kept."""

    breaks = "L1.28"

    class Make(CapableStore):
        def put_lease(self, keys, leases):
            super().put_lease(keys, leases)
            return [True] * len(keys)


class TestLendsMemory(DictContract):
    """What is lent is the frame, not a lease on it."""

    breaks = "L1.28"

    class Make(CapableStore):
        def get_lease(self, keys, owner):
            leases = super().get_lease(keys, owner)
            for lease in filter(None, leases):
                lease.release()
            return [self.medium.get(key) for key in keys]


class TestLendsLeasesOfItsOwnMaking(DictContract):
    """A lease on a copy, which looks like one."""

    breaks = "L1.28"

    class Make(CapableStore):
        class Lease:
            """On memory of the store."""

            def __init__(self, frame):
                self.frame = memoryview(frame)
                self.payload = self.frame[PAGE:]

            def release(self):
                """Nothing to let go of."""

        def get_lease(self, keys, owner):
            return [self.Lease(self.medium[key]) if key in self.medium else None for key in keys]
