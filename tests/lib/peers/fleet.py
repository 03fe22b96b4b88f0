"""A fleet in virtual time: nodes that report to a directory, readers that believe it, and faults.

Reporters, cell and table are the production ones; only the wire is left out. What happens is
decided by a seed. A node's content is a set; reading from a holder gives the chunk under exactly
that key, or a miss, as frames see to it in life.
"""

from __future__ import annotations

import heapq
from itertools import count
from random import Random

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.local import LocalDirectory
from hexkv.contracts.doubles import ManualClock, chunk_key
from hexkv.fleet.draining import DrainRules, drain, tokens_of
from hexkv.peers.lives import Life
from hexkv.peers.reporting import Reporter
from hexkv.plugins.observing.held import HeldChunks
from hexkv.ports import (
    SILENT_HEARTBEATS,
    CacheEvent,
    Change,
    Deadline,
    HexKVError,
    Member,
    Peer,
    StoreUnreachable,
)
from peers.moving_nodes import MovingNode

GATHERED = 0.05


class Link(LocalDirectory):
    """A node's way to the directory, which may be cut, or lose answers."""

    def __init__(self, fleet, node):
        super().__init__(fleet.cell)
        self.fleet, self.node = fleet, node

    def _check(self, deadline):
        if self.node.cut or self.fleet.away:
            raise StoreUnreachable("nobody answers")
        super()._check(deadline)

    def report(self, member, report, deadline):
        noted = super().report(member, report, deadline)
        if self.fleet.random.random() < self.fleet.lost:
            raise StoreUnreachable("the answer was lost")
        return noted

    def join(self, member, snapshot, deadline):
        def parts():
            for part in snapshot:
                if self.fleet.random.random() < self.fleet.lost:
                    raise StoreUnreachable("the connection broke amid a snapshot")
                yield part

        return super().join(member, parts(), deadline)


class Node(MovingNode):
    """One node: what it holds, what reports it, and its half of a move."""

    def __init__(self, fleet, number):
        super().__init__(fleet.clock, fleet.reached)
        self.fleet, self.number = fleet, number
        self.generation = 0
        self.cut = False
        self.alive = False
        self.died = fleet.clock.now()
        self.chunks = set()
        self.live()

    @property
    def name(self):
        return f"node{self.number}"

    def live(self):
        """Begin another life, with nothing."""
        super().__init__(self.fleet.clock, self.fleet.reached)  # claims, pins and all
        self.generation += 1
        self.alive, self.cut = True, False
        self.held = HeldChunks()
        self.link = Link(self.fleet, self)
        member = Member(self.name, self.generation)
        queue = self.fleet.random.choice([2000, 1 << 20])
        self.reporter = Reporter(self.link, Life(member), self.held, self.fleet.clock, queue)
        self.planned = None
        self.fleet.schedule(self, self.fleet.random.random())

    def die(self):
        self.alive, self.died = False, self.fleet.clock.now()

    def gain(self, keys):
        self.change(True, list(keys))

    def lose(self, keys):
        self.change(False, list(keys))

    def evict(self, keys):
        """Let go of what is not pinned, as a tier that needs room."""
        self.lose([key for key in keys if not self.pinned(key)])

    def listing(self, chosen, after):
        return sorted(self.chunks)[:32_768] if after is None else []

    def change(self, stored, keys):
        self.chunks.update(keys) if stored else self.chunks.difference_update(keys)
        change = Change.STORED if stored else Change.REMOVED
        self.held.apply(CacheEvent(change, "memory", keys), [self.reporter.queue])
        self.fleet.schedule(self, GATHERED)


