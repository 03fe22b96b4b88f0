"""Nodes in one process that keep claims as real ones do, and movers that are stopped anywhere."""

from itertools import count
from random import Random
from types import SimpleNamespace

from hexkv.contracts.doubles import ManualClock, chunk_key
from hexkv.fleet.draining import DrainRules, drain, tokens_of
from hexkv.fleet.relocation import Route, relocate
from hexkv.operate.claims import Claims
from hexkv.ports import ClaimState, HexKVError, InvalidRequest, Peer, StoreUnreachable, WorkReport

NODES = ["ada", "bob", "cyd"]
KEYS = [chunk_key(f"moved {n}") for n in range(3)]


class MovingNode:
    """A set of chunks, and the verbs of a node's half of a move."""

    def __init__(self, clock, others):
        self.clock, self.others = clock, others
        self.chunks = set()
        self.pins = {}
        self.frozen = False
        self.claims = Claims(clock)

    def gain(self, keys):
        self.chunks |= set(keys)

    def lose(self, keys):
        self.chunks -= set(keys)

    def pinned(self, key):
        now = self.clock.now()
        return any(key in keys and until > now for keys, until in self.pins.values())

    def freeze(self, frozen):
        self.frozen = frozen

    def status(self):
        return SimpleNamespace(frozen=self.frozen)

    def listing(self, chosen, after):
        return sorted(key for key in self.chunks if after is None or key > after)[:2]

    def room(self):
        return 0 if self.frozen else 1 << 20

    def pin(self, owner, chosen, seconds):
        here = self.chunks & set(chosen.keys)
        self.pins[owner] = self.pins.get(owner, (set(), 0))[0] | here, self.clock.now() + seconds
        return len(here)

    def claim(self, token, keys, seconds, leaving=False, read=False):
        if self.frozen and not leaving:
            return [ClaimState.REFUSED] * len(keys)
        granted = self.claims.take(token, keys, seconds, leaving=leaving)
        if not leaving:
            kept, _ = self.pins.get(token, (set(), 0.0))
            here = {key for key, ok in zip(keys, granted, strict=True) if ok and key in self.chunks}
            self.pins[token] = kept | here, self.clock.now() + seconds
        return [
            (ClaimState.HERE if key in self.chunks else ClaimState.ABSENT)
            if ok
            else ClaimState.REFUSED
            for key, ok in zip(keys, granted, strict=True)
        ]

    def fetch(self, keys, origin):
        if self.frozen:
            raise InvalidRequest("frozen")
        source = self.others(origin.address)
        got = {key for key in keys if source is not None and key in source.chunks}
        self.gain(got)
        return WorkReport(len(keys), len(got), failed=len(keys) - len(got))

    def give_up(self, token, keys):
        mine = set(self.claims.held(token, keys))
        self.lose(mine)
        return WorkReport(len(keys), len(mine), failed=len(keys) - len(mine))

    def holds(self, keys):
        return ["memory" if key in self.chunks else None for key in keys]

    def release(self, token):
        self.pins.pop(token, None)
        return self.claims.release(token)


class Mover:
    """A move under way, and the answer or error that it is told next."""

    def __init__(self, token, asking, drained=None):
        self.token, self.asking, self.drained = token, asking, drained
        self.ask = next(asking)
        self.got = None


