"""Clients of a node: they lease from it, die, and are handed to the process that follows it.

What they lease is kept as the node keeps it, and looked at after each step.
"""

from itertools import count

from hexkv.adapters.node.server.granted import Granted
from hexkv.peers.serving.inheritance import Inheritance
from hexkv.ports import ChunkSpec, Deadline, EngineClosed, frame_bytes
from simulation.play import Play, Violation
from simulation.prompts import CHUNK, FRAME, LAYOUT, NAMESPACES, computed, keys
from simulation.stage import DEADLINES, MEMORY

CLIENTS = 3
BOUND = 5
"""Frames that one may lease."""

HEIR = "inherited"
QUARANTINE = "quarantine"


class Client:
    """One connection, and what each of its leases must have in it."""

    def __init__(self, name, clock):
        self.name = name
        self.granted = Granted(BOUND * FRAME, clock)
        self.requests = count(1)
        self.holds = {}
        """By request and place: the lease, and the bytes."""

        self.fresh = {}
        """Likewise what was filled and not published, with its key."""


class NodePlay(Play):
    """A play in which others lease from the engine, by key."""

    def __init__(self, seed):
        super().__init__(seed)
        self._names = count(1)
        self.quarantined = []
        """Leases that end with a process, and the process."""

        self.connect()

    def connect(self):
        self.clients = [
            Client(f"client{next(self._names)}", self.stage.world) for _ in range(CLIENTS)
        ]

    def reset(self):
        super().reset()
        self.quarantined = []
        self.connect()  # what they had is of a former life

    def leave(self):
        for client in self.clients:
            client.granted.close()
        self.connect()

    def leave_room(self, blocks):
        """Clients die, who lease most first: they may have leased the whole pool together."""
        while self.stage.settings.slots - sum(self.leased().values()) < blocks:
            kill(self, max(range(CLIENTS), key=lambda i: self.clients[i].granted.leased_bytes))

    def check(self):
        for client in self.clients:
            for lease, expected in (*client.holds.values(), *client.fresh.values()):
                if bytes(lease.payload) != expected:
                    raise Violation(f"a lease of {client.name} has other bytes than before")
        super().check()

    def leased(self):
        found = {QUARANTINE: sum(len(leases) for leases, _ in self.quarantined)}
        for client in self.clients:
            for lease, _ in (*client.holds.values(), *client.fresh.values()):
                found[lease.owner] = found.get(lease.owner, 0) + 1
        return {owner: number for owner, number in found.items() if number}


def _specs(play):
    tokens, tenant = play.prompt()
    space = play.stage.engine.key_space(NAMESPACES[tenant])
    wanted = [
        ChunkSpec(key, space.identity, LAYOUT, CHUNK, position=CHUNK * number)
        for number, key in enumerate(keys(tokens, tenant))
    ]
    return wanted, computed(tokens, tenant)


def _granted(play, client, wanted, lease):
    """Run a request that leases as a node's session does; its leases by place."""
    request = next(client.requests)
    grant = client.granted.open(request)
    room = client.granted.reserve(grant, [frame_bytes(spec.raw_bytes) for spec in wanted])
    try:
        return request, lease(grant, request, wanted[:room])
    except EngineClosed:
        client.granted.release(request)
        return request, []


def hold(play):
    """A client holds chunks; it may be gone before they arrive."""
    client, engine = play.rng.choice(play.clients), play.stage.engine
    wanted, contents = _specs(play)

    def lease(grant, request, part):
        until = Deadline.after(play.stage.world, DEADLINES.retrieve)
        held = engine.chunks.hold(part, client.name, until)
        if not client.granted.held(grant, held):
            return []
        held.wait(until)
        leases = list(held.leases)
        return leases if client.granted.settle(request, grant, leases, fresh=False) else []

    def work():
        request, leases = _granted(play, client, wanted, lease)
        for place, (found, content) in enumerate(zip(leases, contents, strict=False)):
            if found is not None:
                if bytes(found.payload) != content:
                    raise Violation("a client holds a chunk with other bytes than were computed")
                client.holds[request, place] = found, content

    play.call(f"{client.name} holds {len(wanted)}", DEADLINES.retrieve, work)


