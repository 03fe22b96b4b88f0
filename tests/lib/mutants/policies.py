"""Policies that forget, invent, dither or remember too much."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from hexkv.contracts.policy import PolicyContract


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


class TestSpellsAMethodInAnotherWay(ListContract):
    """The port's method is missing."""

    breaks = "policy.1"

    class Make(ListPolicy):
        victims = None

        def __getattribute__(self, name):
            if name == "victims":
                raise AttributeError(name)
            return super().__getattribute__(name)


class TestWantsAKey(ListContract):
    """The first key of an empty call is looked at."""

    breaks = "policy.2"

    class Make(ListPolicy):
        def touch(self, keys):
            assert keys[0] in self.order


class TestForgetsOne(ListContract):
    """The newest chunk is never a victim."""

    breaks = "policy.3"

    class Make(ListPolicy):
        def victims(self):
            newest = next(reversed(self.order), None)
            return (key for key in self.order if key != newest)


class TestAdmitsWhatIsTouched(ListContract):
    """A chunk that is touched is a victim twice."""

    breaks = "policy.3"

    class Make(ListPolicy):
        def __init__(self):
            super().__init__()
            self.touched = []

        def touch(self, keys):
            self.touched.extend(keys)

        def victims(self):
            yield from super().victims()
            yield from (key for key in self.touched if key in self.order)


class TestPopsWhatItShows(ListContract):
    """A victim that was looked at is gone."""

    breaks = "policy.4"

    class Make(ListPolicy):
        def victims(self):
            while self.order:
                yield self.order.popitem()[0]


class TestTurnsWhenLookedAt(ListContract):
    """Each look at the victims changes their order."""

    breaks = "policy.4"

    class Make(ListPolicy):
        def victims(self):
            seen = list(self.order)
            self.order = dict.fromkeys(reversed(seen))
            return iter(seen)


class TestListsAllForOne(ListContract):
    """All victims are sorted when one is wanted."""

    breaks = "policy.5"

    class Make(ListPolicy):
        def victims(self):
            return iter(sorted(self.order, reverse=True))


class TestKeepsTheEvicted(ListContract):
    """A chunk that was evicted stays a victim."""

    breaks = "policy.6"

    class Make(ListPolicy):
        def drop(self, key, *, evicted):
            if not evicted:
                super().drop(key, evicted=evicted)


class TestKeepsTheDeleted(ListContract):
    """A chunk that was deleted stays a victim."""

    breaks = "policy.6"

    class Make(ListPolicy):
        def drop(self, key, *, evicted):
            if evicted:
                super().drop(key, evicted=evicted)


class TestTakesAChunkOnce(ListContract):
    """What has left is not taken again."""

    breaks = "policy.7"

    class Make(ListPolicy):
        def __init__(self):
            super().__init__()
            self.left = set()

        def admit(self, keys, after):
            super().admit([key for key in keys if key not in self.left], after)

        def drop(self, key, *, evicted):
            self.order.pop(key, None)
            self.left.add(key)


class TestEvictsBeginningsFirst(ListContract):
    """The oldest chunk goes first, also within one prompt."""

    breaks = "policy.8"

    class Make(ListPolicy):
        def victims(self):
            return iter(self.order)


class TestNeedsTheParent(ListContract):
    """A chunk is filed under the one before it, which must be there."""

    breaks = "policy.9"

    class Make(ListPolicy):
        def admit(self, keys, after):
            assert after is None or after in self.order
            super().admit(keys, after)


class TestKeepsTheCallersList(ListContract):
    """The lists of keys are kept as they are."""

    breaks = "policy.10"

    class Make(ListPolicy):
        def __init__(self):
            super().__init__()
            self.batches = []

        def admit(self, keys, after):
            self.batches.append(keys)

        def victims(self):
            return (key for batch in reversed(self.batches) for key in reversed(batch))


class TestThrowsDice(ListContract):
    """The victim is any chunk."""

    breaks = "policy.11"

    class Make(ListPolicy):
        def victims(self):
            return iter(random.sample(list(self.order), len(self.order)))


class TestRemembersAllGhosts(ListContract):
    """Every chunk that ever was here is remembered."""

    breaks = "policy.12"

    class Make(ListPolicy):
        def __init__(self):
            super().__init__()
            self.ghosts = {}

        def drop(self, key, *, evicted):
            super().drop(key, evicted=evicted)
            self.ghosts[key] = len(self.ghosts)


class TestSearchesForEveryVictim(ListContract):
    """Every chunk is looked at to find the worst."""

    breaks = "policy.13"

    class Make(ListPolicy):
        def victims(self):
            worst = max(self.order, default=None)
            return (key for key in reversed(self.order) if worst is not None)


class TestHidesAllButTheFirstVictims(ListContract):
    """Nobody needs more than a few at a time."""

    breaks = "policy.3"

    class Make(ListPolicy):
        def victims(self):
            return islice(super().victims(), 1000)


class TestStopsWhereTheTouchedBegin(ListContract):
    """What was touched lies in another list, which is looked at when it is short."""

    breaks = "policy.3"

    class Make(ListPolicy):
        def __init__(self):
            super().__init__()
            self.hot = set()

        def touch(self, keys):
            self.hot.update(keys)

        def drop(self, key, *, evicted):
            super().drop(key, evicted=evicted)
            self.hot.discard(key)

        def victims(self):
            if len(self.hot) < 256:
                return super().victims()
            return (key for key in reversed(self.order) if key not in self.hot)