class Fleet:
    """Everything, and its time."""

    def __init__(self, seed, nodes, chunks=2000):
        self.random = Random(seed)
        self.clock = ManualClock()
        self.cell = Cell(self.clock, members=nodes, entries=1 << 16)
        self.lost, self.away = 0.0, False
        self.due, self.order = [], count()
        self.keys = [chunk_key(f"{seed}/{n}") for n in range(chunks)]
        self.nodes = [Node(self, number) for number in range(nodes)]
        self.asker = LocalDirectory(self.cell)
        self.asked = self.misses = 0
        self.drains = {}
        """By node its drain under way: the generator, and what it asks next."""
        self.lives = {}
        """By node the lives of those that its drain is about."""
        self.drained = self.placed = 0

    def reached(self, name):
        """The node, where it can be reached from others."""
        node = self.nodes[int(name.removeprefix("node"))]
        return node if node.alive and not node.cut else None

    def begin_drain(self, node):
        """Empty a node, a question at a time, beside everything else that happens."""
        living = [other for other in self.nodes if other.alive and other is not node]
        others = self.random.sample(living, min(6, len(living)))
        names = [other.name for other in others]
        self.drained += 1
        rules = DrainRules(step=64, size=1, hold=1000.0)
        asking = drain(node.name, Peer(node.name), names, tokens_of(f"drain {self.drained}"), rules)
        self.lives[node.name] = [(other, other.generation) for other in [node, *others]]
        self.drains[node.name] = asking, next(asking)

    def step_drain(self, name):
        asking, ask = self.drains.pop(name)
        try:
            try:
                if (node := self.reached(ask.node)) is None:
                    raise StoreUnreachable("it does not answer")
                answer = getattr(node, ask.verb)(*ask.arguments)
            except HexKVError as error:
                self.drains[name] = asking, asking.throw(error)
            else:
                self.drains[name] = asking, asking.send(answer)
        except StopIteration as end:
            self.check_the_drained(name, end.value)
        except HexKVError:
            pass  # the drained node is gone
        if name not in self.drains:
            self.nodes[int(name.removeprefix("node"))].frozen = False

    def check_the_drained(self, name, got):
        """What the node has is elsewhere, or nobody lives that had it, or it was said."""
        node = self.nodes[int(name.removeprefix("node"))]
        if not all(it.alive and it.generation == life for it, life in self.lives.pop(name)):
            return
        others = [it for it in self.nodes if it is not node]
        stay = [it for it in others if not it.frozen or it.name in self.drains]
        for key in node.chunks - set(got.kept):
            assert any(key in other.chunks for other in stay), f"{key!r} is only at {name}"
        self.placed += 1

    def schedule(self, node, seconds):
        """Have *node* take its next turn so soon, or sooner if that was planned."""
        at = self.clock.now() + max(seconds, 0.001)
        if node.planned is None or at < node.planned:
            node.planned = at
            heapq.heappush(self.due, (at, next(self.order), node))

    def run(self, seconds):
        """Let time pass; who is alive takes its turns."""
        until = self.clock.now() + seconds
        while self.due and self.due[0][0] <= until:
            at, _, node = heapq.heappop(self.due)
            if node.planned != at:
                continue
            node.planned = None
            self.clock.advance(max(0.0, at - self.clock.now()))
            if node.alive:
                pause = node.reporter.turn()
                if pause < float("inf"):
                    self.schedule(node, pause)
        self.clock.advance(max(0.0, until - self.clock.now()))

    def restart_directory(self):
        """It forgets everything."""
        self.cell = Cell(self.clock, members=len(self.nodes), entries=1 << 16)
        self.asker.cell = self.cell
        for node in self.nodes:
            node.link.cell = self.cell

    def step(self):
        """One thing that happens."""
        node = self.random.choice(self.nodes)
        what = self.random.random()
        if what < 0.70:
            if node.alive:
                some = self.random.sample(self.keys, self.random.randrange(1, 30))
                if self.random.random() < 0.6 and not node.frozen:
                    node.gain(some)
                else:
                    node.evict(some)
        elif what < 0.76:
            if node.alive:
                node.die()
        elif what < 0.84:
            if not node.alive:
                node.live()
        elif what < 0.88:
            node.cut = not node.cut
        elif what < 0.90:
            self.lost = self.random.choice([0.0, 0.05, 0.3])
        elif what < 0.905:
            self.restart_directory()
        elif what < 0.91:
            self.away = not self.away
        elif what < 0.93 and node.alive and node.name not in self.drains:
            self.begin_drain(node)
        for _ in range(self.random.randrange(100) if self.drains else 0):
            if self.drains:
                self.step_drain(self.random.choice(sorted(self.drains)))
        self.run(self.random.choice([0.0, 0.0, 0.01, 0.1, 0.5]))
        self.check_the_dead()
        self.read()

    def check_the_dead(self):
        """Nobody is named who has been silent for three heartbeats."""
        now, beat = self.clock.now(), self.cell.heartbeat_seconds
        named = {member.name for member in self.asker.members(self.soon())}
        for holders in self.asker.locate(self.random.sample(self.keys, 100), self.soon()):
            named.update(member.name for member in holders)
        for node in self.nodes:
            if not node.alive and now - node.died >= SILENT_HEARTBEATS * beat:
                assert node.name not in named, f"{node.name} is dead for {now - node.died:.2f} s"

    def read(self, wrong=None):
        """Read some chunks from those who are said to have them: each is right, or a miss."""
        wanted = self.random.sample(self.keys, 8)
        found = (wrong or self.asker).locate(wanted, self.soon())
        for key, holders in zip(wanted, found, strict=True):
            for member in holders[:2]:
                self.asked += 1
                got = self.fetch(member, key)
                assert got in (None, key)
                self.misses += got is None
                reader = self.random.choice(self.nodes)
                if got is not None and reader.alive and not reader.frozen:
                    reader.gain([key])  # what was read from a peer is kept

    def fetch(self, member, key):
        """What the node gives for a key."""
        node = self.nodes[int(member.name.removeprefix("node"))]
        there = node.alive and node.generation == member.generation and key in node.chunks
        return key if there else None

    def heal(self):
        """No more faults; long enough for everybody to be heard, after the longest pause."""
        self.lost, self.away = 0.0, False
        for node in self.nodes:
            node.cut = False
        self.run(20.0)

    def check_the_truth(self):
        """What is located is what the living hold, and nothing else."""
        found = self.asker.locate(self.keys, self.soon())
        for key, holders in zip(self.keys, found, strict=True):
            truth = {node.name for node in self.nodes if node.alive and key in node.chunks}
            assert {member.name for member in holders} == truth

    def soon(self):
        return Deadline.after(self.clock, 60.0)
