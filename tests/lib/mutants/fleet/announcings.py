"""Announcements that are noted wrongly, or not ended."""

from __future__ import annotations

from threading import Condition

import pytest

from hexkv.contracts.announcing import AnnouncingContract
from hexkv.peers.pushing.announced import Announced
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.threads import Threads
from hexkv.ports import Deadline
from mutants.rows import Wrong, broken


class LateClock(SystemClock):
    """The system's, set forward."""

    ahead = 0.0

    def now(self):
        return super().now() + self.ahead


class AnnouncedContract(AnnouncingContract):
    Make = Announced

    @pytest.fixture
    def clock(self):
        return LateClock()

    @pytest.fixture
    def announced(self, clock):
        return self.Make(clock, Threads())

    @pytest.fixture
    def seen(self, announced):
        return announced.of

    @pytest.fixture
    def publish(self, announced):
        return lambda name, keys: announced.published(keys)

    @pytest.fixture
    def elapse(self, clock):
        def elapse(seconds):
            clock.ahead += seconds

        return elapse

    @pytest.fixture
    def vanish(self, announced):
        return announced.gone


def sorts_by_announcement(self, real, keys, group, deadline):
    return sorted(real(keys, group, deadline), reverse=True)


def overlooks_publishing(self, real, keys):
    real(keys if len(self) == 3 else [])


def withdraws_by_owner(self, real, client, owner):
    other = {"ada": "bob", "bob": "ada"}[client]
    real(other, owner)
    return real(client, owner)


def believes_the_last(self, real, client, owner, group, keys, seconds):
    self.published(keys)
    return real(client, owner, group, keys, seconds)


class TestHasNoTime(AnnouncedContract):
    """An announcement stands until somebody ends it."""

    breaks = "announcing.5"

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        monkeypatch.setattr(
            "hexkv.contracts.announcing.soon", lambda: Deadline.after(SystemClock(), 3.0)
        )

    class Make(Announced):
        def announce(self, client, owner, group, keys, seconds):
            return super().announce(client, owner, group, keys, seconds * 100)


def waits_for_the_dead_expect(self, real, keys, group, deadline):
    return real(keys, group, Deadline(deadline.clock, 0.0))


def forgets_all(self, client):
    self.published(list(self._entries))


def does_not_wait(self, real, keys, group, deadline):
    return real(keys, group, Deadline(deadline.clock, 0.0))


class WakesOne(Condition):
    """A condition of which one thread at a time learns."""

    def notify_all(self):
        self.notify(1)


def wakes_one_of_two(self, real, clock, executor):
    real(clock, executor)
    self._changed = WakesOne()


def folds_groups(self, real, keys, group, deadline):
    return real(keys, group.lower(), deadline)


def answers_each_key_once(self, real, keys, group, deadline):
    return real(list(dict.fromkeys(keys)), group, deadline)


ROWS = {
    "announcing.1 folds groups": Wrong(
        "Groups are names of hosts, in lower case.", expect=folds_groups
    ),
    "announcing.1 answers each key once": Wrong(
        "Equal keys have one answer.", expect=answers_each_key_once
    ),
    "announcing.1 forgets the group": Wrong(
        "An engine waits for its own ranks.",
        expect=lambda self, real, keys, group, deadline: real(keys, "", deadline),
    ),
    "announcing.1 sorts by announcement": Wrong(
        "The answer is in the order in which chunks were announced.", expect=sorts_by_announcement
    ),
    "announcing.2 overlooks publishing": Wrong(
        "Only who announced a chunk ends that, by publishing the first of its chunks.",
        published=overlooks_publishing,
    ),
    "announcing.3 withdraws by owner": Wrong(
        "What another client calls the same is withdrawn, too.", withdraw=withdraws_by_owner
    ),
    "announcing.4 believes the last": Wrong(
        "Who announces a chunk later takes it over.", announce=believes_the_last
    ),
    "announcing.6 waits for the dead": Wrong(
        "Nobody tells what a client announced that died.",
        gone=lambda self, client: None,
        expect=waits_for_the_dead_expect,
    ),
    "announcing.6 forgets all": Wrong(
        "The death of a client ends what everybody announced.", gone=forgets_all
    ),
    "announcing.7 wakes one of two": Wrong(
        "Of those that wait for one chunk the first alone goes on.", __init__=wakes_one_of_two
    ),
    "announcing.7 does not wait": Wrong("Whoever asks is answered at once.", expect=does_not_wait),
}
globals().update(broken(__name__, AnnouncedContract, Announced, ROWS))
