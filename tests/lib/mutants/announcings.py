"""Announcements that are noted wrongly, or not ended."""

from __future__ import annotations

import pytest

from hexkv.contracts.announcing import AnnouncingContract
from hexkv.core.peers.announced import Announced
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.threads import Threads
from hexkv.ports import Deadline


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


class TestForgetsTheGroup(AnnouncedContract):
    """An engine waits for its own ranks."""

    breaks = "announcing.1"

    class Make(Announced):
        def expect(self, keys, group, deadline):
            return super().expect(keys, "", deadline)


class TestSortsByAnnouncement(AnnouncedContract):
    """The answer is in the order in which chunks were announced."""

    breaks = "announcing.1"

    class Make(Announced):
        def expect(self, keys, group, deadline):
            return sorted(super().expect(keys, group, deadline), reverse=True)


class TestOverlooksPublishing(AnnouncedContract):
    """Only who announced a chunk ends that, by publishing the first of its chunks."""

    breaks = "announcing.2"

    class Make(Announced):
        def published(self, keys):
            super().published(keys if len(self) == 3 else [])


class TestWithdrawsByOwner(AnnouncedContract):
    """What another client calls the same is withdrawn, too."""

    breaks = "announcing.3"

    class Make(Announced):
        def withdraw(self, client, owner):
            other = {"ada": "bob", "bob": "ada"}[client]
            super().withdraw(other, owner)
            return super().withdraw(client, owner)


class TestBelievesTheLast(AnnouncedContract):
    """Who announces a chunk later takes it over."""

    breaks = "announcing.4"

    class Make(Announced):
        def announce(self, client, owner, group, keys, seconds):
            self.published(keys)
            return super().announce(client, owner, group, keys, seconds)


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


class TestWaitsForTheDead(AnnouncedContract):
    """Nobody tells what a client announced that died."""

    breaks = "announcing.6"

    class Make(Announced):
        def gone(self, client):
            pass

        def expect(self, keys, group, deadline):
            return super().expect(keys, group, Deadline(deadline.clock, 0.0))


class TestForgetsAll(AnnouncedContract):
    """The death of a client ends what everybody announced."""

    breaks = "announcing.6"

    class Make(Announced):
        def gone(self, client):
            self.published(list(self._entries))


class TestDoesNotWait(AnnouncedContract):
    """Whoever asks is answered at once."""

    breaks = "announcing.7"

    class Make(Announced):
        def expect(self, keys, group, deadline):
            return super().expect(keys, group, Deadline(deadline.clock, 0.0))
