"""Directories that name the wrong nodes, forget some, or believe the dead."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.directory.double import DictDirectory
from hexkv.contracts.doubles import ManualClock
from hexkv.ports import Member


class DictDirectoryContract(DirectoryContract):
    Make = DictDirectory

    @pytest.fixture
    def clock(self):
        return ManualClock()

    @pytest.fixture
    def whole(self, clock):
        return self.Make(clock)

    @pytest.fixture
    def seen(self, whole):
        return lambda name: whole

    @pytest.fixture
    def elapse(self, clock):
        return clock.advance

    @pytest.fixture
    def forget(self, whole):
        return whole.forget

    @pytest.fixture
    def stalled(self, whole):
        @contextmanager
        def stalled():
            whole.answers = False
            yield
            whole.answers = True

        return stalled


class TestAnswersForKnownKeysFirst(DictDirectoryContract):
    """Keys that somebody holds are answered before the others."""

    breaks = "directory.1"

    class Make(DictDirectory):
        def locate(self, keys, deadline):
            return sorted(super().locate(keys, deadline), key=len, reverse=True)


class TestIgnoresRemovals(DictDirectoryContract):
    """What was once added stays."""

    breaks = "directory.2"

    class Make(DictDirectory):
        def report(self, member, report, deadline):
            return super().report(member, report._replace(removed=()), deadline)


class TestRepeatsReports(DictDirectoryContract):
    """An old report that comes again is noted again."""

    breaks = "directory.3"

    class Make(DictDirectory):
        def report(self, member, report, deadline):
            node = self.nodes.get(member.name)
            if node is not None and report.sequence <= node.sequence:
                node.sequence = report.sequence - 1
            return super().report(member, report, deadline)


class TestOverlooksGaps(DictDirectoryContract):
    """A report counts whatever came before it."""

    breaks = "directory.4"

    class Make(DictDirectory):
        def report(self, member, report, deadline):
            node = self.nodes.get(member.name)
            if node is not None and report.sequence > node.sequence:
                node.sequence = report.sequence - 1
            return super().report(member, report, deadline)


class TestForgetsNamespaces(DictDirectoryContract):
    """Digests alone are the keys."""

    breaks = "directory.5"

    class Make(DictDirectory):
        def join(self, member, snapshot, deadline):
            return super().join(member, ([k[16:] for k in batch] for batch in snapshot), deadline)

        def locate(self, keys, deadline):
            return super().locate([key[16:] for key in keys], deadline)


class TestKeepsTheLastBatch(DictDirectoryContract):
    """Of a long snapshot the last batch is all there is."""

    breaks = "directory.6"

    class Make(DictDirectory):
        def join(self, member, snapshot, deadline):
            return super().join(member, list(snapshot)[-1:], deadline)


class TestTakesAnySize(DictDirectoryContract):
    """A batch has no bound."""

    breaks = "directory.7"

    class Make(DictDirectory):
        def join(self, member, snapshot, deadline):
            small = ([key] for batch in snapshot for key in batch)
            return super().join(member, small, deadline)


class TestKeepsOldSnapshots(DictDirectoryContract):
    """A node that joins again keeps what it held before."""

    breaks = "directory.8"

    class Make(DictDirectory):
        def join(self, member, snapshot, deadline):
            known = self.nodes.get(member.name)
            old = set() if known is None else known.keys
            joined = super().join(member, snapshot, deadline)
            if joined and known is not None and known.member == member:
                self.nodes[member.name].keys |= old
            return joined


class TestLosesAddresses(DictDirectoryContract):
    """Generations are cut to 32 bits."""

    breaks = "directory.9"

    class Make(DictDirectory):
        def members(self, deadline):
            found = super().members(deadline)
            return [Member(it.name, it.generation % 2**32 or 1, it.address) for it in found]


class TestKeepsThoseWhoLeft(DictDirectoryContract):
    """A farewell is a sign of life."""

    breaks = "directory.10"

    class Make(DictDirectory):
        def leave(self, member, deadline):
            self._heard(member, deadline)


class TestBelievesEarlierLives(DictDirectoryContract):
    """Whoever joins last is the node, whatever its generation is."""

    breaks = "directory.11"

    class Make(DictDirectory):
        def join(self, member, snapshot, deadline):
            self.nodes.pop(member.name, None)
            return super().join(member, snapshot, deadline)


class TestBelievesTheDead(DictDirectoryContract):
    """Nobody is ever silent for too long."""

    breaks = "directory.12"

    class Make(DictDirectory):
        def _alive(self):
            return list(self.nodes.values())


class TestKeepsSilentNodesOut(DictDirectoryContract):
    """A node that was silent is told that all is well, and is not located again."""

    breaks = "directory.13"

    class Make(DictDirectory):
        def _heard(self, member, deadline):
            node = self.nodes.get(member.name)
            alive = node in self._alive()
            heard = None if node is None else node.heard
            found = super()._heard(member, deadline)
            if found is not None and not alive:
                found.heard = heard
            return found


class TestHidesThatItForgot(DictDirectoryContract):
    """A node that it does not know is told that all is well."""

    breaks = "directory.14"

    class Make(DictDirectory):
        def heartbeat(self, member, sequence, deadline):
            known = super().heartbeat(member, sequence, deadline)
            return known or member.name not in self.nodes


class TestSaysNobodyWhereNothingWasHeard(DictDirectoryContract):
    """Without an answer, nobody holds anything."""

    breaks = "directory.15"

    class Make(DictDirectory):
        def locate(self, keys, deadline):
            return super().locate(keys, deadline) if self.answers else [()] * len(keys)


class TestNotesWhatCameTooLate(DictDirectoryContract):
    """A farewell after its deadline is noted, and then said to be late."""

    breaks = "directory.16"

    class Make(DictDirectory):
        def leave(self, member, deadline):
            if self.answers:
                self.nodes.pop(member.name, None)
            super().leave(member, deadline)


class TestLosesReportsThatMeet(DictDirectoryContract):
    """One thread's report overwrites another's."""

    breaks = "directory.17"

    class Make(DictDirectory):
        def report(self, member, report, deadline):
            before = {name: set(node.keys) for name, node in self.nodes.items()}
            known = super().report(member, report, deadline)
            time.sleep(0.001)
            for name in before.keys() - {member.name}:
                self.nodes[name].keys = before[name]
            return known


class TestAnswersAfterTheEnd(DictDirectoryContract):
    """Once closed, it says as before who is there."""

    breaks = "directory.18"

    class Make(DictDirectory):
        def members(self, deadline):
            if self._closed:
                return [node.member for node in self._alive()]
            return super().members(deadline)


class TestForgetsTheLivesOfTheSilent(DictDirectoryContract):
    """No life is known of a node that gives no sign of it."""

    breaks = "directory.19"

    class Make(DictDirectory):
        def last_life(self, name, deadline):
            alive = self.members(deadline)
            return next((it.generation for it in alive if it.name == name), 0)
