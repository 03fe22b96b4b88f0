"""Stores that do what they are asked, and answer in other words than the port's."""

from __future__ import annotations

from dict_store import CapableStore, DictContract, DictStore
from hexkv.ports import PAGE, Failed, Hit, Miss, Stored
from mutants.rows import Wrong, broken


def misses_are_none(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
    return outcome if isinstance(outcome, Hit) else None


def reads_are_bytes(self, real, keys, sink, deadline):
    real(keys, sink, deadline)
    return [self.fetch(key) or Miss() for key in keys]


def reads_lazily(self, keys, sink, deadline):
    return (self.read_one(i, key, sink, deadline) for i, key in enumerate(keys))


def answers_with_the_class(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
    return outcome if isinstance(outcome, Hit) else Miss


def hits_have_their_size_as_text(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
    return Hit(str(outcome.size)) if isinstance(outcome, Hit) else outcome


def misses_for_a_reason_of_its_own(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
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


def fails_in_words(self, real, index, key, sink, deadline):
    outcome = real(index, key, sink, deadline)
    return outcome if isinstance(outcome, Hit) else Failed("not found")


def writes_answer_nothing(self, real, items, deadline):
    real(items, deadline)


def contains_is_a_dictionary(self, real, keys, deadline):
    return dict(zip(keys, real(keys, deadline), strict=True))


def deletes_without_a_word(self, real, keys, deadline):
    real(keys, deadline)


def sorts_the_batch_it_was_given(self, real, keys, sink, deadline):
    if isinstance(keys, list):
        keys.sort()
    return real(keys, sink, deadline)


def closes_with_an_answer(self, real):
    real()
    return True


def lists_sizes_as_text(self, real):
    for entry in real():
        yield entry._replace(size=str(entry.size))


def quarantine_says_how_many(self, real, keys, deadline):
    real(keys, deadline)
    return [True] * len(keys)


def ranges_are_counted(self, real, key, start, into, deadline):
    outcome = real(key, start, into, deadline)
    return outcome.size if isinstance(outcome, Hit) else 0


def keeps_and_says_so(self, real, keys, leases):
    real(keys, leases)
    return [True] * len(keys)


def lends_memory(self, real, keys, owner):
    leases = real(keys, owner)
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


DICT_STORE = {
    "L1.28 misses are none": Wrong("A miss is what ``dict.get`` gives.", read_one=misses_are_none),
    "L1.28 reads are bytes": Wrong("A read answers with what was read.", read=reads_are_bytes),
    "L1.28 reads lazily": Wrong("A batch is read while its answer is.", read=reads_lazily),
    "L1.28 answers with the class": Wrong("Nobody called it.", read_one=answers_with_the_class),
    "L1.28 hits have their size as text": Wrong(
        "A size comes as the protocol gives it.", read_one=hits_have_their_size_as_text
    ),
    "L1.28 misses for a reason of its own": Wrong(
        "A reason is any text.", read_one=misses_for_a_reason_of_its_own
    ),
    "L1.28 fails in words": Wrong("An error is a text.", read_one=fails_in_words),
    "L1.28 writes answer true": Wrong(
        "What was written is ``True``.",
        write_one=lambda self, real, item: isinstance(real(item), Stored),
    ),
    "L1.28 writes answer nothing": Wrong(
        "That there was no exception says enough.", write=writes_answer_nothing
    ),
    "L1.28 counts instead of saying": Wrong(
        "Whether a chunk is there is how often it is, as ``EXISTS`` answers.",
        has=lambda self, real, key: int(real(key)),
        read_one=lambda self, real, index, key, sink, deadline: real(index, key, sink, deadline),
    ),
    "L1.28 contains is a dictionary": Wrong(
        "Whether each key is there, by the key.", contains=contains_is_a_dictionary
    ),
    "L1.28 deletes without a word": Wrong(
        "Nobody learns what was there.", delete=deletes_without_a_word
    ),
    "L1.28 sorts the batch it was given": Wrong(
        "A batch is sorted in place, for the sake of the disk.", read=sorts_the_batch_it_was_given
    ),
    "L1.28 asks for sizes that are no numbers": Wrong(
        "A sink is asked for as many bytes as a text says.",
        size=lambda self, frame: float(len(frame)),
    ),
    "L1.28 closes with an answer": Wrong(
        "Closing says whether it went well.", close=closes_with_an_answer
    ),
}
globals().update(broken(__name__, DictContract, DictStore, DICT_STORE))


CAPABLE_STORE = {
    "L1.28 lists tuples": Wrong(
        "A scan lists what comes of the database.",
        scan=lambda self, real: (tuple(entry) for entry in real()),
    ),
    "L1.28 lists sizes as text": Wrong(
        "So does this one, with names for the columns.", scan=lists_sizes_as_text
    ),
    "L1.28 quarantine says how many": Wrong(
        "As ``delete`` would.", quarantine=quarantine_says_how_many
    ),
    "L1.28 ranges are counted": Wrong(
        "A range answers with how many bytes it read, as ``readinto`` does.",
        read_range=ranges_are_counted,
    ),
    "L1.28 keeps and says so": Wrong(
        "Keeping a lease answers whether it is kept.", put_lease=keeps_and_says_so
    ),
    "L1.28 lends memory": Wrong(
        "What is lent is the frame, not a lease on it.", get_lease=lends_memory
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, CAPABLE_STORE))