def allocate(play):
    """A client fills blocks."""
    client, engine = play.rng.choice(play.clients), play.stage.engine
    wanted, contents = _specs(play)

    def lease(grant, request, part):
        until = Deadline.after(play.stage.world, play.rng.random())
        leases = engine.chunks.allocate(part, client.name, until)
        return leases if client.granted.settle(request, grant, leases, fresh=True) else []

    def work():
        request, leases = _granted(play, client, wanted, lease)
        for place, (found, content) in enumerate(zip(leases, contents, strict=False)):
            found.payload[:] = content
            client.fresh[request, place] = found, content

    play.call(f"{client.name} allocates {len(wanted)}", 1.0, work)


def publish(play):
    """A client publishes what it has filled, and goes on to hold it."""
    client, engine = play.rng.choice(play.clients), play.stage.engine
    mine, client.fresh = client.fresh, {}
    client.holds |= mine

    def work():
        shares = []
        for request, place in mine:
            for grant, lease in client.granted.find([request], [place]) or ():
                grant.fresh.discard(place)
                shares.append(lease.share(client.name))
        until = Deadline.after(play.stage.world, DEADLINES.store)
        try:
            for share in shares:
                engine.chunks.publish([share], None, until).wait(until)
        except EngineClosed:
            pass
        finally:
            for share in shares:
                share.release()

    play.call(f"{client.name} publishes {len(mine)}", DEADLINES.store, work)


def let_go(play):
    """A client gives some of its leases back."""
    client = play.rng.choice(play.clients)
    for kind in (client.holds, client.fresh):
        for name in [name for name in kind if play.rng.random() < 0.6]:
            del kind[name]
            client.granted.release(*name)


def die(play):
    """A client is killed, whatever it has under way."""
    kill(play, play.rng.randrange(CLIENTS))


def kill(play, number):
    client = play.clients[number]
    play.note(f"{client.name} dies")
    play.clients[number] = Client(f"client{next(play._names)}", play.stage.world)
    client.granted.close()


def take_over(play):
    """Another process takes the place of the engine's, with all that it has in memory."""
    stage, world = play.stage, play.stage.world
    play.await_calls()
    if stage.engine.health().state != "open":
        return
    play.note("take over")
    process, engine = stage.process, stage.engine
    leaving = Inheritance(stage.stack, engine._calls, lambda lease: lease.offset)
    blocks = world.do(lambda: leaving.freeze(Deadline.after(world, 5.0)))
    chunks, pins = leaving.chunks(), leaving.pins()
    rows = [
        (client, request, place, leaving.place(lease), fresh)
        for client in play.clients
        for request, place, lease, fresh in client.granted.rows()
    ]
    busy = leaving.busy(blocks, [*(place for _, place in chunks), *(row[3] for row in rows)])
    before = {key for key, held in stage.memory._chunks.items() if held}
    leaving.give()
    engine._calls.abandon()
    stage.start(stage.heap)
    coming = Inheritance(stage.stack, stage.engine._calls, lambda lease: lease.offset)
    coming.freeze_now()
    places = [place for _, place in chunks] + [row[3] for row in rows]
    leases = coming.adopt([*places, *busy], HEIR)
    kept, theirs = leases[: len(chunks)], leases[len(chunks) : len(places)]
    coming.keep(MEMORY, kept)
    for lease in kept:
        lease.release()
    for client in play.clients:
        mine = [
            (request, place, lease, fresh)
            for (owner, request, place, _, fresh), lease in zip(rows, theirs, strict=True)
            if owner is client
        ]
        _go_on(play, client, mine)
    rest = [lease.share(QUARANTINE) for lease in leases[len(places) :]]
    for lease in leases[len(places) :]:
        lease.release()
    play.quarantined.append((rest, process))
    coming.pin(pins)
    coming.thaw()
    if before != set(stage.memory._chunks):
        raise Violation(f"{len(before)} chunks in memory became {len(stage.memory._chunks)}")
    for place in stage.settings.places:
        play.pins.forget(place.name)
    if play.rng.random() < 0.5:
        world.advance(play.rng.random())  # the old one takes its time to end
    process.end()
    for lease in rest:
        lease.release()
    play.quarantined.clear()
    play.troubled.clear()


def _go_on(play, client, rows):
    """A connection as the successor has it."""
    granted = Granted(BOUND * FRAME, play.stage.world)
    granted.restore(rows, client.granted.limits())
    for request, place, lease, _ in rows:
        for kind in (client.holds, client.fresh):
            if (request, place) in kind:
                kind[request, place] = lease, kind[request, place][1]
    client.granted = granted
