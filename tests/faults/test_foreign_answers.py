"""What the engine makes of answers that no port names: a failure that says so, never KV."""

import logging
from contextlib import contextmanager
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dict_store import CapableStore, DictStore
from hexkv.contracts.doubles import HeapBlock
from hexkv.contracts.kit.cases import each
from hexkv.core.tiers.index.indexes import Unindexed
from hexkv.ports import (
    Corrupt,
    Entry,
    Failed,
    Hit,
    Miss,
    Stored,
)
from prompts import PROMPT, computed, empty
from rigging import FRAME, LAYOUT, rigging, tier


class Likeness(Hit):
    """Looks like a hit."""


class Liar(list):
    """Says that it is as long as it should be."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def __len__(self):
        return self.length


class Breaks:
    """A sequence that cannot be read to its end."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise RuntimeError("no such row")


class Endless:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return None


ELEMENTS = {
    "one": 1,
    "bytes": b"x",
    "text": "hit",
    "object": object(),
    "a class": Hit,
    "half a hit": object.__new__(Hit),
    "a likeness": Likeness(FRAME),
    "a hit of a bool": Hit(True),
    "a hit of less than nothing": Hit(-1),
    "a hit of everything": Hit(1 << 70),
    "a hit of text": Hit("4096"),
    "a hit of a number like it": Hit(float(FRAME)),
    "stored a byte": Stored(1),
    "stored text": Stored("all"),
    "a miss for no reason": Miss("absent"),
    "a failure without error": Failed("timeout"),
    "an interrupt": Failed(KeyboardInterrupt()),
    "corrupt somehow": Corrupt(3),
    "a tuple": (b"k" * 48, 10, 0.0),
    "a short key": Entry(b"k", 10, 0.0),
    "a text for a key": Entry("k" * 48, 10, 0.0),
    "a negative size": Entry(b"k" * 48, -1, 0.0),
    "a true size": Entry(b"k" * 48, True, 0.0),
    "a size beyond all": Entry(b"k" * 48, 1 << 70, 0.0),
    "no time": Entry(b"k" * 48, 10, float("nan")),
    "a lease of elsewhere": HeapBlock(bytes(FRAME)).lease(),
}
"""None of these is an answer for one chunk, whatever was asked."""

WHOLES = {
    "a bool": lambda good: True,
    "a number": lambda good: 7,
    "bytes": lambda good: b"\1" * 16,
    "text": lambda good: "yes",
    "an object": lambda good: object(),
    "a class": lambda good: list,
    "a generator": lambda good: (one for one in [object()]),
    "one more": lambda good: [*good, *good, None],
    "a liar": lambda good: Liar(len(good)),
    "a break": lambda good: Breaks(),
    "no end": lambda good: Endless(),
    "a dictionary": lambda good: dict.fromkeys(map(object.__repr__, map(id, good)), True) or None,
}

BATCHES = ("contains", "read", "write", "delete")
METHODS = (*BATCHES, "read_range", "scan", "quarantine", "close", "get_lease", "put_lease")


class Foreign(DictStore):
    """Does what it is asked, and answers one kind of question with something else."""

    def __init__(self, method, answer, *, works=True):
        super().__init__({})
        self.method = method
        self.answer = answer
        self.works = works
        self.asked = 0

    def _say(self, method, good):
        if method != self.method:
            return good() if callable(good) else good
        self.asked += 1
        found = good() if callable(good) else good
        return self.answer(found)

    def contains(self, keys, deadline):
        return self._say("contains", lambda: super(Foreign, self).contains(keys, deadline))

    def read(self, keys, sink, deadline):
        def good():
            if self.method == "read" and not self.works:
                return [Hit(FRAME)] * len(keys)
            return super(Foreign, self).read(keys, sink, deadline)

        return self._say("read", good)

    def write(self, items, deadline):
        return self._say("write", lambda: super(Foreign, self).write(items, deadline))

    def delete(self, keys, deadline):
        return self._say("delete", lambda: super(Foreign, self).delete(keys, deadline))

    def close(self):
        return self._say("close", super().close)


class ForeignDisk(Foreign):
    def scan(self):
        return self._say("scan", lambda: iter([Entry(k, len(f), 1.0) for k, f in self.kept()]))

    def kept(self):
        return list(self.medium.items())

    def quarantine(self, keys, deadline):
        return self._say("quarantine", lambda: [self.forget(key) for key in keys] and None)

    def read_range(self, key, start, into, deadline):
        def good():
            if self.method == "read_range" and not self.works:
                return Hit(len(into))
            return CapableStore.read_range(self, key, start, into, deadline)

        return self._say("read_range", good)


class ForeignMemory(Foreign):
    def __init__(self, method, answer, *, works=True):
        super().__init__(method, answer, works=works)
        self.leases = {}

    def put_lease(self, keys, leases):
        return self._say("put_lease", lambda: CapableStore.put_lease(self, keys, leases))

    def get_lease(self, keys, owner):
        shares = CapableStore.get_lease(self, keys, owner)
        answer = self._say("get_lease", shares)
        said = set(map(id, answer)) if type(answer) is list else set()
        for share in shares:
            if share is not None and id(share) not in said:
                share.release()  # what it does not lend it may not hold in the borrower's name
        return answer

    def let_go(self, key):
        return CapableStore.let_go(self, key)

    def forget(self, key):
        return self.let_go(key) | super().forget(key)

    def close(self):
        for key in list(self.leases):
            self.let_go(key)
        return super().close()


