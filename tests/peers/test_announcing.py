"""The chunks that clients announce to each other, kept in one process."""

import pytest

from hexkv.contracts.announcing import some, soon
from hexkv.contracts.doubles import ManualClock
from hexkv.peers.pushing.announced import Announced
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.threads import Threads
from hexkv.ports import MAX_ANNOUNCED, ChunkKey
from mutants.fleet.announcings import AnnouncedContract


@pytest.mark.thorough
class TestAnnounced(AnnouncedContract):
    pass


def test_a_client_has_announced_so_much_at_most_and_nothing_is_left_of_it():
    announced = Announced(SystemClock(), Threads())
    ada, bob = announced.of("ada"), announced.of("bob")
    many = [ChunkKey(number.to_bytes(48)) for number in range(MAX_ANNOUNCED + 5)]
    assert ada.announce("first", "a", many, 60.0, soon()) == MAX_ANNOUNCED
    assert ada.announce("second", "a", some(1), 60.0, soon()) == 0
    assert bob.announce("first", "b", some(1), 60.0, soon()) == 1
    assert ada.withdraw("first", soon()) == MAX_ANNOUNCED
    announced.published(some(1))
    assert not len(announced)
    assert not announced._keys


def test_what_a_client_has_let_pass_its_time_leaves_room_for_what_it_announces_next():
    clock = ManualClock()
    announced = Announced(clock, Threads())
    many = [ChunkKey(number.to_bytes(48)) for number in range(MAX_ANNOUNCED)]
    assert announced.announce("ada", "first", "a", many[1:], 60.0) == MAX_ANNOUNCED - 1
    assert announced.announce("ada", "second", "a", some(2), 600.0) == 1
    clock.advance(61)
    assert announced.announce("ada", "third", "a", some(3)[1:], 60.0) == 2
    assert len(announced) == 3
