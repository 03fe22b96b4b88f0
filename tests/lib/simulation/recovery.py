"""The end of every play: faults end, and everything that was promised comes back."""

import itertools

from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.stores.bandwidth import PROBE_EVERY
from simulation.events import attach, close, crash, mend
from simulation.play import Violation
from simulation.prompts import CHUNK, Window
from simulation.requests import load, unpin
from simulation.stage import MEMORY

SECONDS = 30.0
"""After which a tier must be back."""

LAST = 2
"""Chunks of the prompt that every tier must take in the end."""

_UNHEARD = 1 << 20
"""Tokens from here on are in nobody's prompt."""


def recover(play):
    """All faults end: within a time the tiers are back, with everything they must have."""
    mend(play)
    play.await_calls()
    play.leave_room(LAST)
    attach(play)
    for owner in ("p0", "p1", "p2"):
        unpin(play, owner)
    engine, world = play.stage.engine, play.stage.world
    for name in ("q0", "q1", "q2"):
        world.do(lambda name=name: engine.cancel(name))
    world.do(lambda: engine.freeze(False))
    play.await_calls()
    numbers = itertools.count(_UNHEARD)
    until = world.now() + SECONDS
    while world.now() < until:
        fresh(play, 1, next(numbers))
        world.do(lambda: engine.clear(tiers=[MEMORY]))
        play.note("knock")
        world.advance(5.0)
    tokens, report = fresh(play, LAST, next(numbers))
    all_of_it = LAST * CHUNK
    lasting = [p for p in play.stage.settings.places if p.rules.writes is Writes.ALL]
    for name in [MEMORY, *(place.name for place in lasting)]:
        if report.tiers.get(name) != all_of_it:
            raise Violation(f"{name} is not back after {SECONDS} s: {report}")
    world.do(lambda: engine.clear(tiers=[MEMORY]))
    if lasting and not found(play, tokens):
        raise Violation("what was just stored is not found on any tier")
    play.check()
    if lasting:
        play.stage.settings.redraws = False  # less room would be a reason for not finding it
        crash(play)
        play.stage.world.do(play.stage.engine.flush)
        if not found(play, tokens):
            raise Violation("what was stored does not outlive the process")
    empty(play)
    close(play)


def found(play, tokens):
    """Whether a prompt is loaded: at once, or by and by from what was slower than computing."""
    tries = 1 if play.stage.settings.compute_rate is None else PROBE_EVERY
    loads = (load(play, tokens, 0, None, alone=True).result for _ in range(tries))
    return any(got.hit_tokens == len(tokens) for got in loads)


def fresh(play, chunks, token):
    """Store, and load again, a prompt that nobody had before."""
    tokens = (token,) * (chunks * CHUNK)
    engine = play.stage.engine
    report = play.stage.world.do(lambda: engine.store(tokens, Window(tokens, 0, play.pause)))
    if chunks == 1:
        play.stage.world.do(lambda: engine.clear(tiers=[MEMORY]))
    load(play, tokens, 0, None, alone=True)
    return tokens, report


def empty(play):
    """What is cleared is all there was: bytes counted are bytes on the tier."""
    engine = play.stage.engine
    play.stage.world.do(engine.flush)
    play.stage.world.do(lambda: engine.clear(everything=True))
    for tier in play.stage.stack.tiers:
        if tier.index.used:
            raise Violation(f"{tier.name} counts {tier.index.used} bytes when empty")
    for place in play.stage.settings.places:
        if place.indexed and place.medium.used:
            raise Violation(f"{place.name} holds {place.medium.used} bytes that nobody counts")