@contextmanager
def listening():
    """What hexkv logs meanwhile."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("hexkv")
    log.addHandler(handler)
    try:
        yield records
    finally:
        log.removeHandler(handler)


@st.composite
def foreign(draw):
    """A method, and how it answers instead: of the wrong kind as a whole, or for some chunk."""
    method = draw(st.sampled_from(METHODS))
    single = method in ("read_range", "quarantine", "close", "put_lease")
    name = draw(st.sampled_from(sorted({*WHOLES, *ELEMENTS} if single else WHOLES)))
    if single:
        what = WHOLES.get(name)
        value = ELEMENTS.get(name)
        return method, (lambda good: value if what is None else what([None]))
    if draw(st.booleans()):
        return method, lambda good: WHOLES[name](list(good))
    element = ELEMENTS[draw(st.sampled_from(sorted(ELEMENTS)))]
    place = draw(st.integers(0, 9))

    def answer(good):
        rows = list(good)
        if method == "scan":
            return iter([*rows, element])
        rows[place % len(rows)] = element
        return rows

    return method, answer


@settings(max_examples=25, deadline=None)
@given(foreign(), st.booleans())
def test_a_foreign_answer_is_a_failure_that_names_the_tier_and_never_kv(drawn, works):
    method, answer = drawn
    kind = ForeignMemory if method in ("get_lease", "put_lease") else ForeignDisk
    store = kind(method, answer, works=works)
    place = tier("abroad", store)
    place = replace(place, index=Unindexed()) if method == "contains" else place
    with rigging() as rig, listening() as said:
        r = rig([place])
        for turn in range(2):
            r.engine.store(PROMPT, computed())
            window = empty()
            got = r.engine.retrieve(PROMPT, window)
            assert window.agrees(computed(), got.hit_tokens)
            window = empty()
            with r.engine.retrieve_layers(PROMPT, window) as layers:
                assert list(layers) == list(range(LAYOUT.layers))
            assert window.agrees(computed(), layers.result().hit_tokens)
            for key in list(store.medium)[:2] if turn == 0 else ():
                store.medium[key] = bytes(FRAME)
            assert r.engine.lookup(PROMPT).hit_tokens >= 0
            assert r.engine.explain(PROMPT)
        r.engine.clear(PROMPT)
        assert set(r.engine.health().leases) <= {"store"}
        r.engine.close()
        health = r.engine.health()
    if store.asked:
        assert health.tiers[0].failures
        assert any("abroad" in one.getMessage() and method in one.getMessage() for one in said), (
            method
        )
    assert store.asked or method == "delete"


class Numpy:
    """What numpy answers with for a boolean."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


def test_booleans_of_numpy_pass_for_some_and_what_is_merely_true_does_not(rig):
    def found(answer):
        place = tier("abroad", ForeignDisk("contains", answer))
        place = replace(place, index=Unindexed())
        r = rig([place])
        r.engine.store(PROMPT, computed())
        return r.engine.lookup(PROMPT).hit_tokens, r.tiers["abroad"].calls.failures > 0

    assert found(lambda good: [Numpy(one) for one in good]) == (160, False)
    assert found(lambda good: [int(one) for one in good]) == (0, True)


class Mean(ForeignMemory):
    """A store in memory that lends what it should not."""

    def __init__(self, how):
        super().__init__("", None)
        self.how = how

    def get_lease(self, keys, owner):
        return self.how(self, keys, owner)


def swapped(store, keys, owner):
    leases = CapableStore.get_lease(store, keys, owner)
    return leases[1:] + leases[:1]


def its_own(store, keys, owner):
    return [store.leases.get(key) for key in keys]


def one_too_many(store, keys, owner):
    get_lease = CapableStore.get_lease
    return [*get_lease(store, keys, owner), *get_lease(store, keys[:1], owner)]


def shortened(store, keys, owner):
    leases = CapableStore.get_lease(store, keys, owner)
    for lease in leases:
        if lease is not None:
            lease.shrink(17)
    return leases


def released(store, keys, owner):
    leases = CapableStore.get_lease(store, keys, owner)
    for lease in leases:
        if lease is not None:
            lease.release()
    return leases


@each("how", [swapped, its_own, one_too_many, shortened, released])
def test_a_lent_block_is_a_new_share_of_the_very_chunk(rig, how):
    store = Mean(how)
    place = tier("abroad", store)
    r = rig([place])
    r.engine.store(PROMPT, computed())
    window = empty()
    got = r.engine.retrieve(PROMPT, window)
    assert window.agrees(computed(), got.hit_tokens)
    assert got.hit_tokens == 0
    assert r.tiers["abroad"].calls.failures
    assert set(r.engine.health().leases) == {"abroad store"}


class BrokenText(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_error_that_cannot_say_what_it_is_is_a_failure_like_any_other(rig):
    place = tier("abroad", ForeignDisk("read", lambda good: [Failed(BrokenText())] * len(good)))
    r = rig([place])
    r.engine.store(PROMPT, computed())
    assert r.engine.retrieve(PROMPT, empty()).misses["failed"] == 1
    assert "BrokenText" in str(r.engine.explain(PROMPT))
