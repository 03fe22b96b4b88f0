"""Directories that name the wrong nodes, forget some, or believe the dead."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.directory.double import DictDirectory
from hexkv.contracts.doubles import ManualClock
from hexkv.ports import Member
from mutants.rows import Wrong, broken


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


def answers_for_known_keys_first(self, real, keys, deadline):
    return sorted(real(keys, deadline), key=len, reverse=True)


def ignores_removals(self, real, member, report, deadline):
    return real(member, report._replace(removed=()), deadline)


def repeats_reports(self, real, member, report, deadline):
    node = self.nodes.get(member.name)
    if node is not None and report.sequence <= node.sequence:
        node.sequence = report.sequence - 1
    return real(member, report, deadline)


def overlooks_gaps(self, real, member, report, deadline):
    node = self.nodes.get(member.name)
    if node is not None and report.sequence > node.sequence:
        node.sequence = report.sequence - 1
    return real(member, report, deadline)


def forgets_namespaces(self, real, member, snapshot, deadline):
    return real(member, ([k[16:] for k in batch] for batch in snapshot), deadline)


def keeps_the_last_batch(self, real, member, snapshot, deadline):
    return real(member, list(snapshot)[-1:], deadline)


def takes_any_size(self, real, member, snapshot, deadline):
    small = ([key] for batch in snapshot for key in batch)
    return real(member, small, deadline)


def keeps_old_snapshots(self, real, member, snapshot, deadline):
    known = self.nodes.get(member.name)
    old = set() if known is None else known.keys
    joined = real(member, snapshot, deadline)
    if joined and known is not None and known.member == member:
        self.nodes[member.name].keys |= old
    return joined


def loses_addresses(self, real, deadline):
    found = real(deadline)
    return [Member(it.name, it.generation % 2**32 or 1, it.address) for it in found]


def keeps_those_who_left(self, member, deadline):
    self._heard(member, deadline)


def believes_earlier_lives(self, real, member, snapshot, deadline):
    self.nodes.pop(member.name, None)
    return real(member, snapshot, deadline)


def keeps_silent_nodes_out(self, real, member, deadline):
    node = self.nodes.get(member.name)
    alive = node in self._alive()
    heard = None if node is None else node.heard
    found = real(member, deadline)
    if found is not None and not alive:
        found.heard = heard
    return found


def hides_that_it_forgot(self, real, member, sequence, deadline):
    known = real(member, sequence, deadline)
    return known or member.name not in self.nodes


def says_nobody_where_nothing_was_heard(self, real, keys, deadline):
    return real(keys, deadline) if self.answers else [()] * len(keys)


def notes_what_came_too_late(self, real, member, deadline):
    if self.answers:
        self.nodes.pop(member.name, None)
    real(member, deadline)


def loses_reports_that_meet(self, real, member, report, deadline):
    before = {name: set(node.keys) for name, node in self.nodes.items()}
    known = real(member, report, deadline)
    time.sleep(0.001)
    for name in before.keys() - {member.name}:
        self.nodes[name].keys = before[name]
    return known


def answers_after_the_end(self, real, deadline):
    if self._closed:
        return [node.member for node in self._alive()]
    return real(deadline)


def forgets_the_lives_of_the_silent(self, name, deadline):
    alive = self.members(deadline)
    return next((it.generation for it in alive if it.name == name), 0)


def keeps_the_first_address(self, real, member, snapshot, deadline):
    known = self.nodes.get(member.name)
    joined = real(member, snapshot, deadline)
    if joined and known is not None:
        node = self.nodes[member.name]
        node.member = replace(member, address=known.member.address)
    return joined


def keeps_the_first_generation(self, real, member, snapshot, deadline):
    known = self.nodes.get(member.name)
    joined = real(member, snapshot, deadline)
    if joined and known is not None:
        self.shown[member.name] = known.member
    return joined


def keeps_the_first_generation_locate(self, real, keys, deadline):
    return [[self.shown.get(it.name, it) for it in row] for row in real(keys, deadline)]


def takes_questions_for_signs_of_life(self, real, keys, deadline):
    found = real(keys, deadline)
    for member in {member for row in found for member in row}:
        self.nodes[member.name].heard = self.clock.now()
    return found


def takes_a_question_for_a_sign_of_life(self, real, keys, deadline):
    found = real(keys, deadline)
    for node in self.nodes.values():
        node.heard = max(node.heard, self.clock.now() - 0.5)
    return found


def replaces_at_the_end(self, real, member, snapshot, deadline):
    return real(member, list(snapshot), deadline)


def answers_each_key_once(self, real, keys, deadline):
    return real(list(dict.fromkeys(keys)), deadline)


def counts_how_often_it_has_a_chunk(self, real, member, snapshot, deadline):
    batches = [list(batch) for batch in snapshot]
    joined = real(member, batches, deadline)
    if joined:
        self.counts = Counter(key for batch in batches for key in batch)
    return joined


def counts_how_often_it_has_a_chunk_report(self, real, member, report, deadline):
    gone = []
    self.counts.update(report.added)
    for key in report.removed:
        self.counts[key] -= 1
        if self.counts[key] <= 0:
            gone.append(key)
    return real(member, report._replace(removed=gone), deadline)


def leaves_for_any_life(self, real, member, deadline):
    node = self.nodes.get(member.name)
    real(member if node is None else node.member, deadline)


def takes_reports_of_a_life_that_never_joined(self, real, member, deadline):
    node = self.nodes.get(member.name)
    later = node is not None and member.generation > node.member.generation
    return real(node.member if later else member, deadline)


def folds_names(self, real, member, snapshot, deadline):
    return real(replace(member, name=member.name.lower()), snapshot, deadline)


def compares_as_text(self, real, member, snapshot, deadline):
    known = self.nodes.get(member.name)
    if known is not None and str(known.member.generation) > str(member.generation):
        return False
    return real(member, snapshot, deadline)


def lowers_addresses(self, real, member, snapshot, deadline):
    return real(replace(member, address=member.address.lower()), snapshot, deadline)


ROWS = {
    "directory.9 compares generations as text": Wrong(
        "The ninth life of a node is later than its tenth.", join=compares_as_text
    ),
    "directory.9 lowers addresses": Wrong(
        "An address is kept in small letters.", join=lowers_addresses
    ),
    "directory.11 keeps the first address": Wrong(
        "A node that joins again is known by the address that it had first.",
        join=keeps_the_first_address,
    ),
    "directory.11 locates the first life": Wrong(
        "Chunks are located at the life of a node that was known first.",
        shown=None,
        __init__=lambda self, real, clock: (real(clock), setattr(self, "shown", {}))[0],
        join=keeps_the_first_generation,
        locate=keeps_the_first_generation_locate,
    ),
    "directory.12 takes an answer for a sign of life": Wrong(
        "A node that chunks are located at is not silent.",
        locate=takes_questions_for_signs_of_life,
    ),
    "directory.13 takes a question for a sign of life": Wrong(
        "A node that asks is not silent.", locate=takes_a_question_for_a_sign_of_life
    ),
    "directory.11 replaces at the end": Wrong(
        "The entries of the earlier membership stay until the snapshot is whole.",
        join=replaces_at_the_end,
    ),
    "directory.1 answers each key once": Wrong(
        "Equal keys of a question have one answer.", locate=answers_each_key_once
    ),
    "directory.2 counts how often it has a chunk": Wrong(
        "A chunk that was reported twice has to be removed twice.",
        join=counts_how_often_it_has_a_chunk,
        report=counts_how_often_it_has_a_chunk_report,
    ),
    "directory.11 leaves for any life": Wrong(
        "A farewell ends the membership of whatever life there is.", leave=leaves_for_any_life
    ),
    "directory.11 takes reports of a life that never joined": Wrong(
        "A later life continues the membership of the earlier one.",
        _heard=takes_reports_of_a_life_that_never_joined,
    ),
    "directory.9 folds names": Wrong("Names are those of hosts, in lower case.", join=folds_names),
    "directory.1 answers for known keys first": Wrong(
        "Keys that somebody holds are answered before the others.",
        locate=answers_for_known_keys_first,
    ),
    "directory.2 ignores removals": Wrong("What was once added stays.", report=ignores_removals),
    "directory.3 repeats reports": Wrong(
        "An old report that comes again is noted again.", report=repeats_reports
    ),
    "directory.4 overlooks gaps": Wrong(
        "A report counts whatever came before it.", report=overlooks_gaps
    ),
    "directory.5 forgets namespaces": Wrong(
        "Digests alone are the keys.",
        join=forgets_namespaces,
        locate=lambda self, real, keys, deadline: real([key[16:] for key in keys], deadline),
    ),
    "directory.6 keeps the last batch": Wrong(
        "Of a long snapshot the last batch is all there is.", join=keeps_the_last_batch
    ),
    "directory.7 takes any size": Wrong("A batch has no bound.", join=takes_any_size),
    "directory.8 keeps old snapshots": Wrong(
        "A node that joins again keeps what it held before.", join=keeps_old_snapshots
    ),
    "directory.9 loses addresses": Wrong(
        "Generations are cut to 32 bits.", members=loses_addresses
    ),
    "directory.10 keeps those who left": Wrong(
        "A farewell is a sign of life.", leave=keeps_those_who_left
    ),
    "directory.11 believes earlier lives": Wrong(
        "Whoever joins last is the node, whatever its generation is.", join=believes_earlier_lives
    ),
    "directory.12 believes the dead": Wrong(
        "Nobody is ever silent for too long.", _alive=lambda self: list(self.nodes.values())
    ),
    "directory.13 keeps silent nodes out": Wrong(
        "A node that was silent is told that all is well, and is not located again.",
        _heard=keeps_silent_nodes_out,
    ),
    "directory.14 hides that it forgot": Wrong(
        "A node that it does not know is told that all is well.", heartbeat=hides_that_it_forgot
    ),
    "directory.15 says nobody where nothing was heard": Wrong(
        "Without an answer, nobody holds anything.", locate=says_nobody_where_nothing_was_heard
    ),
    "directory.16 notes what came too late": Wrong(
        "A farewell after its deadline is noted, and then said to be late.",
        leave=notes_what_came_too_late,
    ),
    "directory.17 loses reports that meet": Wrong(
        "One thread's report overwrites another's.", report=loses_reports_that_meet
    ),
    "directory.18 answers after the end": Wrong(
        "Once closed, it says as before who is there.", members=answers_after_the_end
    ),
    "directory.19 forgets the lives of the silent": Wrong(
        "No life is known of a node that gives no sign of it.",
        last_life=forgets_the_lives_of_the_silent,
    ),
}
globals().update(broken(__name__, DictDirectoryContract, DictDirectory, ROWS))
