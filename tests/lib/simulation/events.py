"""What happens around the engine: faults, crashes, time, tiers that come and go."""

from hexkv.contracts.faults import Fault, Seeded
from simulation.play import Violation
from simulation.stage import DEADLINES

TROUBLES = {
    "errors": {Fault.ERROR: 0.4, Fault.FAILED: 0.2},
    "unsure": {Fault.UNSURE: 0.4},
    "damage": {Fault.FLIP: 0.15, Fault.SHORT: 0.1, Fault.SWAP: 0.1},
    "lies": {Fault.STALE: 0.2, Fault.LOST: 0.2},
    "sectors": {Fault.UNREADABLE: 0.1},
    "slow": {},
}


def advance(play):
    seconds = play.rng.choice((0.01, 0.5, 2.0, 10.0, 40.0))
    play.note(f"advance {seconds}")
    play.stage.world.advance(seconds)


def trouble(play):
    place = play.rng.choice(play.stage.settings.places)
    kinds = ("hang", "crash", "errors", "damage", "lies", "full", "slow", "sectors")
    kind = play.rng.choice(kinds)
    if kind == "errors" and not place.indexed and play.rng.random() < 0.5:
        kind = "unsure"
    play.well(place)
    play.note(f"trouble {place.name} {kind}")
    play.troubled[place.name] = kind
    if kind == "hang":
        place.store.hang()
    elif kind == "crash":
        place.store.crash()
    elif kind == "full":
        place.store.full = True
    else:
        seconds = (1.0, 20.0) if kind == "slow" else place.seconds
        place.store.plan = Seeded(play.rng.getrandbits(32), TROUBLES[kind], seconds)


def mend(play):
    for place in play.stage.settings.places:
        if place.name in play.troubled:
            play.note(f"mend {place.name}")
            play.well(place)


def detach(play):
    places = [place for place in play.stage.settings.places if place.attached]
    if play.going or not places:
        return
    place, engine = play.rng.choice(places), play.stage.engine
    place.attached = False
    play.call(
        f"detach {place.name}", DEADLINES.store, lambda: engine.admin.detach(place.name), alone=True
    )
    play.pins.forget(place.name)
    play.stage.witnesses.pop(place.name, None)
    play.well(place)


def attach(play):
    stage = play.stage
    for place in play.stage.settings.places:
        if not place.attached:
            plan = play.stage.plan(place)
            play.call(f"attach {place.name}", 0.0, lambda p=plan: stage.attach(p), alone=True)


def crash(play):
    play.note("crash")
    play.going.clear()
    play.stage.crash()
    play.reset()


def close(play):
    """Close while calls are under way, then begin anew."""
    stage = play.stage
    play.leave()
    play.call("close", DEADLINES.close, stage.engine.close, alone=True)
    play.await_calls()
    for place in stage.settings.places:
        play.well(place)
    stage.world.settle()
    if left := stage.pool.ledger():
        raise Violation(f"leases after close: {left}")
    if stage.telemetry.unbalanced():
        raise Violation(f"hits and misses are not lookups: {stage.telemetry.counts}")
    stage.crash()
    play.reset()