class Movers:
    """Nodes, those who move chunks between them, and what may have been lost by right."""

    def __init__(self, names=NODES):
        self.clock = ManualClock()
        self.nodes = {name: MovingNode(self.clock, self.reached) for name in names}
        self.cut = set()
        self.deaf = set()
        """Nodes whose answers are lost."""
        self.running = []
        self.killed = False
        self.ended = []
        self.stored, self.excused = set(), set()
        self.numbers = count()

    def reached(self, name):
        return None if name in self.cut else self.nodes[name]

    def store(self, node, keys):
        if not self.nodes[node].frozen:
            self.nodes[node].chunks |= set(keys)
            self.stored |= set(keys)
            self.excused -= set(keys)

    def begin(self, origin, goal, keys, *, delete):
        token = f"move {next(self.numbers)}"
        route = Route(origin, Peer(origin), goal)
        mover = Mover(token, relocate(keys, route, token, delete=delete))
        self.running.append(mover)
        return mover

    def drain(self, node):
        token = f"drain {next(self.numbers)}"
        others = [name for name in self.nodes if name != node]
        rules = DrainRules(step=2, size=1, hold=300.0)
        asking = drain(node, Peer(node), others, tokens_of(token), rules)
        mover = Mover(token, asking, node)
        self.running.append(mover)
        return mover

    def step(self, mover):
        """Have one question answered."""
        if mover not in self.running:
            return
        try:
            try:
                answer = self.answer(mover.ask)
            except HexKVError as error:
                mover.ask = mover.asking.throw(error)
            else:
                mover.ask = mover.asking.send(answer)
        except StopIteration as end:
            mover.got = end.value
            self.running.remove(mover)
            self.ended.append(mover)
            if mover.drained:
                self.check_drained(mover)
        except StoreUnreachable:
            assert mover.drained
            self.running.remove(mover)

    def answer(self, ask):
        """What a node answers. One that is deaf does as it is asked, and is not heard."""
        node = self.reached(ask.node)
        if node is None:
            raise StoreUnreachable("cut off")
        answer = getattr(node, ask.verb)(*ask.arguments)
        if ask.node in self.deaf:
            raise StoreUnreachable("no answer")
        return answer

    def finish(self):
        while self.running:
            self.step(self.running[0])

    def copies(self, key):
        return sum(key in node.chunks for node in self.nodes.values())

    def evict(self, node, key):
        if not self.nodes[node].pinned(key):
            if self.copies(key) == 1 and key in self.nodes[node].chunks:
                self.excused.add(key)
            self.nodes[node].chunks.discard(key)

    def kill(self, name):
        self.excused |= self.nodes[name].chunks
        self.killed = True
        self.nodes[name] = MovingNode(self.clock, self.reached)

    def check_drained(self, mover):
        """What a drained node has somebody else has, too, or it was said that nobody has."""
        if self.killed:
            return
        draining = {other.drained for other in self.running}
        stay = [
            node
            for name, node in self.nodes.items()
            if name != mover.drained and (not node.frozen or name in draining)
        ]
        for key in self.nodes[mover.drained].chunks - set(mover.got.kept):
            there = any(key in node.chunks for node in stay)
            assert there, f"{key!r} is nowhere but on the drained node"

    def check(self):
        for key in self.stored - self.excused:
            assert self.copies(key), f"{key!r} is nowhere"


def play(seed, steps):
    """So many things that befall them, chosen by *seed*. Raises where a chunk is lost."""
    random, movers = Random(seed), Movers()
    deadly = seed % 2
    for _ in range(steps):
        node, key = random.choice(NODES), random.choice(KEYS)
        what = random.random()
        if what < 0.08:
            movers.store(node, [key])
        elif what < 0.2 and len(movers.running) < 4:
            way = random.sample(NODES, 2)
            movers.begin(*way, [key], delete=random.random() < 0.9)
        elif what < 0.21 and len(movers.running) < 4:
            movers.drain(node)
        elif what < 0.22:
            if all(mover.drained != node for mover in movers.running):
                movers.nodes[node].frozen = False
        elif what < 0.9 and movers.running:
            movers.step(random.choice(movers.running))
        elif what < 0.92 and movers.running:
            movers.running.remove(random.choice(movers.running))
        elif what < 0.93:
            if deadly:
                movers.kill(node)
        elif what < 0.95:
            random.choice([movers.cut, movers.deaf]).symmetric_difference_update([node])
        elif what < 0.97:
            movers.evict(node, key)
        else:
            movers.clock.advance(random.choice([1.0, 50.0, 100.0, 300.0]))
        movers.check()
