"""Policies that forget, invent, dither or remember too much."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from hexkv.contracts.policy import PolicyContract
from mutants.rows import Wrong, broken


class ListPolicy:
    """A correct policy for the broken ones to break: the newest chunk goes first."""

    def __init__(self):
        self.order = {}

    def admit(self, keys, after):
        for key in keys:
            self.order[key] = None

    def touch(self, keys):
        pass

    def drop(self, key, *, evicted):
        del self.order[key]

    def victims(self):
        return reversed(self.order)


class ListContract(PolicyContract):
    Make = ListPolicy

    @pytest.fixture
    def policy(self):
        return self.Make()


def spells_a_method_in_another_way(self, real, name):
    if name == "victims":
        raise AttributeError(name)
    return real(name)


def wants_a_key(self, keys):
    assert keys[0] in self.order


def forgets_one(self):
    newest = next(reversed(self.order), None)
    return (key for key in self.order if key != newest)


def admits_what_is_touched(self, real):
    real()
    self.touched = []


def admits_what_is_touched_touch(self, keys):
    self.touched.extend(keys)


def admits_what_is_touched_victims(self, real):
    yield from real()
    yield from (key for key in self.touched if key in self.order)


def pops_what_it_shows(self):
    while self.order:
        yield self.order.popitem()[0]


def turns_when_looked_at(self):
    seen = list(self.order)
    self.order = dict.fromkeys(reversed(seen))
    return iter(seen)


def keeps_the_evicted(self, real, key, *, evicted):
    if not evicted:
        real(key, evicted=evicted)


def keeps_the_deleted(self, real, key, *, evicted):
    if evicted:
        real(key, evicted=evicted)


def takes_a_chunk_once(self, real):
    real()
    self.left = set()


def takes_a_chunk_once_admit(self, real, keys, after):
    real([key for key in keys if key not in self.left], after)


def takes_a_chunk_once_drop(self, key, *, evicted):
    self.order.pop(key, None)
    self.left.add(key)


def needs_the_parent(self, real, keys, after):
    assert after is None or after in self.order
    real(keys, after)


def keeps_the_callers_list(self, real):
    real()
    self.batches = []


def keeps_the_callers_list_admit(self, keys, after):
    self.batches.append(keys)


def remembers_all_ghosts(self, real):
    real()
    self.ghosts = {}


def remembers_all_ghosts_drop(self, real, key, *, evicted):
    real(key, evicted=evicted)
    self.ghosts[key] = len(self.ghosts)


def searches_for_every_victim(self):
    worst = max(self.order, default=None)
    return (key for key in reversed(self.order) if worst is not None)


def stops_where_the_touched_begin(self, real):
    real()
    self.hot = set()


def stops_where_the_touched_begin_touch(self, keys):
    self.hot.update(keys)


def stops_where_the_touched_begin_drop(self, real, key, *, evicted):
    real(key, evicted=evicted)
    self.hot.discard(key)


def stops_where_the_touched_begin_victims(self, real):
    if len(self.hot) < 256:
        return real()
    return (key for key in reversed(self.order) if key not in self.hot)


ROWS = {
    "policy.1 spells a method in another way": Wrong(
        "The port's method is missing.",
        victims=None,
        __getattribute__=spells_a_method_in_another_way,
    ),
    "policy.2 wants a key": Wrong(
        "The first key of an empty call is looked at.", touch=wants_a_key
    ),
    "policy.3 forgets one": Wrong("The newest chunk is never a victim.", victims=forgets_one),
    "policy.3 admits what is touched": Wrong(
        "A chunk that is touched is a victim twice.",
        __init__=admits_what_is_touched,
        touch=admits_what_is_touched_touch,
        victims=admits_what_is_touched_victims,
    ),
    "policy.4 pops what it shows": Wrong(
        "A victim that was looked at is gone.", victims=pops_what_it_shows
    ),
    "policy.4 turns when looked at": Wrong(
        "Each look at the victims changes their order.", victims=turns_when_looked_at
    ),
    "policy.5 lists all for one": Wrong(
        "All victims are sorted when one is wanted.",
        victims=lambda self: iter(sorted(self.order, reverse=True)),
    ),
    "policy.6 keeps the evicted": Wrong(
        "A chunk that was evicted stays a victim.", drop=keeps_the_evicted
    ),
    "policy.6 keeps the deleted": Wrong(
        "A chunk that was deleted stays a victim.", drop=keeps_the_deleted
    ),
    "policy.7 takes a chunk once": Wrong(
        "What has left is not taken again.",
        __init__=takes_a_chunk_once,
        admit=takes_a_chunk_once_admit,
        drop=takes_a_chunk_once_drop,
    ),
    "policy.8 evicts beginnings first": Wrong(
        "The oldest chunk goes first, also within one prompt.",
        victims=lambda self: iter(self.order),
    ),
    "policy.9 needs the parent": Wrong(
        "A chunk is filed under the one before it, which must be there.", admit=needs_the_parent
    ),
    "policy.10 keeps the callers list": Wrong(
        "The lists of keys are kept as they are.",
        __init__=keeps_the_callers_list,
        admit=keeps_the_callers_list_admit,
        victims=lambda self: (key for batch in reversed(self.batches) for key in reversed(batch)),
    ),
    "policy.11 throws dice": Wrong(
        "The victim is any chunk.",
        victims=lambda self: iter(random.sample(list(self.order), len(self.order))),
    ),
    "policy.12 remembers all ghosts": Wrong(
        "Every chunk that ever was here is remembered.",
        __init__=remembers_all_ghosts,
        drop=remembers_all_ghosts_drop,
    ),
    "policy.13 searches for every victim": Wrong(
        "Every chunk is looked at to find the worst.", victims=searches_for_every_victim
    ),
    "policy.3 hides all but the first victims": Wrong(
        "Nobody needs more than a few at a time.", victims=lambda self, real: islice(real(), 1000)
    ),
    "policy.3 stops where the touched begin": Wrong(
        "What was touched lies in another list, which is looked at when it is short.",
        __init__=stops_where_the_touched_begin,
        touch=stops_where_the_touched_begin_touch,
        drop=stops_where_the_touched_begin_drop,
        victims=stops_where_the_touched_begin_victims,
    ),
}
globals().update(broken(__name__, ListContract, ListPolicy, ROWS))
