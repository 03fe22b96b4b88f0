"""Lives of a node are ordered by the directory, whatever clocks say."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.directory.cell import FORGOTTEN, Cell
from hexkv.adapters.directory.client import RemoteDirectory
from hexkv.adapters.directory.local import LocalDirectory
from hexkv.contracts.directory.double import DictDirectory
from hexkv.contracts.doubles import ManualClock, chunk_key, deadline
from hexkv.peers.lives import Life, new_generation
from hexkv.peers.reporting import Reporter
from hexkv.plugins.observing.held import HeldChunks
from hexkv.ports import CacheEvent, Change, Member, Peer, StoreUnreachable
from peers.peering import keys_of, peers_of, serving, soon
from processes import until
from servers.directory_servers import SECRET, Served

KEY = chunk_key("chunk")


class Node:
    """A life of a node that holds one chunk, and what it does for a directory turn by turn."""

    def __init__(self, directory, clock, generation=None, name="ada"):
        self.life = Life(Member(name, generation or new_generation()))
        held = HeldChunks()
        self.reporter = Reporter(directory, self.life, held, clock)
        held.apply(CacheEvent(Change.STORED, "memory", [KEY]), [self.reporter.queue])
        self.clock = clock

    def beat(self, times=1):
        for _ in range(times):
            self.clock.advance(1.0)
            self.reporter.turn()
        return self

    @property
    def generation(self):
        return self.life.member.generation


class Away(LocalDirectory):
    """A directory that may not answer, and may be started anew."""

    def __init__(self, clock):
        super().__init__(Cell(clock))
        self.clock, self.answers = clock, True

    def forget(self):
        self.cell = Cell(self.clock)

    def _check(self, until_then):
        if not self.answers:
            raise StoreUnreachable("nobody answers")
        super()._check(until_then)


@pytest.fixture
def directory():
    return Away(ManualClock())


def present(directory):
    return [member.generation for member in directory.members(deadline())]


def located(directory):
    return [member.generation for member in directory.locate([KEY], deadline())[0]]


@pytest.mark.parametrize("silence", [0, 5, 2 * FORGOTTEN], ids=["none", "short", "long"])
def test_a_life_whose_clock_is_behind_its_former_ones_is_taken(directory, silence, caplog):
    """A node of before named its lives by nanoseconds of its clock, which was a day ahead."""
    former = Node(directory, directory.clock, int((1.8e9 + 86_400) * 1e9)).beat(2)
    directory.clock.advance(silence)
    node = Node(directory, directory.clock).beat(2)
    assert node.generation > former.generation
    assert located(directory) == present(directory) == [node.generation]
    with caplog.at_level(logging.ERROR, "hexkv"):
        former.beat(3)  # it was not dead, and learns that it is over
    assert former.reporter.superseded
    assert "has a later life" in caplog.text
    node.beat()
    assert located(directory) == [node.generation]
    assert not node.beat(3).reporter.superseded


def test_lives_are_counted_also_those_that_left(directory):
    first = Node(directory, directory.clock).beat(2)
    second = Node(directory, directory.clock).beat(2)
    third = Node(directory, directory.clock).beat(2)
    assert [it.generation >> 31 for it in (first, second, third)] == [0, 1, 2]
    third.reporter.leave()
    assert directory.last_life("ada", deadline()) == third.generation
    assert directory.last_life("bob", deadline()) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_of_two_nodes_of_one_name_that_start_at_once_one_reports(order):
    """In whatever order they speak. Neither throws the other out for ever."""
    directory = Away(ManualClock())
    nodes = Node(directory, directory.clock), Node(directory, directory.clock)
    for which in order:
        nodes[which].beat()
    for _ in range(12):
        for node in nodes:
            node.beat()
    over = [node.reporter.superseded for node in nodes]
    assert sorted(over) == [False, True]
    assert {node.reporter.why for node in nodes} == {
        "",
        "a later life of this node is known there, or another cache has its name (directory.name)",
    }
    joins = [node.reporter.joins for node in nodes]
    for _ in range(5):
        for node in nodes:
            node.beat()
    assert [node.reporter.joins for node in nodes] == joins
    assert located(directory) == [nodes[over.index(False)].generation]


def test_a_directory_that_was_away_at_the_start_orders_lives_once_it_answers(directory):
    former = Node(directory, directory.clock, 1 << 60).beat(2)
    directory.answers = False
    node = Node(directory, directory.clock).beat(3)
    assert node.generation < 1 << 31
    directory.answers = True
    node.beat(12)
    assert node.generation > former.generation
    assert located(directory) == [node.generation]


def test_a_directory_that_knows_nothing_any_more_takes_lives_as_they_say_they_are(directory):
    former = Node(directory, directory.clock).beat(2)
    node = Node(directory, directory.clock).beat(2)
    directory.forget()
    former.beat(3)  # it did not know yet that it is over
    node.beat(3)
    former.beat(3)
    node.beat()
    assert former.reporter.superseded
    assert located(directory) == [node.generation]
    assert Node(directory, directory.clock).beat(2).generation > node.generation


def test_a_directory_that_does_not_say_what_it_knows_is_met_by_the_wall_clock():
    """One of a former version, or of others, whose lives are nanoseconds of a clock."""
    clock = ManualClock()
    directory = DictDirectory(clock)
    directory.join(Member("ada", int(clock.wall() * 1e9)), [], deadline())
    clock.advance(3600)
    node = Node(directory, clock).beat(5)
    assert not node.reporter.superseded
    assert node.reporter.joins == 1
    assert [it.generation for it in directory.members(deadline())] == [node.generation]


def test_replicas_know_one_life_of_a_node():
    """The one that was away knows of a later life than the other."""
    clock = ManualClock()
    one, other = Away(clock), Away(clock)
    Node(other, clock, 1 << 60).beat(2)
    life, held = Life(Member("ada", new_generation())), HeldChunks()
    reporters = [Reporter(it, life, held, clock) for it in (one, other)]
    other.answers = False
    for turn in range(20):
        other.answers = turn > 5
        clock.advance(1.0)
        for reporter in reporters:
            reporter.turn()
    assert life.member.generation > 1 << 60
    assert present(one) == present(other) == [life.member.generation]


def test_a_directory_on_a_server_says_which_life_was_the_last_though_it_is_silent():
    clock = ManualClock()
    with Served(clock) as server:
        directory = RemoteDirectory(server.address, secret=SECRET)
        assert directory.last_life("ada", deadline()) == 0
        for name, generation in (("ada", 7), ("bob", 8)):
            directory.join(Member(name, generation), [], deadline())
        clock.advance(1000)
        assert directory.members(deadline()) == []
        assert directory.last_life("ada", deadline()) == 7
        assert directory.last_life("nobody", deadline()) == 0
        directory.close()


def test_what_peers_know_a_process_by_follows_the_directory(caplog):
    """Also where a life was served before the directory could be asked."""
    with Served(ManualClock()) as server:
        former = RemoteDirectory(server.address, secret=SECRET)
        former.join(Member("ada", 1 << 60), [], deadline())
        former.leave(Member("ada", 1 << 60), deadline())
        section = {
            "adapter": "embedded",
            "name": "ada",
            "settings": {"address": str(server.address), "secret": SECRET.decode()},
        }
        with serving("ada", directory=section) as ada, serving("bob") as bob:
            until(lambda: former.last_life("ada", deadline()) > 1 << 60)
            member = peers_of(ada).member
            assert member.generation == former.last_life("ada", deadline())
            asked = Peer(member.address, member.generation)
            assert peers_of(bob).pull(asked, keys_of(bob), soon())
            told = peers_of(bob).ask(asked, b"self", b"", soon())
            assert member.generation.to_bytes(8, "little") in told
            with pytest.raises(StoreUnreachable, match="started anew"):
                peers_of(bob).ask(Peer(member.address, 1 << 60), b"self", b"", soon())
        former.close()


def test_a_life_that_cannot_be_a_later_one_is_one_line_of_the_log(directory, caplog):
    """As over a channel that is one life for good: it is tried again, and fails again."""
    Node(directory, directory.clock, generation=3 << 31).beat()
    stuck = Node(directory, directory.clock, generation=1)
    stuck.life._renew = lambda _: False
    stuck.beat(30)
    lines = [text for text in caplog.messages if "cannot follow its life" in text]
    assert len(lines) == 1
    assert present(directory) == []
