"""A fleet of nodes on machines of their own: moved about, drained, and broken meanwhile."""

import json
import logging
import random
import signal
from contextlib import suppress
from itertools import permutations
from threading import Event, Thread
from time import monotonic

import pytest

from hexkv.ports import HexKVError, Selection
from machines.fleet_machines import HEARTBEAT, live_fleet, tokens_of
from processes import STARTING, freeze, until

pytestmark = pytest.mark.thorough
log = logging.getLogger(__name__)

ALL = Selection(everything=True)
PROMPTS = range(40)
BACK = 30.0
"""Seconds after which everything has to be as before."""


def all_keys(fleet):
    """What each node has."""
    with fleet.hand() as hand:
        return {node.name: set(node.asked().listing(ALL)) for node in hand._all() if node.admin}


def keys_of(client, numbers):
    return [key for n in numbers for key in client.engine.chunk_keys(tokens_of(n))]


def test_two_commands_that_move_the_same_chunks_leave_one_copy_of_each(tmp_path):
    """Also if they are stopped by Ctrl-C half-way, and begun again."""
    with live_fleet(tmp_path, "ada", "bob", "cyd", slots=400, memory=380) as (fleet, clients):
        for number in PROMPTS:
            clients["ada"].store(number)
        keys = keys_of(clients["ada"], PROMPTS)
        for way, stop in ((("ada", "bob", "cyd"), True), (("bob", "ada", "cyd"), False)):
            origin, *goals = way
            running = [
                fleet.command("move", origin, goal, log=tmp_path / f"{goal}.log") for goal in goals
            ]
            if stop:
                until(lambda origin=origin: len(all_keys(fleet)[origin]) < len(keys), STARTING)
                for command in running:
                    command.send_signal(signal.SIGINT)
            for command in running:
                command.wait(STARTING)
            said = [(tmp_path / f"{goal}.log").read_text() for goal in goals]
            # On a busy machine one may be stopped before it begins: then it says nothing.
            reports = [json.loads(text) for text in said if text]
            assert len(reports) >= (1 if stop else len(goals))
            assert sum(report["done"] for report in reports) <= len(keys), reports
            held = all_keys(fleet)
            assert sorted(key for some in held.values() for key in some) == sorted(keys)
            with fleet.hand() as hand:  # what is left, by who comes later
                assert hand.move(ALL, origin, goals[0]).complete
                for other in ("ada", "bob", "cyd"):
                    if other != goals[0]:
                        assert hand.move(ALL, other, goals[0]).complete
            held = all_keys(fleet)
            assert held[goals[0]] == set(keys)
            assert sum(map(len, held.values())) == len(keys)
        for number in PROMPTS:  # wherever they are, they are read, and right
            assert clients["cyd"].hit(number) == len(tokens_of(number))
        for node in fleet.nodes.values():
            node.at_rest()


def test_a_drain_under_load_loses_nothing_that_only_its_node_has(tmp_path):
    with live_fleet(tmp_path, "ada", "bob", "cyd", slots=600, memory=500) as (fleet, clients):
        for number in PROMPTS:
            clients["ada"].store(number)
        for client in clients.values():
            client.work(range(60))
        with fleet.hand() as hand:
            report = hand.drain("ada", hold=600.0)
            # Nothing is stored there any more, so this is what it had at the end of the drain.
            mine = set(hand._named("ada").asked().listing(ALL))
        for client in clients.values():
            client.rest()
        held = all_keys(fleet)
        assert mine
        lost = mine - held["bob"] - held["cyd"] - set(report.kept)
        assert not lost
        assert not report.problems
        assert not report.kept, "there was room for all"
        fleet.nodes["ada"].kill()
        for number in PROMPTS:
            assert clients["bob"].hit(number) == len(tokens_of(number))


class Fault:
    """Breaks a fleet, and mends it."""

    def __init__(self, kind, fleet, name):
        self.kind, self.fleet, self.node = kind, fleet, fleet.nodes[name]

    def begin(self):
        match self.kind:
            case "killed":
                self.node.kill()
            case "stopped":
                freeze(self.node.process)
            case "cut off":
                self.node.machine.cut()
            case "hears and is not heard":
                self.node.machine.cut(hears=True)
            case "the directory is cut off":
                self.fleet.directory.machine.cut()
            case "the directory is killed":
                self.fleet.directory.kill()

    def end(self):
        match self.kind:
            case "killed":
                self.node.path.unlink(missing_ok=True)
                self.node.start()
            case "stopped":
                self.node.thaw()
            case "the directory is killed":
                self.fleet.directory.start()
            case "the directory is cut off":
                self.fleet.directory.machine.mend()
            case _:
                self.node.machine.mend()


FAULTS = [
    "killed",
    "stopped",
    "cut off",
    "hears and is not heard",
    "the directory is cut off",
    "the directory is killed",
]


@pytest.mark.parametrize("kind", FAULTS)
def test_no_byte_is_wrong_and_no_chunk_is_lost_while_chunks_move_and_something_breaks(
    tmp_path, kind
):
    with live_fleet(tmp_path, "ada", "bob", "cyd", slots=600, memory=500) as (fleet, clients):
        for number in PROMPTS:
            clients[random.Random(number).choice(list(clients))].store(number)
        stored = set(keys_of(clients["ada"], PROMPTS))
        over, moves = Event(), []

        def move():
            """One hand that moves chunks about all the time, whatever becomes of it."""
            rng = random.Random(kind)
            ways = list(permutations(fleet.nodes, 2))
            while not over.is_set():
                origin, goal = rng.choice(ways)
                with suppress(HexKVError), fleet.hand(partial=True) as hand:
                    some = hand._named(origin).asked().listing(ALL)
                    if some:
                        chosen = Selection(keys=tuple(rng.sample(list(some), min(12, len(some)))))
                        moves.append(hand.move(chosen, origin, goal))

        mover = Thread(target=move, daemon=True)
        for client in clients.values():
            client.work(PROMPTS)
        mover.start()
        until(lambda: len(moves) > 3)
        fault = Fault(kind, fleet, "bob")
        fault.begin()
        begun = monotonic()
        if kind in ("cut off", "hears and is not heard"):
            clients["bob"].store(1000)  # which is nowhere else, and cannot get there now
            chosen = Selection(keys=tuple(keys_of(clients["bob"], [1000])))
            with fleet.hand() as hand:  # the sockets of administration are on every machine
                assert not hand.copy(chosen, "bob", "ada").complete
        until(lambda: monotonic() - begun > 8 * HEARTBEAT)
        fault.end()
        mended = monotonic()
        until(fleet.healthy)
        before = len(moves)
        until(lambda: any(one.done for one in moves[before:]))
        calls = {name: client.calls for name, client in clients.items()}
        hits = {name: client.hits for name, client in clients.items()}
        for name, client in clients.items():
            until(lambda name=name, client=client: client.calls > calls[name] + 3)
            until(lambda name=name, client=client: client.hits > hits[name])
        back = monotonic() - mended
        over.set()
        mover.join(120)
        assert not mover.is_alive()
        for client in clients.values():
            client.rest()
        late = max(client.late for client in clients.values())
        log.info("%s: late by %.3f s at most, back after %.1f s", kind, late, back)
        assert back < BACK
        if kind != "killed":
            held = all_keys(fleet)
            assert stored <= set().union(*held.values())
        with fleet.hand() as hand:
            for origin, goal in permutations(fleet.nodes, 2):
                report = hand.copy(ALL, origin, goal)
                assert not report.problems, report
        for node in fleet.nodes.values():
            node.at_rest()
