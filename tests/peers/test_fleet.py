"""A simulated fleet: what the directory says comes true, and is believed at no risk."""

import pytest

from peers.fleet import Fleet


def play(seed, nodes, steps):
    fleet = Fleet(seed, nodes)
    fleet.run(2.0)
    for _ in range(steps):
        fleet.step()
    fleet.heal()
    fleet.check_the_truth()
    return fleet


def test_after_any_faults_the_directory_says_what_nodes_hold():
    for seed in range(4):
        assert play(seed, nodes=30, steps=150).asked


def test_nodes_are_emptied_amid_faults_and_nothing_is_only_there_afterwards():
    assert sum(play(seed, nodes=8, steps=400).placed for seed in range(4)) > 4


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_peers_directory_and_drains_in_ten_thousand_steps(seed):
    assert play(seed, nodes=12, steps=10_000).placed > 10


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_nodes_with_faults(seed):
    play(seed, nodes=1000, steps=1000)


class SaysEverybodyHasEverything:
    def __init__(self, fleet):
        self.fleet = fleet

    def locate(self, keys, deadline):
        return [self.fleet.asker.members(deadline)] * len(keys)


class SaysNothingTrue:
    """The holders of other chunks."""

    def __init__(self, fleet):
        self.fleet = fleet

    def locate(self, keys, deadline):
        return self.fleet.asker.locate(
            self.fleet.random.sample(self.fleet.keys, len(keys)), deadline
        )


def test_a_wrong_directory_costs_misses_only():
    fleet = play(7, nodes=30, steps=50)
    for wrong in (SaysEverybodyHasEverything(fleet), SaysNothingTrue(fleet)):
        fleet.asked = fleet.misses = 0
        for _ in range(100):
            fleet.read(wrong)
        assert 0 < fleet.misses <= fleet.asked <= 100 * 8 * 2


def test_a_directory_that_is_started_anew_under_load_knows_all_again():
    """Within a heartbeat and what is gathered for a report, where nothing else goes wrong."""
    fleet = Fleet(3, nodes=100)
    for node in fleet.nodes:
        node.change(True, fleet.random.sample(fleet.keys, 200))
    fleet.run(3.0)
    fleet.check_the_truth()
    fleet.restart_directory()
    for _ in range(20):
        node = fleet.random.choice(fleet.nodes)
        node.change(False, fleet.random.sample(sorted(node.chunks), 20))
        fleet.run(0.1)
        fleet.read()
    fleet.run(0.2)
    fleet.check_the_truth()
